"""Checks of this machine: memory, loopback and ports."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from cli.findings import Finding, fine, from_error, stops
from infra.errors import UserError
from node.design.model import ClusterDesign
from node.slurm.addressing import ports_needed
from node.system import ports
from operations import programs
from operations.local import loopback
from operations.local.run_directory import RunDirectory

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
        which: Finds a program in PATH.
    """

    root: Path = Path("/")
    uid: int = field(default_factory=os.getuid)
    run: Callable[[Sequence[str]], tuple[int, str]] = _run
    which: Callable[..., str | None] = shutil.which

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


HEAD_MIB, ACCOUNTING_MIB, NODE_MIB, WORKER_MIB = 60, 90, 12, 1000
"""What the controller and the local cloud's agent take, slurmdbd and MariaDB, an idle node, and a worker of
the training, as measured with Slurm 22.05 and TensorFlow on two cores."""


def memory(host: Host, design: ClusterDesign, trained: BenchmarkDesign | None) -> Iterable[Finding]:
    """Check that the machine and its container have enough free memory for the cluster and its training."""
    workers = trained.nodes if trained else 0
    head = HEAD_MIB + (ACCOUNTING_MIB if design.slurm.accounting else 0)
    needed = head + workers * (NODE_MIB + WORKER_MIB)
    free, where = _free_mib(host)
    if free is None:
        return
    what = f"the cluster with a training on {workers}" if workers else "the cluster"
    text = f"{free} MiB are free{where}; {what} takes about {needed} MiB"
    if free < needed // 2:
        cure = "End other programs"
        cure += "; or train on fewer nodes (slurm-stacks:benchmark: nodes)." if workers > 1 else "."
        yield stops("memory.free", text, cure)
    else:
        yield fine("memory.free", text)


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


def answers(*, boots: bool) -> Iterable[Finding]:
    """Check a connection over 127.0.0.1, which the whole cluster uses, and how Slurm looks addresses up.

    Args:
        boots: Whether machines are containers, which have a network and a Slurm of their own.
    """
    if (problem := loopback.is_silent() if boots else loopback.loopback_problem()) is not None:
        yield stops("network.loopback", *problem)
        return
    yield fine("network.loopback", "127.0.0.1 answers")


def free_ports(run: RunDirectory, design: ClusterDesign) -> Iterable[Finding]:
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
