"""How EC2 instances carry their nodes' names: read alike by the driver and by the machine itself.

All instances of one launch carry the same tags, so the tag holds the launch's whole host list, and a node is
the list's element at the instance's `ami-launch-index`. A list that is too long for one tag goes on in the
next, so that a launch of nodes with gaps between their numbers is still one call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache

from infra.node.slurm.hostlist import expand, fold

CLUSTER = "slurm-stacks:cluster"
STACK = "slurm-stacks:stack"
ROLE = "slurm-stacks:role"
PARTITION = "slurm-stacks:partition"
NODES = "slurm-stacks:nodes"
COMPUTE = "compute"
"""The role of what the driver launches."""
TAG_LENGTH = 256
"""Characters of a tag's value, at most."""
NODES_TAGS = 20
"""Tags of a list, at most: enough for 500 nodes of any numbers. EC2 takes 50 tags in all."""


def node_of(nodes_tag: str, launch_index: int) -> str:
    """The node that an instance of a launch is.

    Args:
        nodes_tag: the host list in the instance's tags, e.g. `compute-[0-3]`.
        launch_index: its `ami-launch-index`.

    Raises:
        ValueError: the tag is no host list, or has no such element.
    """
    names = _names(nodes_tag)
    if not 0 <= launch_index < len(names):
        raise ValueError(f"{nodes_tag!r} has no element {launch_index}")
    return names[launch_index]


def tags_of(nodes: Iterable[str]) -> dict[str, str]:
    """The tags that hold a launch's host list."""
    text = fold(nodes)
    pieces = [text[at : at + TAG_LENGTH] for at in range(0, len(text), TAG_LENGTH)]
    return {_key(number): piece for number, piece in enumerate(pieces)}


def nodes_in(tag: Callable[[str], str | None]) -> str | None:
    """The host list that an instance's tags hold; None where they hold none.

    Args:
        tag: the value of a tag, None where there is no such tag.
    """
    found = ""
    for number in range(NODES_TAGS):
        piece = tag(_key(number))
        found += piece or ""
        # The last one: nobody is asked for a tag that cannot be there.
        if piece is None or len(piece) < TAG_LENGTH:
            break
    return found or None


def _key(number: int) -> str:
    return f"{NODES}-{number + 1}" if number else NODES


def calls(nodes: Iterable[str], most: int) -> list[tuple[str, ...]]:
    """Nodes as launch calls: in the list's order, at most `most` a call, with a list that fits the tags."""
    result: list[tuple[str, ...]] = []
    waiting = [expand(fold(nodes))]
    while waiting:
        names = waiting.pop()
        if len(names) > most:
            waiting += [names[most:], names[:most]]
        elif len(fold(names)) > TAG_LENGTH * NODES_TAGS:
            half = len(names) // 2
            waiting += [names[half:], names[:half]]
        elif names:
            result.append(tuple(names))
    return result


@lru_cache(maxsize=4096)
def _names(nodes_tag: str) -> tuple[str, ...]:
    return tuple(expand(nodes_tag))
