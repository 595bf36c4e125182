"""slurm.conf, gres.conf and cgroup.conf from the settings: pure, for Slurm 22.05, 23.11 and 24.11.

Two kinds of site. *Process mode*: all nodes are daemons of one user on one machine, told apart by name, port
and, where the loopback has them, address. *Own machines* (`vm`, `container`): every node has its address,
the default ports and its cgroups.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from infra.node.model import Folders, Partition, Settings
from infra.node.slurm import blocks, gres
from infra.node.slurm.hardware import Hardware, Lines
from infra.node.slurm.hostlist import fold
from infra.node.slurm.places import reached_at, slurmd_addresses, slurmd_ports, span
from infra.node.slurm.version import Version, spell, traits

HEADER = "# Rendered by slurm-stacks for Slurm {version}: changes are lost. Edit the stack file instead.\n"

# What slurm.conf takes without quotes, and what Slurm does not read as a pattern (`%n`) or a comment.
_PLAIN_PATH = re.compile(r"/[A-Za-z0-9._/+@:-]*")
_PLAIN_VALUE = re.compile(r"[^\s#\"'\\]+")

AS_DESIGNED = Lines()
SOCKET_BYTES = 107
"""The kernel's limit for a Unix socket's path, its closing zero not counted."""

PROLOG_MARGIN = 120
"""Seconds that the waiting PrologSlurmctld may take beyond ResumeTimeout, to end by itself with a reason."""

Options = list[tuple[str, object]]


def render(settings: Settings, version: Version, lines: Lines = AS_DESIGNED) -> dict[str, str]:
    """File name -> content, to be written into `Folders.etc` on the controller (and, where there is no
    configless Slurm, on every machine).

    Args:
        lines: which nodes keep their former hardware, and which partitions wait.

    Raises:
        ValueError: the root cannot be written into slurm.conf or is too long for sockets, ports run out, or
            the release is too old.
    """
    check_paths(settings)
    header = HEADER.format(version=spell(version))
    sections: list[Options] = [
        _daemons(settings),
        _security(settings),
        _scheduling(settings),
        _tasks(settings),
        _power(settings),
        _controller(settings, version, lines),
        _accounting(settings, lines),
    ]
    parts = ["\n".join(f"{key}={_value(key, value)}" for key, value in section) for section in sections]
    partitions = settings.design.partitions
    parts.append("\n".join(line for p in partitions for line in _node_lines(settings, p, lines)))
    parts.append("\n".join(_partition(settings, p, p.name not in lines.closed) for p in partitions))
    files = {
        "slurm.conf": header + "\n" + "\n\n".join(text for text in parts if text) + "\n",
        "cgroup.conf": header + "".join(f"{k}={v}\n" for k, v in _cgroup(settings, version)),
    }
    if devices := gres.lines(settings.design, lines):
        files["gres.conf"] = header + "".join(f"{line}\n" for line in devices)
    return files


def check_paths(settings: Settings) -> None:
    """Refuse a root under which the cluster could be configured but would not work.

    Raises:
        ValueError: with the path and what to do.
    """
    folders = Folders(settings)
    root = str(folders.root)
    if not _PLAIN_PATH.fullmatch(root):
        raise ValueError(
            f"the run directory {root!r} has characters that slurm.conf cannot hold; choose another"
        )
    names = [node for p in settings.design.partitions for node in p.nodes()[-1:]]
    sockets = [folders.munge_socket, folders.daemon_socket]
    # slurmstepd listens at <spool>/<node>_<job>.<step>, both numbers up to 4294967295.
    sockets += [_spool(folders, node) / f"{node}_{'9' * 10}.{'9' * 10}" for node in names]
    longest = max(map(str, sockets), key=len)
    if (excess := len(longest.encode()) - SOCKET_BYTES) > 0:
        raise ValueError(
            f"the run directory {root!r} is {excess} bytes too long: sockets like {longest} "
            f"must stay within {SOCKET_BYTES} bytes"
        )


def _spool(folders: Folders, node: str) -> PurePosixPath:
    return folders.spool / node if folders.process else folders.spool


def _value(key: str, value: object) -> str:
    """The value as text; a value that would change the meaning of its line is refused."""
    text = str(value)
    if not _PLAIN_VALUE.fullmatch(text):
        raise ValueError(f"{key}={text!r}: no spaces, quotes or '#' can stand in slurm.conf")
    return text


def _line(options: Options) -> str:
    return " ".join(f"{key}={_value(key, value)}" for key, value in options)


def _daemons(settings: Settings) -> Options:
    """Who runs where, and where their files lie."""
    site, folders = settings.site, Folders(settings)
    # %n is the node's name: in process mode all nodes share one file system.
    node = "-%n" if folders.process else ""
    return [
        ("ClusterName", settings.design.name),
        ("SlurmctldHost", f"{site.controller_host}({site.controller_address})"),
        ("SlurmctldPort", site.slurmctld_port),
        # Process mode gives each node line its own port.
        *([] if folders.process else [("SlurmdPort", site.slurmd_port)]),
        ("SlurmUser", site.user),
        # slurmd of an ordinary user can only run that user's jobs, and must be told so.
        *([("SlurmdUser", site.user)] if folders.process else []),
        ("StateSaveLocation", folders.state),
        ("SlurmdSpoolDir", _spool(folders, "%n")),
        ("SlurmctldPidFile", folders.run / "slurmctld.pid"),
        ("SlurmdPidFile", folders.run / f"slurmd{node}.pid"),
        ("SlurmctldLogFile", folders.log / "slurmctld.log"),
        ("SlurmdLogFile", folders.log / f"slurmd{node}.log"),
        # Who was powered up or down, when and why: the first thing one looks for.
        ("DebugFlags", "Power"),
        # The default of 10 s is reached when hundreds of nodes start at once, or two cores run fifty slurmds.
        ("MessageTimeout", 15),
        ("SlurmdTimeout", settings.design.slurm.slurmd_timeout),
        # No machine here sends mail; the default, where it is not installed, is an error in every log.
        ("MailProg", "/bin/true"),
        # A node that comes back (DOWN for silence, rebooted) takes jobs again without a person's word.
        ("ReturnToService", 2),
    ]


def _security(settings: Settings) -> Options:
    folders = Folders(settings)
    # Also the delay before a requeued job may start again (cred_expire + 1, 121 s by default), so that no
    # node still honours its old credential. It bounds how old a credential may be when slurmd reads it:
    # clock skew between machines and a starved slurmd need some tens of seconds.
    info = "cred_expire=30"
    if folders.process:
        # A munged of the cluster's own: no root needed, and no other cluster's key.
        info = f"socket={folders.munge_socket},{info}"
    return [("AuthType", "auth/munge"), ("CredType", "cred/munge"), ("AuthInfo", info)]


def _cgroups(settings: Settings) -> bool:
    """Whether jobs are held together and limited by cgroups, which need root."""
    return not Folders(settings).process


def _own_cores(settings: Settings) -> bool:
    """Whether a node's CPUs are its own to bind jobs to. Containers share the host's, and all count from 0:
    everybody's jobs would crowd on the first, and a node that pretends to have more could run none."""
    return settings.design.machines == "vm"


def _scheduling(settings: Settings) -> Options:
    own_machine = not Folders(settings).process
    return [
        ("SchedulerType", "sched/backfill"),
        ("SchedulerParameters", ",".join(_scheduler_parameters(own_machine))),
        ("SelectType", "select/cons_tres"),
        # CPU, not Core: a node line says CPUs only, and hyperthreads would make registration fail with
        # "low socket*core count". Memory is Slurm's to share out only where cgroups can enforce it.
        ("SelectTypeParameters", "CR_CPU_Memory" if _cgroups(settings) else "CR_CPU"),
        # By submission. 23.02's default, multifactor, wants an accounting database and gives all jobs
        # priority 1: were accounting turned off, those that wait would come after later ones.
        ("PriorityType", "priority/basic"),
        # A job that no partition can ever run is refused as it is submitted, and does not wait for ever.
        ("EnforcePartLimits", "ALL"),
        # Jobs survive the death of a node.
        ("JobRequeue", 1),
        # Room for sweeps; the defaults are 1,001 and 10,000.
        ("MaxArraySize", 10001),
        ("MaxJobCount", 50000),
        # From the launch of a script to its first sign of life; 10 s is short for fifty at once on two cores.
        # Waiting for nodes is not part of it: the clock starts when the job leaves CONFIGURING.
        ("BatchStartTimeout", 60),
    ]


def _scheduler_parameters(own_machine: bool) -> Iterator[str]:
    # A batch job is never placed at its submission, but on the next tick of a thread. The main scheduler
    # ticks every second, but at most once in this delay (3 s by default). The backfill scheduler ticks by
    # its own interval (30 s by default), just before the thread that calls ResumeProgram: on a quiet cluster
    # this halves the time from sbatch to the script (median 0.7 s instead of 1.5 s). A cycle is cut off
    # after one interval, and there is none when nothing has changed.
    yield "batch_sched_delay=0"
    yield "bf_interval=1"
    # What counts as no change (a requeued job's pause is over, a node's power-down is done) only the main
    # scheduler finds, on a tick of its own: 60 s by default.
    yield "sched_interval=5"
    if own_machine:
        # salloc gives its shell when the nodes are there, not while they boot.
        yield "salloc_wait_nodes"


def _tasks(settings: Settings) -> Options:
    accounting, cgroups = settings.design.slurm.accounting, _cgroups(settings)
    gather = "cgroup" if cgroups else "linux"
    options: Options = [
        ("ProctrackType", "proctrack/cgroup" if cgroups else "proctrack/linuxproc"),
        ("TaskPlugin", _task_plugins(settings)),
        # Without a database slurmctld calls gathering an error. cgroups enforce memory either way.
        ("JobAcctGatherType", f"jobacct_gather/{gather}" if accounting else "jobacct_gather/none"),
    ]
    if settings.design.machines != "vm":
        # Nodes pretend to have what the design says, whatever this machine has.
        options.append(("SlurmdParameters", "config_overrides"))
    if not Folders(settings).process:
        # salloc's shell runs on the job's node, not on the small login machine.
        options.append(("LaunchParameters", "use_interactive_step"))
        # A slurmd does not know the addresses of nodes that came up after it: no forwarding through nodes.
        options.append(("TreeWidth", 65533))
        # Else a job has the limit of the shell that submits it, 8 MiB on Ubuntu: EFA and NCCL lock far more.
        # slurmd's own is unlimited (`systemd.OWN_LINES`).
        options.append(("PropagateResourceLimitsExcept", "MEMLOCK"))
    return options


def _task_plugins(settings: Settings) -> str:
    if not _cgroups(settings):
        return "task/none"
    return "task/affinity,task/cgroup" if _own_cores(settings) else "task/cgroup"


def _power(settings: Settings) -> Options:
    slurm, folders = settings.design.slurm, Folders(settings)
    programs = folders.code / "bin"
    static = [node for p in settings.design.partitions for node in p.static_nodes()]
    return [
        ("ResumeProgram", programs / "resume"),
        ("ResumeFailProgram", programs / "resume-fail"),
        ("SuspendProgram", programs / "suspend"),
        # Waits until the job's nodes are up; without it a batch job, and in 24.11 srun too, starts on a tick
        # of 30 s (see prolog).
        ("PrologSlurmctld", programs / "prolog-slurmctld"),
        # Lasts while the job ends: a job that is queued again then, and loses its node, is tidied up.
        ("EpilogSlurmctld", programs / "epilog-slurmctld"),
        # The longest wait there is, for a node that takes all its time to boot.
        ("PrologEpilogTimeout", slurm.resume_timeout + PROLOG_MARGIN),
        ("SuspendTime", slurm.suspend_time),
        ("SuspendTimeout", slurm.suspend_timeout),
        ("ResumeTimeout", slurm.resume_timeout),
        # 0 is no limit: one call holds all that is wanted. Any other value would split a job's nodes over
        # several calls, and no launch could be all or nothing.
        ("ResumeRate", 0),
        ("SuspendRate", 0),
        *([("SuspendExcNodes", fold(static))] if static else []),
    ]


def _controller(settings: Settings, version: Version, lines: Lines) -> Options:
    site, folders, has = settings.site, Folders(settings), traits(version)
    # A node that failed and was powered down is idle again, not DOWN until somebody acts.
    parameters = ["idle_on_node_suspend"]
    # How long Slurm may look away from its nodes; the default is 10 s.
    parameters.append("power_save_interval=1")
    by_name = folders.process or site.driver.get("cloud_dns") == "true"
    if by_name:
        # Addresses are known before a node boots: Slurm need not wait to be told.
        parameters.insert(0, "cloud_dns")
    elif has.cloud_reg_addrs:
        parameters.insert(0, "cloud_reg_addrs")
    if not folders.process:
        # slurmd and the login machines fetch these files from slurmctld.
        parameters.append("enable_configless")
    options: Options = [("SlurmctldParameters", ",".join(parameters))]
    if has.private_data_cloud:
        # The name misleads: with it, nodes that are powered down are shown too.
        options.append(("PrivateData", "cloud"))
    if kinds := gres.kinds(settings.design, lines):
        options.append(("GresTypes", ",".join(kinds)))
    return options


def _accounting(settings: Settings, lines: Lines) -> Options:
    folders = Folders(settings)
    if not settings.design.slurm.accounting:
        # Said because distributions differ in what an absent line means to them.
        return [("AccountingStorageType", "accounting_storage/none")]
    options: Options = [("AccountingStorageType", "accounting_storage/slurmdbd")]
    options.append(("AccountingStorageHost", settings.site.controller_address))
    options.append(("AccountingStoragePort", settings.site.slurmdbd_port))
    if folders.process:
        # For munge this "password" is the path of the socket.
        options.append(("AccountingStoragePass", folders.munge_socket))
    if kinds := gres.kinds(settings.design, lines):
        options.append(("AccountingStorageTRES", ",".join(f"gres/{kind}" for kind in kinds)))
    return options


def _node_lines(settings: Settings, partition: Partition, lines: Lines) -> Iterator[str]:
    ports, addresses = slurmd_ports(settings), slurmd_addresses(settings)
    static, every = partition.static_nodes(), partition.nodes()
    # Among equals Slurm takes the lowest weight: a node that is up anyway before one that costs money.
    weighed = ((static, 1), (every[len(static) :], 10))
    new = Hardware.of(partition)
    for nodes, hardware, weight in (
        (run, hardware, weight)
        for some, weight in weighed
        for group, hardware in lines.groups(some, new)
        for run in blocks.runs(group, ports)
    ):
        options: Options = [("NodeName", fold(nodes))]
        if Folders(settings).process:
            first, last = ports[nodes[0]], ports[nodes[-1]]
            options += [
                *reached_at([addresses[node] for node in nodes if node in addresses]),
                ("Port", span(first, last)),
            ]
        options += [("CPUs", hardware.cpus), ("RealMemory", hardware.memory_mib)]
        if hardware.accelerator is not None:
            options.append(("Gres", gres.resource(hardware.accelerator)))
        options += [("Feature", ",".join(hardware.features)), ("Weight", weight), ("State", "CLOUD")]
        yield _line(options)


def _partition(settings: Settings, partition: Partition, in_service: bool) -> str:
    options: Options = [
        ("PartitionName", partition.name),
        ("Nodes", fold(partition.nodes())),
        ("Default", "YES" if partition.default else "NO"),
        ("MaxNodes", partition.max),
        ("MaxTime", partition.time_limit),
        ("OverSubscribe", "EXCLUSIVE" if partition.exclusive else "NO"),
        # Where memory is shared out, a job that does not name any would take all of its node's.
        *([("DefMemPerCPU", partition.memory_mib // partition.cpus)] if _cgroups(settings) else []),
        ("State", "UP" if in_service else "DOWN"),
    ]
    return _line(options)


def _cgroup(settings: Settings, version: Version) -> Options:
    if not _cgroups(settings):
        return [("CgroupPlugin", traits(version).cgroup_off)]
    real = any(p.accelerator is not None and not p.accelerator.simulated for p in settings.design.partitions)
    options: Options = [
        *_hierarchies(settings),
        ("ConstrainCores", "yes" if _own_cores(settings) else "no"),
        ("ConstrainRAMSpace", "yes"),
        # A job sees the GPUs that it was given; simulated ones are borrowed devices that jobs may need.
        ("ConstrainDevices", "yes" if real else "no"),
    ]
    return options


def _hierarchies(settings: Settings) -> Options:
    """Where cgroups are: on a host that keeps version 1's, a container's own lie aside from its systemd's."""
    if place := settings.site.driver.get("cgroups"):
        return [("CgroupPlugin", "cgroup/v1"), ("CgroupMountpoint", place)]
    return [("CgroupPlugin", "autodetect")]
