"""`./cluster report`: each stack's results, in the report of its kind."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cli.commands import report
from cli.commands.report import bills
from cli.providers import provider
from cli.providers.interface import BillsJobs, HasOwnReport
from infra.config import load_file
from infra.errors import UserError
from infra.program import clusters
from infra.program.stack import Stack
from operations.access import StackUp


def make(stacks: Sequence[str], output: Path | None, project: Path) -> report.Made:
    """Write the report of some stacks (`cli.commands.report.make`), or of one whose report is another one.

    Raises:
        UserError: As for `cli.commands.report.make`; or a stack whose report is another one is not alone.
    """
    found: list[bills.Bill] = []
    for name in report.checked(stacks, project):
        stack = Stack(project, name)
        try:
            up = StackUp.of(stack, load_file(stack.file, stack.project))
            chosen = provider.of(up)
        except UserError:
            continue
        if isinstance(chosen, HasOwnReport):
            page, table = chosen.report(name, alone=len({*stacks}) == 1)
            return report.write([name], output, page, table)
        if isinstance(chosen, BillsJobs) and clusters.of(stack) is not None:
            found += bills.of(up, chosen)
    return report.make(stacks, output, project=project, bills=found)
