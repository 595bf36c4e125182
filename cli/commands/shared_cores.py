"""Which runs' nodes have no cores of their own, and beside whom: in words, for `plan`, `up` and `run`.

A cloud's node is a machine of its own. A local node has its type's number of this host's cores, and shares
them where none is free (`localcloud/cores.py`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cli.commands.report.runs import MUCH
from cli.providers.interface import SharesCores
from infra.config.advice import too_few_cores
from infra.program.stack import Stack

if TYPE_CHECKING:
    from node.design.model import BenchmarkDesign, ClusterDesign


def of_benchmark(provider: object, stack: Stack, training: BenchmarkDesign | None) -> list[str]:
    """Return a warning for each other cluster with which the benchmark's nodes share cores."""
    if training is None:
        return []
    return [f"benchmark: {text}, and shares them with its nodes" for text in _beside(provider, stack)]


def of_runs(
    provider: object,
    stack: Stack,
    cluster: ClusterDesign,
    runs: Iterable[tuple[str, int]],
) -> list[str]:
    """Return a sentence for whatever makes nodes of runs share cores: too few of them, or other clusters.

    Args:
        runs: The partition and the number of nodes of each run.
    """
    have = own_cores()
    if not isinstance(provider, SharesCores) or have is None:
        return []
    few = (too_few_cores(cluster.partition(name), nodes, have) for name, nodes in dict.fromkeys(runs))
    beside = _beside(provider, stack)
    return [text for text in few if text is not None] + [f"{text}: both share them" for text in beside]


def after(provider: object, stack: Stack, records: Iterable[Mapping[str, Any]]) -> str | None:
    """Name the clusters beside which runs that were not alone on their cores may have run.

    `None` if all were alone, or if no other cluster has nodes now.

    Args:
        records: The runs' results.
    """
    if all(
        not record.get("cores_shared") and (record.get("cores_others") or 0.0) < MUCH for record in records
    ):
        return None
    return f"At present {'; '.join(beside)}" if (beside := _beside(provider, stack)) else None


def own_cores() -> int | None:
    """Return how many CPU cores this process may use; `None` where the system does not say, as on macOS."""
    affinity = getattr(os, "sched_getaffinity", None)
    return None if affinity is None else len(affinity(0))


def _beside(provider: object, stack: Stack) -> Sequence[str]:
    return provider.neighbours(stack) if isinstance(provider, SharesCores) else ()
