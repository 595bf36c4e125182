"""A sweep runs the benchmark on several numbers of nodes, partitions and GPUs, on a cluster that is up.

All jobs are submitted at the start, and each one depends on the one before it, so nobody needs to watch. The
plan is written to a file before the first submit (`store`). If this program ends for any reason, the next
`./cluster run` finds the plan, collects the results that came meanwhile, and submits nothing twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from infra.errors import EXIT_USAGE, UserError
from infra.program.stack import Stack

if TYPE_CHECKING:
    from cli.console.progress import Console
    from infra.config import StackConfig


def run(
    stack: Stack,
    config: StackConfig,
    console: Console,
    *,
    nodes: str | None = None,
    repeat: int | None = None,
    partitions: str | None = None,
    gpus: str | None = None,
) -> None:
    """Begin a sweep or continue the one under way, watch it to its end, and print its summary and the report.

    Args:
        nodes: Numbers of nodes, as in `1,2,4`. If all arguments are None, the sweep that is under way
            continues, whatever its arguments were.
        repeat: How often each combination runs.
        partitions: Names of partitions, as in `cpu,gpu`. None: that of the benchmark.
        gpus: Numbers of GPUs a node, as in `1,2`. None: the benchmark's, or all of a node's.

    Raises:
        UserError: See `cli.sweep.command.Sweep.run`.
    """
    from cli import provider
    from cli.sweep.command import Sweep

    if (own := provider.scheduler(stack, config)) is not None:
        if partitions is not None or gpus is not None:
            raise UserError("--partition and --gpus are of Slurm: AWS Batch has one queue", EXIT_USAGE)
        own.run(console, nodes, repeat)
        return
    Sweep(stack, config, console).run(nodes, repeat, partitions, gpus)


def cancel(stack: Stack, config: StackConfig, console: Console) -> None:
    """End the sweep that is under way. Results that have arrived are kept.

    Raises:
        UserError: The cluster does not answer.
    """
    from cli import provider
    from cli.sweep.command import Sweep

    if (own := provider.scheduler(stack, config)) is not None:
        own.cancel(console)
        return
    Sweep(stack, config, console).cancel()
