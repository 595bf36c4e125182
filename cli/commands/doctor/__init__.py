"""`./cluster doctor`: finds what would stop `up` of a stack, before anything is made.

It changes nothing but the cached facts of instance types (`cli.providers.instance_type_lookup`). Each
provider adds its own checks (`diagnose`).
"""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from cli.commands.doctor import general
from cli.commands.doctor.general import windows
from cli.console.tables import put
from cli.findings import Check, Finding, Severity, examine, failed_check, from_error, warns
from cli.providers import provider
from infra.errors import EXIT_FAILED, UserError
from infra.program.stack import Stack
from node.system import plurals

_STYLES = {Severity.STOPS: "bold red", Severity.WARNS: "yellow", Severity.FINE: "green"}


def run(stack: Stack, *, as_json: bool) -> int:
    """Run the checks and print the findings.

    Returns:
        The exit status: 1 if something would stop `up`.
    """
    findings = findings_of(stack)
    if as_json:
        _print_json(stack.name, findings)
    else:
        _print_text(stack.name, findings)
    return EXIT_FAILED if any(f.severity is Severity.STOPS for f in findings) else 0


def findings_of(stack: Stack) -> list[Finding]:
    """Return all findings, in the order in which they are shown."""
    types = list(general.machine_types(stack))
    try:
        file, up, training = general.stack_file(stack)
    except Exception as error:  # a broken check must not prevent the others
        file, up, training = failed_check("stack.file", error), None, None
    design = None if up is None or up.config is None else up.design
    checks = [
        Check("python", functools.partial(general.python, stack.project)),
        Check("environment", general.environment),
        Check("windows", functools.partial(windows, stack.project)),
        Check("state", functools.partial(general.state, stack)),
    ]
    known: list[Finding] = [file, *types]
    if design is not None:
        # This runs before the parallel checks, because the program changes the current folder.
        known += general.planned(stack)
        checks.append(Check("slurm", functools.partial(general.slurm, design)))
    if up is None:
        cure = "Fix the stack file first, and run doctor again."
        known.append(warns("provider", "the stack file does not say where the cluster will be", cure))
    else:
        checks.insert(1, Check("runner", functools.partial(general.chosen_runner, stack, up.provider)))
        try:
            chosen = provider.of(up)
            checks += chosen.diagnose(stack, design, training)
            if design is not None:
                costly = functools.partial(general.changes, up, training, chosen)
                checks.append(Check("cluster", costly))
        except UserError as error:
            known.append(from_error("provider", error))
        except Exception as error:
            known.append(failed_check("provider", error))
    return known + examine(checks)


def _print_json(stack: str, findings: Sequence[Finding]) -> None:
    """Print `{"stack", "findings": [{"check", "severity", "found", "cure", "code"}], "ok"}`.

    `cure` and `code` may be null.
    """
    rows = [
        {
            "check": f.check,
            "severity": f.severity.value,
            "found": f.found,
            "cure": f.cure,
            "code": f.code or None,
        }
        for f in findings
    ]
    ok = not any(f.severity is Severity.STOPS for f in findings)
    print(json.dumps({"stack": stack, "findings": rows, "ok": ok}, indent=1))


def _print_text(stack: str, findings: Sequence[Finding]) -> None:
    """Print one line for each group that is fine, every other finding with its cure, and a summary."""
    table = Table.grid(padding=(0, 2, 0, 0))
    for _ in range(2):
        table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for group, members in itertools.groupby(findings, key=lambda f: f.group):
        together = list(members)
        if calm := [f.found for f in together if f.severity is Severity.FINE]:
            _row(table, Severity.FINE, group, "; ".join(calm))
        for finding in together:
            if finding.severity is not Severity.FINE:
                found_text = f"{finding.found} [{finding.code}]" if finding.code else finding.found
                _row(table, finding.severity, finding.check, found_text, finding.cure)
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
