"""Assigns the consecutive ports of a process cluster to its nodes, stable over changes. The code is pure.

Ports are counted from 0 here. A partition has blocks of ports with room to grow, and keeps them as long as
it exists. So a node keeps its port, and its jobs go on, when other partitions are added, grow or are
removed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from node.design.model import Partition

BLOCK = 64
Blocks = dict[str, tuple[tuple[int, int], ...]]
"""Partition -> its blocks. A block is its first number (from 0) and its size."""


def lay_out_blocks(partitions: Sequence[Partition], before: Blocks) -> Blocks:
    """Return the blocks of all partitions: their present ones, and the first free ones if they need more."""
    blocks_of = {p.name: list(before.get(p.name, ())) for p in partitions}
    for partition in partitions:
        mine = blocks_of[partition.name]
        missing = partition.max - sum(count for _, count in mine)
        if missing > 0:
            size = -(-missing // BLOCK) * BLOCK
            taken = sorted(block for blocks in blocks_of.values() for block in blocks)
            mine.append((_gap(taken, size), size))
    return {name: tuple(parts) for name, parts in blocks_of.items()}


def _gap(taken: Sequence[tuple[int, int]], size: int) -> int:
    free = 0
    for first, count in taken:
        if first - free >= size:
            break
        free = max(free, first + count)
    return free


def ports_of_blocks(blocks: Blocks) -> int:
    """Return the number of ports up to the end of the last block."""
    return max((first + count for parts in blocks.values() for first, count in parts), default=0)


def block_numbers(partition: Partition, blocks: Blocks) -> dict[str, int]:
    """Return node -> its number, from 0."""
    numbers = (number for first, count in blocks[partition.name] for number in range(first, first + count))
    return dict(zip(partition.nodes(), numbers, strict=False))


def block_runs(nodes: Sequence[str], ports: Mapping[str, int]) -> Iterator[list[str]]:
    """Group neighbours whose ports are consecutive or equal. Each group is a line of slurm.conf."""
    run: list[str] = []
    for node in nodes:
        if run and ports[node] - ports[run[-1]] not in (0, 1):
            yield run
            run = []
        run.append(node)
    if run:
        yield run


def parse_blocks(kept: Mapping[str, Any]) -> Blocks:
    """Return blocks from JSON, which has lists instead of tuples."""
    return {name: tuple((first, count) for first, count in parts) for name, parts in kept.items()}
