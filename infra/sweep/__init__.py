"""A sweep: the benchmark on several numbers of nodes, each several times, on a cluster that is up.

All jobs are submitted at the start, each behind the one before it; from then on the cluster needs nobody. The
plan lies in a file from before the first submit (`store`), so that whatever ends this program, the next one
finds what is under way, collects what came meanwhile, and submits nothing twice.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from infra.config import StackConfig
    from infra.console.progress import Console


def run(
    project: Path,
    config: StackConfig,
    console: Console,
    *,
    nodes: str | None = None,
    repeat: int | None = None,
) -> None:
    """Begin a sweep or go on with the one under way; watch it to its end, its summary and the report.

    Args:
        nodes: as in `1,2,4`; None, with no `repeat` either, goes on with whatever is under way.

    Raises:
        UserError: see `infra.sweep.command.Sweep.run`.
    """
    from infra.sweep.command import Sweep

    Sweep(project, config, console).run(nodes, repeat)


def cancel(project: Path, config: StackConfig, console: Console) -> None:
    """End the sweep that is under way; results that are there are kept.

    Raises:
        UserError: the cluster does not answer.
    """
    from infra.sweep.command import Sweep

    Sweep(project, config, console).cancel()
