"""How EC2 instances carry their nodes' names. The driver and the machine itself read them with this module.

All instances of one launch carry the same tags, so a tag holds the launch's whole host list, and a node is
the list's element at the instance's `ami-launch-index`. A list that is too long for one tag continues in the
next, so that a launch of nodes with gaps between their numbers is still one call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache

from node.slurm.hostlist import expand, fold

CLUSTER = "slurm-stacks:cluster"
STACK = "slurm-stacks:stack"
ROLE = "slurm-stacks:role"
PARTITION = "slurm-stacks:partition"
NODES = "slurm-stacks:nodes"
COMPUTE = "compute"
TEMPLATE, TEMPLATE_VERSION = "aws:ec2launchtemplate:id", "aws:ec2launchtemplate:version"
"""Tags that EC2 itself sets on what is launched from a template."""
"""The role of the machines that the driver launches."""
TAG_LENGTH = 256
"""The largest length of a tag's value."""
NODES_TAGS = 20
"""The largest number of tags for a host list: enough for 500 nodes of any numbers. EC2 allows 50 tags in all.
"""
MOST_LAUNCHED = 5000
"""The greatest number of nodes that are read from the tags of one launch."""


def node_of(nodes_tag: str, launch_index: int) -> str:
    """Return the node of an instance.

    Args:
        nodes_tag: The host list in the instance's tags, such as `compute-[0-3]`.
        launch_index: Its `ami-launch-index`.

    Raises:
        ValueError: The tag is no host list, or has no such element.
    """
    names = _names(nodes_tag)
    if not 0 <= launch_index < len(names):
        raise ValueError(f"{nodes_tag!r} has no element {launch_index}")
    return names[launch_index]


def tags_of(nodes: Iterable[str]) -> dict[str, str]:
    """Return the tags that hold a launch's host list."""
    text = fold(nodes)
    pieces = [text[at : at + TAG_LENGTH] for at in range(0, len(text), TAG_LENGTH)]
    return {_key(number): piece for number, piece in enumerate(pieces)}


def nodes_in(tag: Callable[[str], str | None]) -> str | None:
    """Return the host list in an instance's tags; `None` if they contain none.

    Args:
        tag: Returns the value of a tag, `None` if there is no such tag.
    """
    hosts = ""
    for number in range(NODES_TAGS):
        piece = tag(_key(number))
        hosts += piece or ""
        # A shorter piece is the last one. Further tags are not looked up, because they cannot exist.
        if piece is None or len(piece) < TAG_LENGTH:
            break
    return hosts or None


def _key(number: int) -> str:
    return f"{NODES}-{number + 1}" if number else NODES


def calls(nodes: Iterable[str], most: int) -> list[tuple[str, ...]]:
    """Split nodes into launch calls, in their order.

    Each call has at most `most` nodes and a host list that fits the tags.
    """
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
    return tuple(expand(nodes_tag, MOST_LAUNCHED))
