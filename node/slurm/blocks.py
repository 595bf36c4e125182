"""Assigns the consecutive ports of a process cluster to its nodes, stable over changes. The code is pure.

Ports are counted from 0 here. A partition has blocks of ports with room to grow, and keeps them as long as it
exists. So a node keeps its port, and its jobs go on, when other partitions are added, grow or are removed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from node.model import Partition

BLOCK = 64
Blocks = dict[str, tuple[tuple[int, int], ...]]
"""Partition -> its blocks. A block is its first number (from 0) and its size."""


def lay_out(partitions: Sequence[Partition], before: Blocks) -> Blocks:
    """Returns the blocks of all partitions: their present ones, and the first free ones if they need more."""
    found = {p.name: list(before.get(p.name, ())) for p in partitions}
    for partition in partitions:
        mine = found[partition.name]
        missing = partition.max - sum(count for _, count in mine)
        if missing > 0:
            size = -(-missing // BLOCK) * BLOCK
            taken = sorted(block for blocks in found.values() for block in blocks)
            mine.append((_gap(taken, size), size))
    return {name: tuple(some) for name, some in found.items()}


def _gap(taken: Sequence[tuple[int, int]], size: int) -> int:
    free = 0
    for first, count in taken:
        if first - free >= size:
            break
        free = max(free, first + count)
    return free


def needed(blocks: Blocks) -> int:
    """The number of ports up to the end of the last block."""
    return max((first + count for some in blocks.values() for first, count in some), default=0)


def numbers(partition: Partition, blocks: Blocks) -> dict[str, int]:
    """Node -> its number, from 0."""
    mine = (number for first, count in blocks[partition.name] for number in range(first, first + count))
    return dict(zip(partition.nodes(), mine, strict=False))


def runs(nodes: Sequence[str], ports: Mapping[str, int]) -> Iterator[list[str]]:
    """Groups neighbours whose ports are consecutive or equal. Each group is a line of slurm.conf."""
    run: list[str] = []
    for node in nodes:
        if run and ports[node] - ports[run[-1]] not in (0, 1):
            yield run
            run = []
        run.append(node)
    if run:
        yield run


def parse(kept: Mapping[str, Any]) -> Blocks:
    """Returns blocks from JSON, which has lists instead of tuples."""
    return {name: tuple((first, count) for first, count in some) for name, some in kept.items()}
