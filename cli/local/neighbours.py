"""Who shares this host's CPU cores with a local cluster, in words.

A local node has its type's number of cores (`localcloud/cores.py`). Where no core is free, nodes share some:
nodes of one cluster, of other checkouts, or of other users.
"""

from __future__ import annotations

import os
import pwd
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from cli.doctor.finding import Finding, fine, warns
from cli.local.run_directory import RunDirectory
from infra.config.advice import too_few_cores
from infra.errors import UserError
from infra.program.stack import Stack
from localcloud.cores import Use, in_words, uses
from node import plurals

if TYPE_CHECKING:
    from node.model import BenchmarkDesign, ClusterDesign


def by_others(stack: Stack, seen: Sequence[Use] | None = None) -> list[str]:
    """Return a phrase for each other cluster that has nodes on this host's cores.

    Args:
        seen: who uses the cores; `None` means to look.
    """
    found: dict[tuple[int, str, str], set[int]] = {}
    for use in uses() if seen is None else seen:
        if not _own(stack, use):
            found.setdefault((use.owner, use.run, use.cluster), set()).add(use.core)
    return [
        f"cluster {cluster} of {_whose(owner)} has nodes on {_cores(cores)}"
        for (owner, _, cluster), cores in sorted(found.items())
    ]


def found(stack: Stack, cluster: ClusterDesign, training: BenchmarkDesign | None) -> Iterable[Finding]:
    """The doctor's check: which nodes share cores now, and whether the benchmark's will."""
    seen, have = uses(), len(os.sched_getaffinity(0))
    others = by_others(stack, seen)
    load = Counter[int]()
    for use in seen:
        load[use.core] += use.machines
    own = sorted({use.core for use in seen if _own(stack, use) and load[use.core] > 1})
    named = f"; {'; '.join(others)}" if others else ""
    if own:
        yield warns(
            "cores.shared",
            f"nodes that are up share {_cores(own)}{named}",
            "Times of jobs tell nothing of more nodes meanwhile: use fewer nodes"
            f"{', or wait for the other clusters' if others else ''}.",
        )
    elif others:
        yield warns(
            "cores.shared",
            "; ".join(others),
            "Nodes of this stack share cores with them where none is free: `run` when they are down.",
        )
    if training is not None:
        text = too_few_cores(cluster.partition(training.partition), training.nodes, have)
        if text is not None:
            yield warns("cores.benchmark", text, "Lower benchmark.nodes, or take a type of fewer CPUs.")
            return
    if not own and not others:
        yield fine("cores.free", f"{plurals.count(have, 'core')}, and no node shares one")


def _own(stack: Stack, use: Use) -> bool:
    try:
        name = RunDirectory.of(stack).path.name
    except (UserError, OSError):  # no folder, no nodes
        return False
    return (use.owner, use.run) == (os.getuid(), name[:24])


def _whose(owner: int) -> str:
    if owner == os.getuid():
        return "yours"
    try:
        return f"user {pwd.getpwuid(owner).pw_name}"
    except KeyError:
        return f"user {owner}"


def _cores(cores: Iterable[int]) -> str:
    numbers = sorted(cores)
    return f"core{'s' if len(numbers) > 1 else ''} {in_words(numbers)}"
