"""`./cluster cost`: asks the cluster for a bill, and prints it as a table, as CSV or as JSON."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import re
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from cli.console.status import account_budgets
from cli.console.tables import cell, new_table, put
from cli.providers import login_machine
from cli.providers.interface import HasLoginMachine
from cli.spreadsheet import quoted
from infra.cost import unbilled
from infra.errors import EXIT_USAGE, UserError
from node.billing import BY
from node.logs.text import printable
from node.system import foreign

if TYPE_CHECKING:
    from operations.access import StackUp

SECONDS = 600.0
"""How long a bill may take: the accounting may have millions of jobs."""
MOST_ROWS = 50
"""The most rows of jobs in a table. CSV and JSON have all."""
AGO = re.compile(r"([0-9]{1,6})([mhdw])")
UNITS = {"m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
WORDS = {
    "idle": "idle: boots, waits, free parts",
    "failed boots": "boots that failed",
    "not recorded": "before the record began",
    "nodes": "nodes",
}
"""Kind of a row -> its name where it has none."""
COLUMNS = ("kind", "name", "jobs", "node_hours", "usd", "at_least_usd")
OF_JOBS = ("user", "account", "partition", "pool")


class Asked(NamedTuple):
    """What is asked for; the fields are those of `BillsJobs.bill`."""

    by: str | None = None
    since: float | None = None
    until: float | None = None

    @classmethod
    def of(
        cls, by: str | None, since: str | None, until: str | None, *, csv: bool = False, json: bool = False
    ) -> Asked:
        """Read the options of the command line.

        Raises:
            UserError: Exit 2; one has no meaning, two exclude each other, or the period has no length.
        """
        if csv and json:
            raise UserError(
                "--csv and --json are two forms: give one of them", EXIT_USAGE, code="cost.two-forms"
            )
        if by is not None and by not in BY:
            raise UserError(
                f"--by {by}: {', '.join(BY[:-1])} or {BY[-1]} is expected", EXIT_USAGE, code="cost.by"
            )
        now = time.time()
        asked = cls(by, _moment("--since", since, now), _moment("--until", until, now))
        if asked.since is not None and asked.since >= (now if asked.until is None else asked.until):
            end = "now" if until is None else f"--until {until}"
            raise UserError(
                f"--since {since} is not before {end}: name an earlier time", EXIT_USAGE, code="cost.period"
            )
        return asked


def _moment(option: str, text: str | None, now: float) -> float | None:
    """Return seconds since the epoch.

    Raises:
        UserError: Exit 2; the text is no time.
    """
    if text is None:
        return None
    if (ago := AGO.fullmatch(text)) is not None:
        return max(0.0, now - int(ago[1]) * UNITS[ago[2]])
    try:
        when = datetime.fromisoformat(text)
        seconds = (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        seconds = -1.0
    if not foreign.is_time(seconds):
        raise UserError(
            f"{option} {printable(text)}: a day (2026-11-01), a time (2026-11-01T08:00, which is UTC unless "
            "it ends with an offset such as +01:00) or how long ago (90m, 12h, 7d, 4w) is expected",
            EXIT_USAGE,
            code="cost.when",
        )
    return seconds


def ask(
    machine: HasLoginMachine, up: StackUp, by: str | None, since: float | None, until: float | None
) -> dict[str, Any]:
    """Return a bill from the cluster's own tool; the arguments are those of `BillsJobs.bill`.

    Raises:
        UserError: As for `BillsJobs.bill`.
    """
    options = [
        f"--{name}={value}"
        for name, value in (("by", by), ("since", since), ("until", until))
        if value is not None
    ]
    try:
        answer = login_machine.tool(machine, up, "cost", *options, seconds=SECONDS)
    except UserError as error:
        if "invalid choice: 'cost'" not in str(error):
            raise
        raise UserError(
            f"{up.named} was brought up by an earlier version, which keeps no record of machines: "
            f"{up.up_again('begins one')}",
            code="cost.older",
        ) from error
    return login_machine.parsed(answer)


def show(up: StackUp, bill: Mapping[str, Any], *, as_csv: bool, as_json: bool) -> None:
    """Print a bill.

    Raises:
        UserError: It has a form that this version does not know.
    """
    if as_json:
        print(json.dumps(bill, indent=1))
        return
    try:
        if as_csv:
            print(csv_text(bill), end="")
        else:
            _show(bill, up)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise UserError(
            f"{up.named} answers with a bill that this version cannot show ({printable(repr(error))}): "
            f"`{up.command('cost', '--json')}` prints it as it is",
            code="cost.other-form",
        ) from error


def csv_text(bill: Mapping[str, Any]) -> str:
    """Return a bill as CSV: a line for each row. What is not known is empty."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    columns = [*COLUMNS[:2], *(OF_JOBS if bill["by"] == "job" else ()), *COLUMNS[2:]]
    writer.writerow(columns)
    for row in bill["rows"]:
        writer.writerow([quoted(row.get(name)) for name in columns])
    return buffer.getvalue()


def _show(bill: Mapping[str, Any], up: StackUp) -> None:
    by, rows = bill["by"], bill["rows"]
    # Nobody needs an empty column on the screen.
    more = [k for k in OF_JOBS if by == "job" and (k != "pool" or any(row.get(k) for row in rows))]
    # A title is never wider than its table.
    put(f"[bold]{cell(f'Cost by {by}, {_period(bill)}')}[/bold]")
    table = new_table("", by, *more, "jobs", "node-hours", "USD")
    jobs = [row for row in rows if row["kind"] == "jobs"]
    for row in [*jobs[:MOST_ROWS], *(row for row in rows if row["kind"] != "jobs")]:
        table.add_row(*_cells(row, more))
    put(table)
    if (left_out := len(jobs) - MOST_ROWS) > 0:
        put(f"\n… and {left_out} more: `{cell(up.command('cost', f'--by {by} --csv'))}` has all of them")
    total = bill["total"]
    put(f"\nSum: {total['node_hours']:.2f} node-hours, {usd(total)}{_unknown(bill)}")
    for line in account_budgets(bill.get("budgets", ())):
        put(cell(line))
    put(f"Not in it: {cell(_not_in_it(up))}")
    for note in bill["notes"]:
        put(f"Note: {cell(note)}")


def name_of(row: Mapping[str, Any]) -> str:
    """Return a row's name, which says what it is if no job had it."""
    name, known = row["name"], WORDS.get(row["kind"])
    return str(name if known is None else f"{name} ({known})" if name else known)


def _cells(row: Mapping[str, Any], more: Sequence[str]) -> list[str]:
    jobs = row["jobs"] if row["kind"] == "jobs" else None
    amounts = f"{row['node_hours']:.2f}", usd(row).removesuffix(" USD")
    return [cell(name_of(row)), *(cell(row.get(key)) for key in more), cell(jobs), *map(cell, amounts)]


def usd(amounts: Mapping[str, Any]) -> str:
    """Return a row's sum; if a price is not known, the least that it is."""
    known = amounts["usd"] is not None
    return f"{'' if known else 'at least '}{amounts['at_least_usd']:.2f} USD"


def _unknown(bill: Mapping[str, Any]) -> str:
    names = ", ".join(map(str, bill["unknown"]))
    return f", price of the nodes of {cell(names)} unknown" if names else ""


def _period(bill: Mapping[str, Any]) -> str:
    def when(seconds: float) -> str:
        return time.strftime("%F %R UTC", time.gmtime(seconds))

    since = "the beginning" if bill["since"] is None else when(bill["since"])
    return f"from {since} to {when(bill['until'])}"


def _not_in_it(up: StackUp) -> str:
    """Say what the bill leaves out: what is up with or without jobs."""
    known = 0.0
    if up.published is None:
        with contextlib.suppress(UserError):  # the stack file has a mistake by now
            known = unbilled(up.design)
    price = f", {known:.2f} USD an hour as `plan` lists them" if known else ""
    return f"controller, login machines, file systems, disks and network{price}; and traffic"
