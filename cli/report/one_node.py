"""How much faster a result's nodes trained than one node did, by results that are kept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from cli.hints import hint
from cli.report import runs, series, words
from cli.results import Kept


def compared(result: Mapping[str, Any], kept: Iterable[Kept], stack: str) -> str | None:
    """One sentence for the end of `up`.

    Args:
        result: the record of the run that has just ended.
        kept: the stack's kept results. Those of one node with the same training on the same machines count.

    Returns:
        The sentence, with the command that measures it where no run of one node is kept; `None` for a
        result of one node.
    """
    # A terminal's lines are copied into files and searched: plain spaces.
    return None if result["nodes"] == 1 else _sentence(result, kept, stack).replace(words.SPACE, " ")


def _sentence(result: Mapping[str, Any], kept: Iterable[Kept], stack: str) -> str:
    own = runs.of(Kept(Path("result.json"), dict(result)), stack)
    if (why := _not_alike(own)) is not None:
        return why
    same = [one for one in series.group(_usable(kept, stack)) if one.key == series.key(own)]
    alone = same[0].point(1) if same else None
    base = alone.seconds_per_epoch if alone else None
    if base is None or own.seconds_per_epoch is None:
        command = hint("run", stack, f"--nodes 1,{own.nodes}")
        return f"`{command}` measures how much faster {words.count(own.nodes, 'node')} are than 1."
    ratio = base.median / own.seconds_per_epoch
    text = (
        f"{words.count(own.nodes, 'node')} trained {words.ratio(ratio)} as fast as 1: an epoch took "
        f"{words.seconds(own.seconds_per_epoch)}, on 1 node {words.seconds(base.median)} "
        f"({'median of ' if base.count > 1 else ''}{words.count(base.count, 'kept run')})"
    )
    return f"{text}."


def _not_alike(own: runs.Run) -> str | None:
    """Say why the run tells nothing of one node; `None` if it does: a node had less than its type's cores."""
    nodes = words.count(own.nodes, "node")
    if own.local and own.cores_shared and own.cores:
        return (
            f"{nodes} shared {words.count(own.cores, 'core')}, so this run does not tell how much faster "
            "they are than 1."
        )
    if own.disturbed:
        return (
            f"Other programs took {words.share(own.cores_others or 0.0)} of the cores' time, so this run "
            f"does not tell how much faster {nodes} are than 1."
        )
    return None


def _usable(kept: Iterable[Kept], stack: str) -> list[runs.Run]:
    found = []
    for one in kept:
        if one.program:
            continue
        try:
            found.append(runs.of(one, stack))
        except ValueError:  # the report names it; here it only counts as not measured
            continue
    return found
