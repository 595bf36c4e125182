"""Arguments of Slurm's commands: lists of nodes, and changes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from node.slurm.hostlist import expand, fold

BATCH = 1500
"""The number of node names per command. The argument stays below the kernel's 128 KiB even if none folds."""


def batches(nodes: Iterable[str]) -> Iterator[str]:
    """Yields host lists in numeric order. Each of them fits into one argument."""
    names = expand(fold(nodes))
    for start in range(0, len(names), BATCH):
        yield fold(names[start : start + BATCH])


def pairs(changes: Mapping[str, str | None]) -> list[str]:
    """`Key=value` arguments without line breaks, because those would end the value in Slurm's listings."""
    return [f"{key}={' '.join(value.split())}" for key, value in changes.items() if value is not None]
