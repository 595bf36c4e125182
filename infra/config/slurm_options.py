"""Which options of slurm.conf a stack file may not give, each with the reason, and what to write instead.

All others it may give: `slurm.settings`, and `partitions[].settings` for the line of a partition. The tables
follow `node.slurm.conf`, which writes the file; `tests/infra/config/test_slurm_options.py` compares them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from infra.slurm_releases import options

_PLACES = "it follows from the machines and folders of the stack"
_POWER = "nodes start and end by it"
_STATE = "Slurm may lose jobs when it changes"
_TASKS = "nodes are set up for it"
_PRIORITY = "it follows from the stack's shares"
_NOTHING = "remove it: there is no key for it"


@dataclass(frozen=True, slots=True)
class Owned:
    """An option, or a word of a list, that a stack file may not give.

    Attributes:
        why: The reason.
        instead: What to do.
    """

    why: str
    instead: str = _NOTHING


def _all(names: str, why: str, instead: str = _NOTHING) -> dict[str, Owned]:
    return dict.fromkeys(names.split(), Owned(why, instead))


OWNED: Mapping[str, Owned] = {
    # the cluster, its machines and folders
    **_all("ClusterName", "it is the cluster's name", "write name: …"),
    **_all(
        "SlurmctldHost ControlMachine ControlAddr SlurmctldAddr BackupController BackupAddr SlurmctldPort "
        "SlurmdPort SlurmUser SlurmdUser StateSaveLocation SlurmdSpoolDir SlurmctldPidFile SlurmdPidFile "
        "SlurmctldLogFile SlurmdLogFile",
        _PLACES,
    ),
    **_all("TmpFS", _PLACES, "write storage: {scratch: …}: nodes with a local scratch have it there"),
    **_all("LogTimeFormat", "the elastic daemon and `logs` read the times in slurmctld's log"),
    **_all("NodeName NodeSet DownNodes FrontendName", "nodes follow from the partitions", "write partitions"),
    **_all("PartitionName", "it begins a line of its own", "write partitions, and their settings there"),
    **_all("PowerAction", _POWER),
    **_all("AuthType CredType CryptoType", "machines share a key of munge"),
    **_all(
        "TLSType TLSParameters CertmgrType CertmgrParameters CertgenType CertgenParameters",
        "machines have no certificates for it",
    ),
    **_all("MinJobAge", "the elastic daemon learns for five minutes how jobs have ended"),
    **_all("ReconfigFlags", "partitions that people have changed at run time stay by it"),
    **_all("ReturnToService", "nodes that boot again take jobs by it"),
    **_all("TreeWidth RoutePlugin", "slurmds do not know the addresses of nodes that started after them"),
    # elasticity
    **_all("SuspendTime", _POWER, "write slurm: {suspend_time: …}"),
    **_all("SuspendTimeout", _POWER, "write slurm: {suspend_timeout: …}"),
    **_all("ResumeTimeout", _POWER, "write slurm: {resume_timeout: …}"),
    **_all("SuspendExcNodes", _POWER, "write nodes: {min: …} of the partition, whose nodes are always up"),
    **_all(
        "ResumeProgram ResumeFailProgram SuspendProgram RebootProgram ResumeRate SuspendRate", _POWER
    ),
    **_all("SlurmdTimeout", _POWER, "write slurm: {slurmd_timeout: …}"),
    **_all("PrologSlurmctld EpilogSlurmctld", "jobs wait for their nodes by it", "write slurm: {prolog: …}"),
    **_all("Prolog", "our checks run there, too", "write slurm: {prolog: …}"),
    **_all("Epilog", "our programs run there, too", "write slurm: {epilog: …}"),
    **_all(
        "PrologEpilogTimeout PrologTimeout EpilogTimeout",
        "jobs wait in their prolog for nodes that boot",
        "write slurm: {prolog: {timeout: …}}, or the epilog's timeout",
    ),
    **_all("PrEpPlugins", "prolog and epilog run by it", "write slurm: {prolog: …}, or epilog"),
    **_all(
        "HealthCheckProgram HealthCheckInterval HealthCheckNodeState HealthCheckTimeout",
        "our checks of devices run by it",
        "write health: …; a check of your own is slurm: {prolog: …}",
    ),
    **_all("NodeFeaturesPlugins", "features follow from the instance type, and no node reboots for a job"),
    **_all("TopologyPlugin", "topology.conf follows from the cloud's network", "write topology: true"),
    **_all("GresTypes", "they follow from the accelerators", "write accelerator: … of a partition"),
    # scheduling
    **_all("SchedulerType SelectType SwitchType", _STATE),
    **_all("ProctrackType TaskPlugin", _TASKS),
    **_all(
        "DefMemPerCPU DefMemPerNode DefMemPerGPU",
        "each partition has its own",
        "write settings: {DefMemPerCPU: …} of the partition",
    ),
    # accounting
    **_all(
        "AccountingStorageType AccountingStorageHost AccountingStorageBackupHost AccountingStoragePort "
        "AccountingStorageUser AccountingStorageLoc AccountingStorageEnforce JobAcctGatherType",
        "slurmdbd and its database run on the controller",
        "write slurm: {accounting: true}",
    ),
    **_all(
        "AccountingStoragePass JobCompPass",
        "everybody on the machines can read slurm.conf",
        "remove it: JobCompPassScript (25.11) names a program that prints the password",
    ),
    **_all("PriorityType", _PRIORITY, "write slurm: {priority: {…}}"),
    **_all("PriorityDecayHalfLife", _PRIORITY, "write slurm: {priority: {decay_half_life: …}}"),
    **_all("PriorityCalcPeriod", _PRIORITY, "write slurm: {priority: {calc_period: …}}"),
    **_all("PriorityMaxAge", _PRIORITY, "write slurm: {priority: {max_age: …}}"),
    **_all("PriorityWeightFairshare", _PRIORITY, "write slurm: {priority: {fairshare: …}}"),
    **_all("PriorityWeightQOS", _PRIORITY, "write slurm: {priority: {qos: …}}"),
    **_all("PriorityWeightAge", _PRIORITY, "write slurm: {priority: {age: …}}"),
    **_all("PriorityWeightJobSize", _PRIORITY, "write slurm: {priority: {job_size: …}}"),
    **_all("PriorityWeightPartition", _PRIORITY, "write slurm: {priority: {partition: …}}"),
    **_all("PreemptType PreemptMode", _PRIORITY, "write qos: [{name: …, preempts: […], preempt_mode: …}]"),
}  # fmt: skip
"""Options of slurm.conf."""

PARTITION_OWNED: Mapping[str, Owned] = {
    **_all("Nodes", "nodes follow from the partition", "write nodes: {min: …, max: …}"),
    **_all("Default", "the stack file says it", "write default: true"),
    **_all("MaxTime", "the stack file says it", "write time_limit: …"),
    **_all("OverSubscribe Shared Exclusive", "the stack file says it", "write exclusive: true"),
    **_all("State", "commands close and open partitions by it", "remove it: scontrol changes it at run time"),
    **_all("SuspendTime", _POWER, "write slurm: {suspend_time: …}, for all partitions"),
    **_all("SuspendTimeout", _POWER, "write slurm: {suspend_timeout: …}, for all partitions"),
    **_all("ResumeTimeout", _POWER, "write slurm: {resume_timeout: …}, for all partitions"),
    **_all("PowerDownOnIdle", _POWER, "write slurm: {suspend_time: …}, for all partitions"),
    **_all("Topology", "topology.conf follows from the cloud's network", "write topology: true"),
    **_all("SelectTypeParameters", "a node's line counts its hyperthreads as cores, for all partitions"),
    **_all("Priority", "it means two things", "write PriorityTier, PriorityJobFactor or both"),
    **_all("AllowAccounts", "the stack file says it", "write allow_accounts: […]"),
    **_all("AllowQos", "the stack file says it", "write allow_qos: […]"),
    **_all("QOS", "the stack file says it", "write qos: …"),
    **_all("PreemptMode", _PRIORITY, "write qos: [{name: …, preempts: […], preempt_mode: …}]"),
}
"""Options of a partition's line."""

WORDS: Mapping[str, Mapping[str, Owned]] = {
    "SchedulerParameters": {
        **_all("batch_sched_delay bf_interval sched_interval", "jobs reach nodes within a second by it"),
        **_all("nohold_on_prolog_fail", "a job whose prolog fails runs on other nodes by it"),
        **_all("salloc_wait_nodes", "salloc waits for nodes that boot by it"),
    },
    "SlurmctldParameters": {
        **_all("cloud_dns cloud_reg_addrs", "nodes are found by it"),
        **_all("enable_configless", "nodes fetch their configuration by it"),
        **_all(
            "idle_on_node_suspend power_save_interval power_save_min_interval reboot_from_controller", _POWER
        ),
    },
    "SlurmdParameters": _all("config_overrides", "nodes report the design's hardware by it"),
    "LaunchParameters": _all("use_interactive_step", "salloc's shell runs on the job's node by it"),
    "CommunicationParameters": _all(
        "NoCtldInAddrAny NoInAddrAny EnableIPv6 DisableIPv4 disable_http",
        "daemons listen, and addresses are looked up, as the machines need it",
    ),
    "AuthInfo": {
        **_all("socket", _PLACES),
        **_all("cred_expire", "a requeued job waits as long before it starts again"),
    },
    "SelectTypeParameters": _all(
        "CR_CPU CR_CPU_Memory CR_Core CR_Core_Memory CR_Socket CR_Socket_Memory CR_Board CR_Memory "
        "CR_Board_Memory",
        "a node's line counts its hyperthreads as cores, which CR_CPU_Memory needs",
    ),
}
"""Words of lists. A list has our words and the stack file's."""

PAST_POOLS: Mapping[str, Sequence[str]] = {
    "selecttypeparameters": ("CR_LLN",),
    "topologyparam": ("TopoOptional",),
}
"""Options in small letters -> words with which Slurm chooses nodes without topology.conf (its source:
`select_nodes`, `_eval_nodes`)."""
TIMES = frozenset({"DefaultTime", "PreemptExemptTime"})
"""Options with a time in Slurm's notation: a bare number may be what YAML makes of 24:00:00."""
LARGEST = {"uint16": 2**16 - 1, "uint32": 2**32 - 1, "uint64": 2**64 - 1}
"""Type of an option that is a whole number -> the largest one."""
NO_NUMBER = ("UNLIMITED", "INFINITE")
"""Words that every number may be."""
LOG_LEVELS = (
    "quiet", "fatal", "error", "info", "verbose", "debug", "debug2", "debug3", "debug4", "debug5",
)  # fmt: skip
"""Slurm's names of the levels that slurm.conf may also have as numbers."""
YES, NO = ("yes", "up", "true", "1"), ("no", "down", "false", "0")
"""The spellings of a boolean that Slurm's parser knows."""


def canonical(settings: Mapping[str, str], section: str) -> dict[str, str]:
    """Return a section's options in Slurm's spelling: names, and values that Slurm shows in one spelling.

    Args:
        section: `options.SLURM` or `options.PARTITION`.
    """
    return dict(_canonical(settings.items(), section)) if settings else {}


def _canonical(given: Iterable[tuple[str, str]], section: str) -> Iterable[tuple[str, str]]:
    known = options.options(section)
    for name, value in given:
        option = known.get(name.lower())
        if option is None:
            yield name, value
        elif option.name == "SlurmctldDebug":
            yield option.name, LOG_LEVELS[int(value)] if re.fullmatch("[0-9]", value) else value.lower()
        elif option.type_in(None) == "boolean":
            yield option.name, "YES" if value.lower() in YES else "NO"
        elif value.upper() in NO_NUMBER and option.type_in(None) in LARGEST:
            yield option.name, NO_NUMBER[0]
        else:
            yield option.name, value
