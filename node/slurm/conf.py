"""Renders slurm.conf and the files beside it from the settings, for each release of Slurm from 22.05 on.

The code is pure. There are two kinds of sites. In *process mode* all nodes are daemons of one user on one
machine; they differ by name, by port and, if the loopback has enough, by address. On *whole machines* (`vm`,
`container`) every node has its own address, the default ports and its own cgroups.

Slurm's traps (docs/internals/slurm_traps.md): start-tick, changed-defaults, requeued-gpus.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

from node.accounting.sacctmgr import can_name
from node.design import sharing, time_limits
from node.design.accelerators import Accelerator
from node.design.folders import Folders
from node.design.health import EPILOG, PROLOG
from node.design.model import ClusterDesign, Partition, Settings
from node.health.check import expected
from node.health.programs import HEALTH_CHECK
from node.slurm import container_conf, own_settings, port_blocks, runtime, sharing_conf, topology, users
from node.slurm.addressing import communication, reached_at, slurmd_addresses, slurmd_ports, span
from node.slurm.hardware import Hardware, Lines, device_files
from node.slurm.hostlist import expand, fold
from node.slurm.version import Version, spell, traits

HEADER = "# Rendered by slurm-stacks for Slurm {version}: changes are lost. Edit the stack file instead.\n"

# These characters need no quotes in slurm.conf, and Slurm reads none as a pattern (`%n`) or a comment.
_PLAIN_PATH = re.compile(r"/[A-Za-z0-9._/+@:-]*")
_PLAIN_VALUE = re.compile(r"[^\s#\"'\\]+")

AS_DESIGNED = Lines()
SOCKET_BYTES = 107
"""The kernel's limit for the path of a Unix socket, without the closing zero."""

PROLOG_MARGIN = 120
"""Seconds beyond ResumeTimeout in which the waiting PrologSlurmctld can end by itself with a reason."""

Options = list[tuple[str, object]]


def render(
    settings: Settings,
    version: Version,
    lines: Lines = AS_DESIGNED,
    places: Mapping[str, topology.Place] | None = None,
    kept: runtime.Kept = runtime.NOTHING,
    *,
    has_epilog: bool = True,
) -> dict[str, str]:
    """Return file name -> content, for `Folders.etc` on the controller and on login machines.

    Args:
        lines: Which nodes keep their former hardware, and which partitions accept no jobs yet.
        places: Where machines are in the cloud's network, as far as it is known.
        kept: What people have changed at run time.
        has_epilog: Whether slurmctld needs our epilog (`version.cleans_up_requeued_jobs`).

    Raises:
        ValueError: slurm.conf cannot hold the root's path, the path is too long for sockets, there are too
            few ports, or the release is too old.
    """
    check_paths(settings)
    header = HEADER.format(version=spell(version))
    users_line = f"{sharing.users_line(settings.design.users)}\n" if _makes_users(settings) else ""
    sections: list[Options] = [
        _daemons(settings, version),
        _security(settings),
        _scheduling(settings),
        _tasks(settings),
        [*_power(settings), *(_epilog(settings) if has_epilog else [])],
        _health(settings),
        list(topology.options(settings.design)),
        _controller(settings, version, lines),
        _accounting(settings, lines),
    ]
    sections = own_settings.merged(sections, settings.design.slurm.settings)
    sections = _with_changes(sections, kept.controller)
    parts = ["\n".join(f"{key}={_value(key, value)}" for key, value in section) for section in sections]
    parts.append(
        "\n".join(
            line
            for p in settings.design.partitions
            for line in _node_lines(settings, p, lines, kept, version)
        )
    )
    parts.append(
        "\n".join(
            _partition(settings.design, name, name not in lines.closed, kept)
            for name in settings.design.slurm_partitions()
        )
    )
    parts.append("\n".join(_own_partitions(settings.design, lines, kept)))
    files = {
        "slurm.conf": header + users_line + "\n" + "\n\n".join(text for text in parts if text) + "\n",
        "cgroup.conf": header + "".join(f"{k}={v}\n" for k, v in _cgroup(settings, version)),
    }
    if topology.wanted(settings.design):
        files[topology.FILE] = header + topology.render(settings.design, places or {})
    containers = settings.design.containers
    if containers is not None and containers.runtime == "oci":
        files["oci.conf"] = header + container_conf.oci_conf(settings)
    if containers is not None and containers.runtime == "pyxis":
        files["plugstack.conf"] = header + container_conf.PLUGSTACK
    if devices := gres_conf(settings.design, lines):
        files["gres.conf"] = header + "".join(f"{line}\n" for line in devices)
    return files


def check_paths(settings: Settings) -> None:
    """Refuse a root folder with which the cluster could be configured but would not work.

    Raises:
        ValueError: The root folder is unusable. The message has the path and says what to do.
    """
    folders = Folders(settings)
    root = str(folders.root)
    if not _PLAIN_PATH.fullmatch(root):
        raise ValueError(
            f"the run directory {root!r} has characters that slurm.conf cannot hold; choose another"
        )
    names = [node for p in settings.design.partitions for node in p.nodes()[-1:]]
    sockets = [folders.munge_socket, folders.daemon_socket, folders.status_socket]
    # slurmstepd listens at <spool>/<node>_<job>.<step>. Both numbers are at most 4294967295.
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
    """Return the value as text. Raises ValueError for a value that would change the meaning of its line."""
    text = str(value)
    if not _PLAIN_VALUE.fullmatch(text) and not isinstance(value, users.Spelled | own_settings.Value):
        raise ValueError(f"{key}={text!r}: no spaces, quotes or '#' can stand in slurm.conf")
    return text


def _line(options: Options) -> str:
    return " ".join(f"{key}={_value(key, value)}" for key, value in options)


def designed(settings: Settings, lines: Lines = AS_DESIGNED) -> runtime.Designed:
    """Return what slurm.conf says of everything that people can change at run time."""
    partitions = settings.design.partitions
    ours = [[*_daemons_of_every_release(), *_power(settings)]]
    options = {
        key: value
        for section in own_settings.merged(ours, settings.design.slurm.settings)
        for key, value in section
    }
    return runtime.Designed(
        {
            name: runtime.partition(dict(_partition_options(settings.design, name)))
            for name in settings.design.slurm_partitions()
        },
        {
            node: fields
            for p in partitions
            for nodes, hardware, weight in _node_runs(settings, p, lines)
            for fields in ({"Feature": _features(p, hardware), "Weight": str(weight)},)
            for node in nodes
        },
        {key: str(options.get(key, value)) for key, value in runtime.CONTROLLER.items()},
    )


def _with_changes(sections: list[Options], changes: Mapping[str, str]) -> list[Options]:
    """Return the sections with what people have changed of slurmctld's own options."""
    left: dict[str, object] = dict(changes)
    result = [[(key, left.pop(key, value)) for key, value in section] for section in sections]
    result.append(list(left.items()))
    # An option that has become empty is left out: without it Slurm has the empty value, too.
    return [[(key, value) for key, value in section if value != ""] for section in result]


def _daemons(settings: Settings, version: Version) -> Options:
    """Return the options for the daemons: their hosts, ports, users and files."""
    site, folders = settings.site, Folders(settings)
    # %n is the node's name. It is needed in process mode, where all nodes share one file system.
    node = "-%n" if folders.process else ""
    user = users.spelled(site.user)
    return [
        ("ClusterName", settings.design.name),
        ("SlurmctldHost", f"{site.controller_host}({site.controller_address})"),
        ("SlurmctldPort", site.slurmctld_port),
        # In process mode each node line has its own port.
        *([] if folders.process else [("SlurmdPort", site.slurmd_port)]),
        ("SlurmUser", user),
        # The slurmd of an ordinary user can only run that user's jobs, and needs this option.
        *([("SlurmdUser", user)] if folders.process else []),
        *communication(site.cloud, "NoCtldInAddrAny", *_no_http(folders, version)),
        ("StateSaveLocation", folders.state),
        ("SlurmdSpoolDir", _spool(folders, "%n")),
        *_temporary_files(settings),
        ("SlurmctldPidFile", folders.run / "slurmctld.pid"),
        ("SlurmdPidFile", folders.run / f"slurmd{node}.pid"),
        ("SlurmctldLogFile", folders.log / "slurmctld.log"),
        ("SlurmdLogFile", folders.log / f"slurmd{node}.log"),
        *_daemons_of_every_release(),
        # The default of 10 s is too short when hundreds of nodes start at once, or fifty on two cores.
        ("MessageTimeout", 15),
        ("SlurmdTimeout", settings.design.slurm.slurmd_timeout),
        # No machine sends mail. The default program is an error in every log where it is not installed.
        ("MailProg", "/bin/true"),
        # A node that was DOWN and registers again (after silence or a reboot) takes jobs without an admin.
        # With 1, Slurm takes a node for rebooted, and ends its jobs, if slurmctld is killed soon after the
        # node's boot.
        ("ReturnToService", 2),
        # `scontrol reconfigure` keeps the partitions as people have made and changed them. A start does not:
        # `configure` has written them into this file (`node.slurm.runtime`).
        ("ReconfigFlags", "KeepPartInfo"),
    ]


def _temporary_files(settings: Settings) -> Options:
    """Return where nodes have their temporary files: what `--tmp` asks for, and TmpDisk counts."""
    folders = Folders(settings)
    if folders.process:
        # Slurm's PMIx makes a folder here, of the same name on all of a step's nodes. Without namespaces they
        # share /tmp.
        return [("TmpFS", _spool(folders, "%n"))]
    scratch = next((mount for mount in settings.design.mounts if mount.kind == "nvme"), None)
    return [] if scratch is None else [("TmpFS", scratch.path)]


def _daemons_of_every_release() -> Options:
    # Logs which nodes were powered up or down, when and why, which is the first thing to look for.
    return [("DebugFlags", "Power")]


def _no_http(folders: Folders, version: Version) -> tuple[str, ...]:
    """Return the word that turns HTTP off where users of this host would reach it, who have no munge key."""
    return ("disable_http",) if folders.process and traits(version).http else ()


def _security(settings: Settings) -> Options:
    folders = Folders(settings)
    # cred_expire limits the age of a credential when slurmd reads it: clock skew between machines and a
    # starved slurmd need some tens of seconds. It is also the delay before a requeued job may start again
    # (cred_expire + 1, 121 s by default), so that no node still accepts the job's old credential.
    info = "cred_expire=30"
    if folders.process:
        # The cluster has its own munged, which needs neither root nor another cluster's key.
        info = f"socket={folders.munge_socket},{info}"
    return [("AuthType", "auth/munge"), ("CredType", "cred/munge"), ("AuthInfo", info)]


def _cgroups(settings: Settings) -> bool:
    """Return whether cgroups track and limit jobs. They need root."""
    return not Folders(settings).process


def _own_cores(settings: Settings) -> bool:
    """Return whether jobs can be bound to a node's CPUs.

    Containers share the host's CPUs and all count from 0: the jobs of all nodes would be bound to the first
    CPUs, and a node with more CPUs than the host could run no job at all.
    """
    return settings.design.isolation == "vm"


def _scheduling(settings: Settings) -> Options:
    own_machine = not Folders(settings).process
    return [
        ("SchedulerType", "sched/backfill"),
        ("SchedulerParameters", ",".join(_scheduler_parameters(settings, own_machine))),
        ("SelectType", "select/cons_tres"),
        # CPU, not Core: a node line calls each hyperthread a core (`Hardware.topology`), and with CR_Core a
        # machine that has fewer would be refused. On process machines memory counts, and nothing limits it.
        ("SelectTypeParameters", "CR_CPU_Memory"),
        *sharing_conf.priority(settings.design),
        *sharing_conf.preemption(settings.design),
        # A job that no partition can ever run is refused at submission and does not wait for ever.
        ("EnforcePartLimits", "ALL"),
        # Jobs survive the death of a node.
        ("JobRequeue", 1),
        # These limits allow large sweeps. The defaults are 1,001 and 10,000.
        ("MaxArraySize", 10001),
        ("MaxJobCount", 50000),
        # The time from the start of a batch script to its first report. The default of 10 s is short for
        # fifty at once on two cores. It does not include waiting for nodes: it starts when the job leaves
        # CONFIGURING.
        ("BatchStartTimeout", 60),
    ]


def _scheduler_parameters(settings: Settings, own_machine: bool) -> Iterator[str]:
    # A batch job is never placed at its submission, but by the next cycle of a scheduler thread. The main
    # scheduler runs every second, but at most once in this delay (3 s by default). The backfill scheduler
    # runs at its own interval (30 s by default), just before the thread that calls ResumeProgram. On a quiet
    # cluster these options halve the time from sbatch to the script (median 0.7 s instead of 1.5 s). A cycle
    # is cut off after one interval, and is left out when nothing has changed.
    yield "batch_sched_delay=0"
    yield "bf_interval=1"
    # Some events do not count as a change: the end of a requeued job's delay, and of a node's power-down.
    # Only the main scheduler's periodic cycle (60 s by default) notices them.
    yield "sched_interval=5"
    if _has_prolog(settings):
        # A job whose prolog failed runs on other nodes. Otherwise it is held until a person releases it.
        yield "nohold_on_prolog_fail"
    if own_machine:
        # salloc starts its shell when the nodes are up, not while they boot.
        yield "salloc_wait_nodes"


def _tasks(settings: Settings) -> Options:
    accounting, cgroups = settings.design.slurm.accounting, _cgroups(settings)
    gather = "cgroup" if cgroups else "linux"
    options: Options = [
        ("ProctrackType", "proctrack/cgroup" if cgroups else "proctrack/linuxproc"),
        ("TaskPlugin", _task_plugins(settings)),
        # Slurm's own default, on purpose (docs/clients.md has the trials). With pmix Open MPI's programs need
        # no option under srun. But MPICH's end, even those of one task and those that its own mpiexec starts;
        # each step takes twice as long to start; and none starts where a node lacks the plugin, as with
        # Debian's package of 26.05.
        ("MpiDefault", "none"),
        # Without a database slurmctld reports gathering as an error. cgroups enforce memory in either case.
        ("JobAcctGatherType", f"jobacct_gather/{gather}" if accounting else "jobacct_gather/none"),
    ]
    if settings.design.isolation != "vm":
        # Nodes report the hardware of the design, whatever this machine has.
        options.append(("SlurmdParameters", "config_overrides"))
    if not Folders(settings).process:
        # salloc's shell runs on the job's node, not on the small login machine.
        options.append(("LaunchParameters", "use_interactive_step"))
        # A slurmd does not know the addresses of nodes that started later. This turns off forwarding.
        options.append(("TreeWidth", 65533))
        # Otherwise a job has the limit of the submitting shell (8 MiB on Ubuntu), but EFA and NCCL lock far
        # more memory. slurmd's own limit is infinite (`systemd.OWN_LINES`).
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
        # This prolog waits until the job's nodes are up. Without it a batch job (and in 24.11 srun too)
        # starts only on a tick of 30 s.
        ("PrologSlurmctld", programs / "prolog-slurmctld"),
        # The prolog's longest wait is for a node that takes its whole time to boot.
        ("PrologEpilogTimeout", max(slurm.resume_timeout, _longest_script(settings)) + PROLOG_MARGIN),
        ("SuspendTime", slurm.suspend_time),
        ("SuspendTimeout", slurm.suspend_timeout),
        ("ResumeTimeout", slurm.resume_timeout),
        # `scontrol reboot` refuses without it. Slurm drains the node, or waits until it is free, and then
        # calls this program once, on the controller (`reboot_from_controller`). The elastic daemon sees the
        # node's state, which is not lost as a call may be, and gives the node another machine.
        ("RebootProgram", "/bin/true"),
        # 0 means no limit: one call has all nodes. Any other value would split a job's nodes over several
        # calls, and no launch could be all or nothing.
        ("ResumeRate", 0),
        ("SuspendRate", 0),
        *([("SuspendExcNodes", fold(static))] if static else []),
    ]


def _health(settings: Settings) -> Options:
    """Return the options for the health of nodes and for users' scripts; none where nobody asks for them."""
    design, programs = settings.design, Folders(settings).code / "bin"
    options: Options = []
    if design.health is not None and _has_checks(settings):
        options += [
            ("HealthCheckProgram", programs / HEALTH_CHECK),
            ("HealthCheckInterval", design.health.interval_seconds),
            # Nodes with jobs are checked, too: a job on a broken device loses its time.
            ("HealthCheckNodeState", "ANY"),
        ]
    if _has_prolog(settings):
        options.append(("Prolog", programs / PROLOG))
        # The prolog runs on all nodes of a job when it gets them, not on each before its first step there.
        options.append(("PrologFlags", "Alloc"))
    if design.slurm.epilog is not None:
        options.append(("Epilog", programs / EPILOG))
    return options


def _epilog(settings: Settings) -> Options:
    """Return the epilog that runs until the job's nodes have ended it.

    While it runs slurmctld cleans up a requeued job whose node is lost.
    """
    return [("EpilogSlurmctld", Folders(settings).code / "bin" / "epilog-slurmctld")]


def _longest_script(settings: Settings) -> int:
    """Return the seconds that a prolog or an epilog may take; 0 for none. Slurm must wait as long."""
    slurm = settings.design.slurm
    checks = time_limits.HEALTH if _has_checks(settings) else 0
    return max(
        checks + (slurm.prolog.timeout if slurm.prolog else 0), slurm.epilog.timeout if slurm.epilog else 0
    )


def _has_prolog(settings: Settings) -> bool:
    """Return whether jobs have a prolog on their nodes."""
    return _has_checks(settings) or settings.design.slurm.prolog is not None or _makes_users(settings)


def _makes_users(settings: Settings) -> bool:
    return bool(sharing.of_machines(settings.design.users)) and not Folders(settings).process


def _has_checks(settings: Settings) -> bool:
    """Return whether any node has devices that are checked."""
    design = settings.design
    return any(expected(design, f"{partition.name}-0") is not None for partition in design.partitions)


def _controller(settings: Settings, version: Version, lines: Lines) -> Options:
    site, folders, has = settings.site, Folders(settings), traits(version)
    # A node that failed and was powered down becomes idle. Otherwise it stays DOWN until an admin acts.
    parameters = ["idle_on_node_suspend", "reboot_from_controller"]
    # Seconds between two cycles of Slurm's power saving. The default is 10 s.
    parameters.append("power_save_interval=1")
    by_name = folders.process or site.cloud_dns
    if by_name:
        # Addresses are known before a node boots, so Slurm need not wait for its registration.
        parameters.insert(0, "cloud_dns")
    elif has.cloud_reg_addrs:
        parameters.insert(0, "cloud_reg_addrs")
    if not folders.process:
        # slurmd and the login machines fetch these files from slurmctld.
        parameters.append("enable_configless")
    options: Options = [("SlurmctldParameters", ",".join(parameters))]
    if has.private_data_cloud:
        # The name is misleading: with this option, nodes that are powered down are shown too.
        options.append(("PrivateData", "cloud"))
    if has.http and not folders.process:
        # Slurm asks nobody who he is there: PrivateData, which would close it, is not set on these releases.
        options.append(("MetricsType", "metrics/openmetrics"))
    if kinds := gres_types(settings.design, lines):
        options.append(("GresTypes", ",".join(kinds)))
    return options


def _accounting(settings: Settings, lines: Lines) -> Options:
    folders = Folders(settings)
    if not settings.design.slurm.accounting:
        # The line is needed, because distributions differ in the default.
        return [("AccountingStorageType", "accounting_storage/none")]
    options: Options = [("AccountingStorageType", "accounting_storage/slurmdbd")]
    # Every user has an account (`node.accounting.enrolment`), but for an owner whom sacctmgr cannot name.
    if not folders.process or can_name(settings.site.user):
        options.append(("AccountingStorageEnforce", "associations,limits,qos"))
    options.append(("AccountingStorageHost", settings.site.controller_address))
    options.append(("AccountingStoragePort", settings.site.slurmdbd_port))
    if folders.process:
        # With munge this "password" is the path of munge's socket.
        options.append(("AccountingStoragePass", folders.munge_socket))
    if kinds := counted_gres(settings.design, lines):
        options.append(("AccountingStorageTRES", ",".join(f"gres/{kind}" for kind in kinds)))
    return options


def _features(partition: Partition, hardware: Hardware) -> str:
    """Return a node's features. The stack file's are no hardware: a node that is up has new ones at once."""
    return ",".join(dict.fromkeys((*hardware.features, *partition.features)))


def _node_runs(
    settings: Settings, partition: Partition, lines: Lines
) -> Iterator[tuple[list[str], Hardware, int]]:
    """Yield neighbours with the same hardware and the same weight."""
    static, every = partition.static_nodes(), partition.nodes()
    # Slurm prefers nodes of low weight. Static nodes run anyway, dynamic nodes cost extra money, and a
    # partition's pools have weights in the order in which they are wanted.
    for members, weight in ((static, 1), (every[len(static) :], partition.weight)):
        for group, hardware in lines.groups(members, Hardware.of(partition)):
            yield group, hardware, weight


def _node_lines(
    settings: Settings, partition: Partition, lines: Lines, kept: runtime.Kept, version: Version
) -> Iterator[str]:
    ports, addresses = slurmd_ports(settings), slurmd_addresses(settings)
    # Otherwise a job would get a later pool as soon as some node of the first one is up.
    alone = partition.pool is not None and traits(version).lines_rank
    for nodes, hardware, weight, changes in (
        (run, hardware, weight, changes)
        for group, hardware, weight in _node_runs(settings, partition, lines)
        for members, changes in kept.groups(group)
        for run in ([[node] for node in members] if alone else port_blocks.block_runs(members, ports))
    ):
        options: Options = [("NodeName", fold(nodes))]
        if Folders(settings).process:
            first, last = ports[nodes[0]], ports[nodes[-1]]
            options += [
                *reached_at([addresses[node] for node in nodes if node in addresses]),
                ("Port", span(first, last)),
            ]
        options += [("CPUs", hardware.cpus), *hardware.topology(), ("RealMemory", hardware.memory_mib)]
        if hardware.tmp_disk_mib:
            options.append(("TmpDisk", hardware.tmp_disk_mib))
        if hardware.accelerator is not None:
            options.append(("Gres", node_gres(hardware.accelerator)))
        if features := changes.get("Feature", _features(partition, hardware)):
            options.append(("Feature", features))
        if bind := changes.get("CpuBind"):
            options.append(("CpuBind", bind))
        options += [("Weight", changes.get("Weight", weight)), ("State", "CLOUD")]
        yield _line(options)


def _partition_options(design: ClusterDesign, name: str) -> Options:
    """Return the options of one of Slurm's partitions, which all of its pools share but for the nodes."""
    pools, partition = design.pools_of(name), design.terms()[name]
    options = [
        ("PartitionName", name),
        ("Nodes", fold([node for pool in pools for node in pool.nodes()])),
        ("Default", "YES" if partition.default else "NO"),
        ("MaxTime", partition.time_limit),
        ("OverSubscribe", "EXCLUSIVE" if partition.exclusive else "NO"),
        # Otherwise a job that requests no memory would get all memory of its node.
        ("DefMemPerCPU", min(pool.memory_mib // pool.cpus for pool in pools)),
        *sharing_conf.of_partition(design, partition),
        ("State", "UP"),
    ]
    excluded = {name for key in partition.settings for name in own_settings.EXCLUDED.get(key, ())}
    kept = [(key, value) for key, value in options if key not in excluded]
    return runtime.replaced(kept, partition.settings.items())


def _partition(design: ClusterDesign, name: str, in_service: bool, kept: runtime.Kept) -> str:
    changes = runtime.lines(kept.partitions.get(name, {}))
    own = [(key, own_settings.spelled(value)) for key, value in design.terms()[name].settings.items()]
    options = runtime.replaced(runtime.replaced(_partition_options(design, name), own), changes)
    if not in_service:
        options = runtime.replaced(options, [("State", "DOWN")])
    return " ".join(f"{key}={value}" for key, value in options)


def _own_partitions(design: ClusterDesign, lines: Lines, kept: runtime.Kept) -> Iterator[str]:
    """Yield the partitions that people have created. None may start a job where the stack file's may not."""
    closed = {node for p in design.partitions if p.slurm_name in lines.closed for node in p.nodes()}
    for name, fields in kept.own.items():
        options: Options = [
            ("PartitionName", runtime.spelled(name)),
            *runtime.lines({**fields, "State": fields.get("State", "UP")}),
        ]
        if not closed.isdisjoint(expand(fields.get("Nodes", ""))):
            options = runtime.replaced(options, [("State", "DOWN")])
        yield " ".join(f"{key}={value}" for key, value in options)


def gres_types(design: ClusterDesign, lines: Lines) -> list[str]:
    """Return the names of the generic resources in use, for `GresTypes`."""
    return sorted({accelerator.resource for accelerator in lines.accelerators(design)})


def counted_gres(design: ClusterDesign, lines: Lines) -> list[str]:
    """Return the generic resources that limits can name: `gpu`, and each type of it, as `gpu:v100`."""
    types = {f"{accelerator.resource}:{accelerator.type}" for accelerator in lines.accelerators(design)}
    return sorted({*gres_types(design, lines), *types})


def node_gres(accelerator: Accelerator) -> str:
    """Return the resource in the notation of a node line: `gpu:v100:8`."""
    return f"{accelerator.resource}:{accelerator.type}:{accelerator.units}"


def gres_conf(design: ClusterDesign, lines: Lines) -> list[str]:
    """Return the lines of gres.conf. Each is for nodes of one partition with accelerators."""
    result: list[str] = []
    for partition in design.partitions:
        for group, hardware in lines.groups(partition.nodes(), Hardware.of(partition)):
            if (accelerator := hardware.accelerator) is None:
                continue
            nodes = fold(group)
            kind = f"Name={accelerator.resource} Type={accelerator.type}"
            # NeuronCores have no File=: Slurm would then forbid jobs the device files that they share. A
            # process takes as many free cores as NEURON_RT_NUM_CORES says, and no other process gets these.
            what = f"Count={accelerator.units}" if accelerator.cores else f"File={device_files(accelerator)}"
            result.append(f"NodeName={nodes} {kind} {what}")
    return result


def _cgroup(settings: Settings, version: Version) -> Options:
    if not _cgroups(settings):
        return [("CgroupPlugin", traits(version).cgroup_off)]
    real = any(p.accelerator is not None and not p.accelerator.simulated for p in settings.design.partitions)
    options: Options = [
        *_hierarchies(settings),
        ("ConstrainCores", "yes" if _own_cores(settings) else "no"),
        ("ConstrainRAMSpace", "yes"),
        # A job sees only its allocated GPUs. Simulated ones are the container's devices, which jobs need.
        ("ConstrainDevices", "yes" if real else "no"),
    ]
    return options


def _hierarchies(settings: Settings) -> Options:
    """Return the cgroup plugin.

    On a host with cgroups version 1, a container's are not at systemd's mount point.
    """
    if mountpoint := settings.site.cgroups:
        return [("CgroupPlugin", "cgroup/v1"), ("CgroupMountpoint", mountpoint)]
    return [("CgroupPlugin", "autodetect")]
