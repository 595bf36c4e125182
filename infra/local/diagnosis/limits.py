"""Memory, and the kernel's limits, against what the cluster's processes need.

Measured (Slurm 22.05, TensorFlow on two cores): an idle node is two processes of one thread each and 12 MiB;
a job on it adds about ten threads; a worker of the training has 110 threads, 0.8 GiB, and reserves 3.3 GiB of
addresses; the controller and the local cloud's agent have 25 threads and 40 MiB, slurmdbd and MariaDB another
16 and 90. With fewer threads than are counted here Slurm's daemons ended as they started, or jobs on that
many nodes did not start.
"""

from __future__ import annotations

import resource
from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from infra.doctor.finding import Finding, fine, stops, warns
from infra.local.diagnosis.host import Host

if TYPE_CHECKING:
    from infra.node.model import BenchmarkDesign, ClusterDesign

HEAD_MIB, ACCOUNTING_MIB, NODE_MIB, WORKER_MIB = 60, 90, 12, 1000
HEAD_THREADS, ACCOUNTING_THREADS, NODE_THREADS, WORKER_THREADS = 40, 20, 12, 110
HEAD_FILES, NODE_FILES = 32, 2
"""srun holds a connection or two to each node of its job; with 24 it could not reach 20 nodes."""
CPU_THREADS = 4
"""More threads of a worker for each core beyond the two on which they were counted."""
WORKER_ADDRESS_MIB = 3500


def memory(host: Host, design: ClusterDesign, trained: BenchmarkDesign | None) -> Iterable[Finding]:
    """Memory that is free, here and in this container, against the cluster and its training."""
    workers = trained.nodes if trained else 0
    head = HEAD_MIB + (ACCOUNTING_MIB if design.slurm.accounting else 0)
    needed = head + workers * (NODE_MIB + WORKER_MIB)
    free, where = _free_mib(host)
    if free is None:
        yield warns("memory.free", "/proc/meminfo says nothing of MemAvailable", "See `free -m`.")
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
            f"{free} MiB are free{where}; all {_nodes(design)} nodes at once take {every} MiB without jobs",
            "Lower nodes.max in the stack file.",
        )


def _what(workers: int) -> str:
    return f"the cluster with a training on {workers}" if workers else "the cluster"


def _nodes(design: ClusterDesign) -> int:
    return sum(partition.max for partition in design.partitions)


def _free_mib(host: Host) -> tuple[int | None, str]:
    """What may still be used, and where the bound comes from if it is not the machine's."""
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
    """(limit, use) of this process's control groups and of those above them."""
    old = {"memory.max": "memory.limit_in_bytes", "memory.current": "memory.usage_in_bytes"}
    for line in (host.text("/proc/self/cgroup") or "").splitlines():
        _, controllers, group = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        base = f"/sys/fs/cgroup/{controller}" if controllers else "/sys/fs/cgroup"
        names = tuple(old.get(name, name) for name in files) if controllers else files
        path = PurePosixPath(group)
        # A container may see its own group as the root of all.
        for folder in (path, *path.parents):
            limit, use = (host.number(f"{base}{folder}/{name}") for name in names)
            yield limit, use


def processes(host: Host, design: ClusterDesign, trained: BenchmarkDesign | None) -> Iterable[Finding]:
    """Processes and threads: of this user, of the container, of the machine."""
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
            f"{name} leaves {free} threads; jobs on all {_nodes(design)} nodes at once take about {every}",
            cure,
        )


def _bounds(host: Host) -> Iterator[tuple[str, int, str]]:
    """(what limits, how many more threads it allows, what raises it)."""
    mine, total = _threads(host)
    limit = host.limit(resource.RLIMIT_NPROC)
    # The kernel exempts root.
    if limit is not None and host.uid != 0:
        yield (
            f"ulimit -u ({limit})",
            limit - mine,
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
    """Threads of this user's, and of all."""
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
    """Open files of one process: srun has connections to all nodes of its job."""
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
            "files.open", f"{text}, and a job on all {largest} nodes of a partition needs {needed}", cure
        )


def sizes(host: Host, trained: BenchmarkDesign | None) -> Iterable[Finding]:
    """Limits on a process's memory and on a file's size, which jobs inherit."""
    address = host.limit(resource.RLIMIT_AS)
    if trained is not None and address is not None and address < WORKER_ADDRESS_MIB * 2**20:
        yield stops(
            "memory.address",
            f"ulimit -v is {address // 1024} KiB, and TensorFlow reserves about {WORKER_ADDRESS_MIB} MiB",
            "Raise it in this shell: ulimit -v unlimited",
        )
    largest = host.limit(resource.RLIMIT_FSIZE)
    if largest is not None and largest < 2**30:
        yield warns(
            "files.size",
            f"ulimit -f allows files of {largest // 2**20} MiB; libraries and logs may be larger",
            "Raise it in this shell: ulimit -f unlimited",
        )
