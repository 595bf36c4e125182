"""Checks of this machine: memory, the kernel's limits, loopback, names, ports and clock."""

from __future__ import annotations

import os
import resource
import shutil
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from cli.findings import Finding, Severity, fine, from_error, from_message, stops, warns
from infra.errors import UserError
from localcloud.addresses import first_node_address, planned_block
from node.design.model import ClusterDesign
from node.slurm.addressing import ports_needed
from node.system import plurals, ports
from operations import programs
from operations.local import loopback
from operations.local import namespaces as names_of_nodes
from operations.local.run_directory import FIRST_PORT, LAST_PORT, RunDirectory

if TYPE_CHECKING:
    from node.design.model import BenchmarkDesign, ClusterDesign

COMMAND_SECONDS = 15.0


def _run(argv: Sequence[str]) -> tuple[int, str]:
    """Run a short command. Returns its exit status (127 if it cannot run) and its output."""
    done = programs.capture(argv, seconds=COMMAND_SECONDS, merged=True)
    status = programs.CANNOT_RUN if done.status == programs.TIMED_OUT else done.status
    return status, (done.out or done.err).strip()


@dataclass(frozen=True, slots=True)
class Host:
    """The source of facts; tests pass their own.

    Attributes:
        root: The folder below which /proc, /sys and /etc are read.
        limit: Returns the soft limit of a resource (`resource.RLIMIT_…`), `None` if it has no limit.
    """

    root: Path = Path("/")
    uid: int = field(default_factory=os.getuid)
    cpus: int = field(default_factory=lambda: os.cpu_count() or 1)
    run: Callable[[Sequence[str]], tuple[int, str]] = _run
    which: Callable[..., str | None] = shutil.which
    limit: Callable[[int], int | None] = lambda kind: (
        None if (soft := resource.getrlimit(kind)[0]) == resource.RLIM_INFINITY else soft
    )

    def text(self, path: str) -> str | None:
        """Return a file's text; `None` if it cannot be read."""
        try:
            return (self.root / path.lstrip("/")).read_text(errors="replace")
        except OSError:
            return None

    def number(self, path: str) -> int | None:
        """Return the number in a file; `None` if it holds none (`max`) or is missing."""
        text = (self.text(path) or "").strip()
        return int(text) if text.isdigit() else None

    def processes(self) -> list[int]:
        """Return the pids of all processes."""
        try:
            return [int(name) for name in os.listdir(self.root / "proc") if name.isdigit()]  # noqa: PTH208
        except OSError:
            return []


# Checks of memory and of the kernel's limits, compared with what the cluster's processes need.
#
# The figures were measured with Slurm 22.05 and TensorFlow on two cores. An idle node has two processes of
# one thread each and takes 12 MiB. A job on it adds about ten threads. A worker of the training has 110
# threads, takes 0.8 GiB, and reserves 3.3 GiB of addresses. The controller and the local cloud's agent have
# 25 threads and take 40 MiB; slurmdbd and MariaDB have another 16 threads and take 70 MiB, and up to 90 when
# MariaDB's buffer pool is full. With fewer threads than counted here, Slurm's daemons ended at their start,
# or jobs on that many nodes did not start.

HEAD_MIB, ACCOUNTING_MIB, NODE_MIB, WORKER_MIB = 60, 90, 12, 1000
HEAD_THREADS, ACCOUNTING_THREADS, NODE_THREADS, WORKER_THREADS = 40, 20, 12, 110
HEAD_FILES, NODE_FILES = 32, 2
"""srun has one or two connections to each node of its job; with 24 files it could not reach 20 nodes."""
CPU_THREADS = 4
"""Further threads of a worker for each core beyond the two with which it was measured."""
WORKER_ADDRESS_MIB = 3500


def memory(host: Host, design: ClusterDesign, trained: BenchmarkDesign | None) -> Iterable[Finding]:
    """Check that the machine and its container have enough free memory for the cluster and its training."""
    workers = trained.nodes if trained else 0
    head = HEAD_MIB + (ACCOUNTING_MIB if design.slurm.accounting else 0)
    needed = head + workers * (NODE_MIB + WORKER_MIB)
    free, where = _free_mib(host)
    if free is None:
        yield warns("memory.free", "/proc/meminfo has no MemAvailable", "See `free -m`.")
        return
    every = head + NODE_MIB * _nodes(design)
    cure = "End other programs"
    cure += "; or train on fewer nodes (slurm-stacks:benchmark: nodes)." if workers > 1 else "."
    text = f"{free} MiB are free{where}; {_what(workers)} takes about {needed} MiB"
    if free < needed // 2:
        yield stops("memory.free", text, cure)
    elif free < needed:
        yield warns("memory.free", text, cure)
    else:
        yield fine("memory.free", text)
    if free < every:
        yield warns(
            "memory.nodes",
            f"{free} MiB are free{where}; {_every(design)} at once take {every} MiB without jobs",
            "Lower nodes.max in the stack file.",
        )


def _what(workers: int) -> str:
    return f"the cluster with a training on {workers}" if workers else "the cluster"


def _nodes(design: ClusterDesign) -> int:
    return sum(partition.max for partition in design.partitions)


def _every(design: ClusterDesign) -> str:
    """Return the words for all nodes, such as "all 4 nodes"."""
    nodes = _nodes(design)
    return plurals.count(nodes, "node") if nodes == 1 else f"all {nodes} nodes"


def _free_mib(host: Host) -> tuple[int | None, str]:
    """Return the free memory in MiB, and the words for its limit if that is not the machine's."""
    sizes = {}
    for line in (host.text("/proc/meminfo") or "").splitlines():
        name, _, value = line.partition(":")
        if value.split():
            sizes[name] = int(value.split()[0]) // 1024
    if "MemAvailable" not in sizes:
        return None, ""
    free, where = sizes["MemAvailable"] + sizes.get("SwapFree", 0), ""
    for most, used in _groups(host, "memory", ("memory.max", "memory.current")):
        if most is not None and used is not None and (most - used) // 2**20 < free:
            free, where = max(0, (most - used) // 2**20), " in this container"
    return free, where


def _groups(host: Host, controller: str, files: tuple[str, str]) -> Iterator[tuple[int | None, int | None]]:
    """Yield (limit, use) of this process's cgroups and of the cgroups above them."""
    old = {"memory.max": "memory.limit_in_bytes", "memory.current": "memory.usage_in_bytes"}
    for line in (host.text("/proc/self/cgroup") or "").splitlines():
        _, controllers, group = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        base = f"/sys/fs/cgroup/{controller}" if controllers else "/sys/fs/cgroup"
        names = tuple(old.get(name, name) for name in files) if controllers else files
        path = PurePosixPath(group)
        # A container may see its own cgroup as the root.
        for folder in (path, *path.parents):
            limit, use = (host.number(f"{base}{folder}/{name}") for name in names)
            yield limit, use


def processes(host: Host, design: ClusterDesign, trained: BenchmarkDesign | None) -> Iterable[Finding]:
    """Check the limits on processes and threads: the user's, the container's, and the machine's."""
    workers = trained.nodes if trained else 0
    each = NODE_THREADS + WORKER_THREADS + CPU_THREADS * max(0, host.cpus - 2)
    head = HEAD_THREADS + (ACCOUNTING_THREADS if design.slurm.accounting else 0)
    needed = head + workers * each
    every = head + NODE_THREADS * _nodes(design)
    bounds = list(_bounds(host))
    least = min(bounds, key=lambda bound: bound[1], default=None)
    if least is None:
        yield fine("processes.free", "no limit")
        return
    name, free, cure = least
    text = f"{name} leaves {free} threads; {_what(workers)} takes about {needed}"
    if free < needed:
        yield stops("processes.free", text, cure)
    else:
        yield fine("processes.free", text)
    if needed <= free < every:
        yield warns(
            "processes.nodes",
            f"{name} leaves {free} threads; jobs on {_every(design)} at once take about {every}",
            cure,
        )


def _bounds(host: Host) -> Iterator[tuple[str, int, str]]:
    """Yield (name of the limit, threads that it still allows, how to raise it)."""
    threads, total = _threads(host)
    limit = host.limit(resource.RLIMIT_NPROC)
    # The kernel exempts root.
    if limit is not None and host.uid != 0:
        yield (
            f"ulimit -u ({limit})",
            limit - threads,
            "Raise it in this shell, `ulimit -u unlimited`, or as root in /etc/security/limits.conf.",
        )
    for most, used in _groups(host, "pids", ("pids.max", "pids.current")):
        if most is not None and used is not None:
            yield (
                f"the container's pids.max ({most})",
                most - used,
                "Start the container with a higher limit (docker: --pids-limit).",
            )
    for file in ("pid_max", "threads-max"):
        if (most := host.number(f"/proc/sys/kernel/{file}")) is not None:
            yield f"kernel.{file} ({most})", most - total, f"As root: sysctl -w kernel.{file}={2 * most}"


def _threads(host: Host) -> tuple[int, int]:
    """Return the number of this user's threads, and of all threads."""
    mine = total = 0
    for pid in host.processes():
        status = host.text(f"/proc/{pid}/status") or ""
        fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
        count = int(fields.get("Threads", "0"))
        total += count
        if fields.get("Uid", "").split()[:1] == [str(host.uid)]:
            mine += count
    return mine, total


def files(host: Host, design: ClusterDesign) -> Iterable[Finding]:
    """Check the limit on open files of a process: srun has connections to all nodes of its job."""
    limit = host.limit(resource.RLIMIT_NOFILE)
    largest = max((partition.max for partition in design.partitions), default=0)
    needed = HEAD_FILES + NODE_FILES * largest
    if limit is None or limit >= needed:
        yield fine("files.open", f"ulimit -n is {'unlimited' if limit is None else limit}")
        return
    cure = f"Raise it in this shell: ulimit -n {max(1024, needed)}"
    text = f"ulimit -n is {limit}"
    if limit < HEAD_FILES:
        yield stops("files.open", f"{text}, and the cluster's daemons need {HEAD_FILES}", cure)
    else:
        yield warns(
            "files.open",
            f"{text}, and a job on {plurals.count(largest, 'node')} of a partition needs {needed}",
            cure,
        )


def addresses(host: Host, trained: BenchmarkDesign | None) -> Iterable[Finding]:
    """Check the limit on a process's addresses, which jobs inherit."""
    address = host.limit(resource.RLIMIT_AS)
    if trained is not None and address is not None and address < WORKER_ADDRESS_MIB * 2**20:
        yield stops(
            "memory.address",
            f"ulimit -v is {address // 1024} KiB, and TensorFlow reserves about {WORKER_ADDRESS_MIB} MiB",
            "Raise it in this shell: ulimit -v unlimited",
        )


# Checks of this machine's loopback, names, ports and clock. They contact no other machine.

DAY = 86400.0


def answers(*, boots: bool) -> Iterable[Finding]:
    """Check a connection over 127.0.0.1, which the whole cluster uses, and how Slurm looks addresses up.

    Args:
        boots: Whether machines are containers, which have a network and a Slurm of their own.
    """
    if (problem := loopback.is_silent() if boots else loopback.loopback_problem()) is not None:
        yield stops("network.loopback", *problem)
        return
    yield fine("network.loopback", "127.0.0.1 answers")


def names(host: Host, name: str | None = None) -> Iterable[Finding]:
    """Check that /etc/hosts has `localhost` and this host's name: another lookup may take seconds.

    Args:
        name: This host's name.
    """
    name = name or socket.gethostname()
    table: dict[str, list[str]] = {}
    for line in (host.text("/etc/hosts") or "").splitlines():
        address, *aliases = line.partition("#")[0].split() or [""]
        for alias in aliases:
            table.setdefault(alias.lower(), []).append(address)
    if "127.0.0.1" not in table.get("localhost", []):
        yield warns(
            "network.localhost",
            "/etc/hosts does not say that localhost is 127.0.0.1",
            "As root: echo '127.0.0.1 localhost' >>/etc/hosts",
        )
    sources = next(
        (s for s in (host.text("/etc/nsswitch.conf") or "").splitlines() if s.startswith("hosts:")), ""
    )
    if name.lower() not in table and "myhostname" not in sources:
        yield warns(
            "network.hostname",
            f"/etc/hosts does not have this host's name, {name}: Slurm's programs look it up elsewhere, and "
            "may wait for the answer",
            f"As root: echo '127.0.1.1 {name}' >>/etc/hosts",
        )


def node_names(
    run: RunDirectory, problem: Callable[[str], str | None] = names_of_nodes.unsupported_reason
) -> Iterable[Finding]:
    """Check whether nodes will know each other by name, and have a /tmp of their own.

    Args:
        problem: Returns the reason why they will not, for a block of addresses.
    """
    first = planned_block(run.path)
    if (sentence := problem(first)) is None:
        yield fine(
            "network.node_names",
            f"nodes know each other by name, with addresses from {first_node_address(first)} on, and each "
            "has a /tmp of its own",
        )
        return
    yield from_message("network.node_names", Severity.WARNS, sentence)


def slurm_folder(problem: Callable[[], str | None] = names_of_nodes.no_slurm_folder) -> Iterable[Finding]:
    """Check whether programs that remove SLURM_CONF from their environment will find the cluster."""
    if (sentence := problem()) is not None:
        yield from_message("slurm.folder", Severity.WARNS, sentence)


def free_ports(host: Host, run: RunDirectory, design: ClusterDesign) -> Iterable[Finding]:
    """Check that there are enough free ports in a row; a cluster that is up has its ports already."""
    count = 1 + ports_needed(design)
    kept = run.kept_ports()
    if kept is not None and kept[1] >= count and not ports.free(kept[0]):
        yield fine("ports.free", f"this cluster has those from {kept[0]} to {kept[0] + kept[1] - 1}")
    else:
        try:
            base = run.free_ports(count)
        except UserError as error:
            yield from_error("ports.free", error)
            return
        yield fine("ports.free", f"{count} in a row are free, from {base} on")
    span = (host.text("/proc/sys/net/ipv4/ip_local_port_range") or "").split()
    if len(span) == 2 and int(span[0]) <= LAST_PORT and int(span[1]) >= FIRST_PORT:
        yield warns(
            "ports.outgoing",
            f"the kernel takes ports from {span[0]} to {span[1]} for outgoing connections, the cluster's "
            f"({FIRST_PORT} to {LAST_PORT}) among them: one may be taken just when a node starts",
            'As root: sysctl -w net.ipv4.ip_local_port_range="32768 60999"',
        )


def clock(project: Path, now: float | None = None) -> Iterable[Finding]:
    """Check the clock: if it is wrong, munge refuses credentials and downloads fail.

    Args:
        now: The time in seconds since the epoch; `None` means the machine's clock.
    """
    now = time.time() if now is None else now
    newest = max((project / name).stat().st_mtime for name in ("cluster", "uv.lock", "Pulumi.yaml"))
    if now < newest - DAY:
        yield warns(
            "clock.time",
            f"it says {time.strftime('%F %R', time.gmtime(now))} UTC, and the project's files are of "
            f"{time.strftime('%F', time.gmtime(newest))}",
            "Set the clock (as root: timedatectl set-ntp true).",
        )
    else:
        yield fine("clock.time", time.strftime("%F %R UTC", time.gmtime(now)))
