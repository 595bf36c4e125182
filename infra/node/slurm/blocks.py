"""Which of a process cluster's consecutive ports each node has, through every change. Pure.

Ports count from 0 here. A partition has them in blocks, with room to grow, and keeps them as long as it is
there: the nodes of a partition that stays are reached where they were when others come, grow or go, and their
jobs go on.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from infra.node.model import Partition

BLOCK = 64
Blocks = dict[str, list[tuple[int, int]]]
"""Partition -> its blocks: the first number, from 0, and how many."""


def lay_out(partitions: Sequence[Partition], before: Mapping[str, list[tuple[int, int]]]) -> Blocks:
    """Blocks for all partitions: those that they have, and the first that are free where they need more."""
    found = {p.name: list(before.get(p.name, ())) for p in partitions}
    for partition in partitions:
        mine = found[partition.name]
        missing = partition.max - sum(count for _, count in mine)
        if missing > 0:
            size = -(-missing // BLOCK) * BLOCK
            taken = sorted(block for blocks in found.values() for block in blocks)
            mine.append((_gap(taken, size), size))
    return found


def _gap(taken: Sequence[tuple[int, int]], size: int) -> int:
    free = 0
    for first, count in taken:
        if first - free >= size:
            break
        free = max(free, first + count)
    return free


def needed(blocks: Mapping[str, list[tuple[int, int]]]) -> int:
    """How many numbers there are in all."""
    return max((first + count for some in blocks.values() for first, count in some), default=0)


def numbers(partition: Partition, blocks: Mapping[str, list[tuple[int, int]]]) -> dict[str, int]:
    """Node -> its number."""
    mine = (number for first, count in blocks[partition.name] for number in range(first, first + count))
    return dict(zip(partition.nodes(), mine, strict=False))


def runs(nodes: Sequence[str], ports: Mapping[str, int]) -> Iterator[list[str]]:
    """Neighbours whose ports follow each other, or are the same: a line of slurm.conf each."""
    run: list[str] = []
    for node in nodes:
        if run and ports[node] - ports[run[-1]] not in (0, 1):
            yield run
            run = []
        run.append(node)
    if run:
        yield run


def text(blocks: Blocks) -> str:
    return json.dumps(blocks)


def parse(said: str | None) -> Blocks:
    """What `text` wrote; nothing: none."""
    found: dict[str, list[list[int]]] = json.loads(said or "{}")
    return {name: [(first, count) for first, count in some] for name, some in found.items()}
