"""Prints findings: one line for each group that is fine, each problem with its cure, or all as JSON."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from cli.console.tables import put
from cli.doctor.finding import Finding, Severity
from node import plurals

_STYLES = {Severity.STOPS: "bold red", Severity.WARNS: "yellow", Severity.FINE: "green"}


def as_json(stack: str, findings: Sequence[Finding]) -> None:
    """Print `{"stack", "findings": [{"check", "severity", "found", "cure"}], "ok"}`; `cure` may be null."""
    rows = [
        {"check": f.check, "severity": f.severity.value, "found": f.found, "cure": f.cure} for f in findings
    ]
    ok = not any(f.severity is Severity.STOPS for f in findings)
    print(json.dumps({"stack": stack, "findings": rows, "ok": ok}, indent=1))


def as_text(stack: str, findings: Sequence[Finding]) -> None:
    """Print one line for each group that is fine, every other finding with its cure, and a summary."""
    table = Table.grid(padding=(0, 2, 0, 0))
    for _ in range(2):
        table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for group, members in itertools.groupby(findings, key=lambda f: f.group):
        found = list(members)
        if calm := [f.found for f in found if f.severity is Severity.FINE]:
            _row(table, Severity.FINE, group, "; ".join(calm))
        for finding in found:
            if finding.severity is not Severity.FINE:
                _row(table, finding.severity, finding.check, finding.found, finding.cure)
    put(table)
    stopping = sum(f.severity is Severity.STOPS for f in findings)
    warnings = sum(f.severity is Severity.WARNS for f in findings)
    also = f", {plurals.count(warnings, 'warning')}" if warnings else ""
    up = f"`./cluster up --stack {stack}`"
    if stopping:
        text, style = f"{plurals.count(stopping, 'reason')} why {up} would stop{also}", "bold red"
    else:
        text, style = f"nothing stops {up}{also}", "bold green"
    put(Text(f"\n{text}", style=style))


def _row(table: Table, severity: Severity, name: str, found: str, cure: str | None = None) -> None:
    mark = Text(severity.value, style=_STYLES[severity])
    table.add_row(mark, Text(name), Text(found))
    if cure is not None:
        table.add_row("", "", Text.assemble(("do: ", "bold"), cure))
