"""What the clusters in a report have cost, for whom: the bills that they give while they are up."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cli.commands import cost
from infra.errors import UserError
from node.logs.text import printable

if TYPE_CHECKING:
    from cli.providers.interface import BillsJobs
    from operations.access import StackUp

MOST_ROWS = 100
"""The greatest number of rows of one bill. `./cluster cost --csv` has all."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a bill, as texts."""

    name: str
    jobs: int
    hours: str
    usd: str


@dataclass(frozen=True, slots=True)
class Bill:
    """A bill of a stack.

    Attributes:
        stack: The stack's name.
        by: What its rows are: account, user or partition.
        rows: The rows, with the sum as the last one.
    """

    stack: str
    by: str
    rows: tuple[Row, ...]


def of(up: StackUp, biller: BillsJobs) -> list[Bill]:
    """Return a cluster's bills by account and by user, or without accounting by partition.

    A cluster that does not answer has none, and standard error says so: a report is possible without.
    """
    try:
        first = biller.bill(up, None, None, None)
        found = [biller.bill(up, "account", None, None), first] if first["by"] == "user" else [first]
        return [Bill(up.stack.name, printable(str(bill["by"])), tuple(_rows(bill))) for bill in found]
    except (UserError, AttributeError, LookupError, TypeError, ValueError) as error:
        print(f"the report does not say what {up.named} has cost: {error}", file=sys.stderr)
        return []


def _rows(bill: Mapping[str, Any]) -> Iterator[Row]:
    for row in bill["rows"][:MOST_ROWS]:
        yield _row(cost.name_of(row), int(row["jobs"]), row)
    yield _row("sum", 0, bill["total"])


def _row(name: str, jobs: int, amounts: Mapping[str, Any]) -> Row:
    return Row(printable(name), jobs, f"{amounts['node_hours']:.2f}", cost.usd(amounts).removesuffix(" USD"))
