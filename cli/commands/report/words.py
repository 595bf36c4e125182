"""Formats numbers, dates and names for the report, and says how a result compares with that of one node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from cli.commands.report import runs, series
from cli.commands.report.runs import PUBLISHED_RATE, Run
from cli.commands.report.series import Series
from cli.hints import hint
from cli.results import Kept

SPACE = "\N{NO-BREAK SPACE}"


def seconds(value: float) -> str:
    """Format seconds with three digits: 394 s, 24.0 s, 3.20 s, 0.45 s. Thousands are separated."""
    if value >= 99.95:
        return f"{value:,.0f}{SPACE}s"
    return f"{value:.{1 if value >= 9.995 else 2}f}{SPACE}s"


def ratio(value: float) -> str:
    """Format a ratio with two or three digits: 12×, 3.9×, 0.45×."""
    if value >= 9.95:
        return f"{value:,.0f}×"
    return f"{value:.1f}×" if value >= 0.995 else f"{value:.2f}×"


def factor(value: float) -> str:
    """Format a ratio for a table: 3.87×."""
    return f"{value:,.2f}×"


def cents(value: float) -> str:
    """Format US cents: 1,250 ¢, 4.1 ¢, 0.50 ¢, 0.018 ¢."""
    if value == 0:
        return f"0{SPACE}¢"
    if value >= 9.95:
        return f"{value:,.0f}{SPACE}¢"
    return f"{value:.{1 if value >= 0.995 else 2 if value >= 0.1 else 3}f}{SPACE}¢"


def usd(value: float) -> str:
    """Format dollars to the cent, smaller sums with two or three digits: $1,204.50, $0.043, $0.0036."""
    if value >= 0.9995 or value == 0:
        return f"${value:,.2f}"
    return f"${value:.3f}" if value >= 0.00995 else f"${value:.2g}"


def gib(mib: float) -> str:
    return f"{mib / 1024:,.4g}{SPACE}GiB"


def megabits(value: float) -> str:
    return f"{value:,.0f}{SPACE}Mbit/s"


def whole(value: float) -> str:
    return f"{value:,.0f}"


def share(value: float) -> str:
    return f"{100 * value:,.0f}{SPACE}%"


def fraction(value: float) -> str:
    """Format loss and accuracy with as many digits as the articles: 0.9892."""
    return f"{value:,.4f}" if abs(value) < 1e6 else f"{value:.3g}"


def count(number: int, what: str) -> str:
    """Format a number with its noun: 1 node, 2 nodes, 1,200 runs."""
    return f"{number:,}{SPACE}{what}{'' if number == 1 else 's'}"


def listed(items: list[str]) -> str:
    """Join items: a, b and c."""
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"


def when(kept_at: str) -> str:
    """Format 20261121T141109Z as 2026-11-21 14:11 UTC. Other texts stay as they are."""
    digits = kept_at.replace("T", "").removesuffix("Z")
    if len(digits) != 14 or not digits.isdecimal():
        return kept_at
    return f"{digits[:4]}-{digits[4:6]}-{digits[6:8]} {digits[8:10]}:{digits[10:12]} UTC"


def published_label(series: Series) -> str:
    """Return the short name of a published series: c4.2xlarge, n1 + 2 V100, p3.2xlarge."""
    run = series.any_run
    name = run.machine or ""
    # Google attaches GPUs to a machine; on other clouds the machine type implies them.
    if run.gpu and name.startswith("n1-"):
        return f"n1 + {run.gpus_per_node} {(run.accelerator or 'GPU').upper()}"
    return name


def recipe(series: Series) -> str:
    """Describe what a series trained, and on which machines."""
    k = series.key
    parts = [(k.machine or "unknown machine") + (f" of pool {k.pool}" if k.pool else "")]
    if series.any_run.local:
        parts[0] += " (all on one machine)"
    if k.gpus_per_node:
        parts.append(f"{count(k.gpus_per_node, 'GPU')} a node")
    if how := how_cores(series):
        parts.append(how)
    parts += [
        f"profile {k.profile}",
        count(k.epochs, "epoch"),
        f"data {k.data}",
        f"batch {k.batch:g} a worker",
    ]
    if k.learning_rate not in (None, PUBLISHED_RATE):
        parts.append(f"learning rate {k.learning_rate:g}")
    return ", ".join(parts)


def how_cores(series: Series) -> str:
    """Say how a local series' nodes had their cores; nothing of other series, and where it is not known."""
    k = series.key
    if not series.any_run.local:
        return ""
    if k.disturbed or k.cores_shared:
        shared = any(run.cores_shared for point in series.points for run in point.runs)
        how = (
            "nodes that shared cores" if shared else "",
            "other programs on the cores" if k.disturbed else "",
        )
        return ", ".join(filter(None, how))
    return (
        "" if k.cores_each is None else f"{k.cores_each:g} {'core' if k.cores_each == 1 else 'cores'} a node"
    )


def cores(run: Run) -> str | None:
    """Say how the workers of a local run had its cores. `None` of other runs, and where it is not known."""
    if not run.local or run.cores is None:
        return None
    workers, has = count(run.workers, "worker"), count(run.cores, "core")
    text = f"{workers} shared {has}" if run.cores_shared else f"{has} for {workers}"
    if run.cores_others is None:
        return text
    return f"{text}; other programs took {share(run.cores_others)} of their time"


def code(series: Series) -> str:
    """Name the training code, and the checkout if there are several: ", code fd54350, checkout team-b"."""
    text = f", code {series.key.digest[:7]}" if series.key.digest else ""
    return text + (f", {series.key.checkout_label}" if series.key.checkout_label else "")


def compared_with_one_node(result: Mapping[str, Any], kept: Iterable[Kept], stack: str) -> str | None:
    """Return one sentence for the end of `up`.

    Args:
        result: The record of the run that has just ended.
        kept: The stack's kept results. Those of one node with the same training on the same machines count.

    Returns:
        The sentence, with the command that measures it where no run of one node is kept; `None` for a
        result of one node.
    """
    # A terminal's lines are copied into files and searched: plain spaces.
    return None if result["nodes"] == 1 else _sentence(result, kept, stack).replace(SPACE, " ")


def _sentence(result: Mapping[str, Any], kept: Iterable[Kept], stack: str) -> str:
    run = runs.of(Kept(Path("result.json"), dict(result)), stack)
    if (why := _not_alike(run)) is not None:
        return why
    same = [candidate for candidate in series.group(_usable(kept, stack)) if candidate.key == series.key(run)]
    alone = same[0].point(1) if same else None
    base = alone.seconds_per_epoch if alone else None
    if base is None or run.seconds_per_epoch is None:
        command = hint("run", stack, f"--nodes 1,{run.nodes}")
        return f"`{command}` measures how much faster {count(run.nodes, 'node')} are than 1."
    faster = base.median / run.seconds_per_epoch
    text = (
        f"{count(run.nodes, 'node')} trained {ratio(faster)} as fast as 1: an epoch took "
        f"{seconds(run.seconds_per_epoch)}, on 1 node {seconds(base.median)} "
        f"({'median of ' if base.count > 1 else ''}{count(base.count, 'kept run')})"
    )
    return f"{text}."


def _not_alike(run: runs.Run) -> str | None:
    """Say why the run tells nothing of one node; `None` if it does: a node had less than its type's cores."""
    nodes = count(run.nodes, "node")
    if run.local and run.cores_shared and run.cores:
        return (
            f"{nodes} shared {count(run.cores, 'core')}, so this run does not tell how much faster "
            "they are than 1."
        )
    if run.disturbed:
        return (
            f"Other programs took {share(run.cores_others or 0.0)} of the cores' time, so this run "
            f"does not tell how much faster {nodes} are than 1."
        )
    return None


def _usable(kept: Iterable[Kept], stack: str) -> list[runs.Run]:
    usable = []
    for result in kept:
        if result.program:
            continue
        try:
            usable.append(runs.of(result, stack))
        except ValueError:  # the report names it; here it only counts as not measured
            continue
    return usable
