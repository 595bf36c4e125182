"""Checks of memory and of the kernel's limits, compared with what the cluster's processes need.

The figures were measured with Slurm 22.05 and TensorFlow on two cores. An idle node has two processes of one
thread each and takes 12 MiB. A job on it adds about ten threads. A worker of the training has 110 threads,
takes 0.8 GiB, and reserves 3.3 GiB of addresses. The controller and the local cloud's agent have 25 threads
and take 40 MiB; slurmdbd and MariaDB have another 16 threads and take 90 MiB. With fewer threads than counted
here, Slurm's daemons ended at their start, or jobs on that many nodes did not start.
"""

from __future__ import annotations

import resource
from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from cli.doctor.finding import Finding, fine, stops, warns
from cli.local.diagnosis.host import Host
from node import plurals

if TYPE_CHECKING:
    from node.model import BenchmarkDesign, ClusterDesign

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
