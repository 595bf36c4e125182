"""`./cluster doctor`: finds what would stop `up` of a stack, before anything is made.

It changes nothing but the cached facts of instance types (`cli.instance_type_lookup`). Each provider adds
its own checks (`diagnose`).
"""

from __future__ import annotations

import functools

from cli import provider as providers
from cli.doctor import project as general
from cli.doctor import show
from cli.doctor.finding import Check, Finding, Severity, examine, failed_check, from_message, warns
from cli.doctor.windows import windows
from infra.errors import EXIT_FAILED, UserError
from infra.program.stack import Stack


def run(stack: Stack, *, as_json: bool) -> int:
    """Run the checks and print the findings.

    Returns:
        The exit status: 1 if something would stop `up`.
    """
    findings = findings_of(stack)
    if as_json:
        show.as_json(stack.name, findings)
    else:
        show.as_text(stack.name, findings)
    return EXIT_FAILED if any(f.severity is Severity.STOPS for f in findings) else 0


def findings_of(stack: Stack) -> list[Finding]:
    """Return all findings, in the order in which they are shown."""
    types = list(general.machine_types(stack))
    try:
        file, design, training, provider = general.stack_file(stack)
    except Exception as error:  # a broken check must not prevent the others
        file, design, training, provider = failed_check("stack.file", error), None, None, None
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
    if provider is None:
        cure = "Fix the stack file first, and run doctor again."
        known.append(warns("provider", "the stack file does not say where the cluster will be", cure))
    else:
        checks.insert(1, Check("runner", functools.partial(general.chosen_runner, stack, provider)))
        try:
            chosen = providers.load(provider)
            checks += chosen.diagnose(stack, design, training)
            if design is not None:
                costly = functools.partial(general.changes, stack, design, training, chosen)
                checks.append(Check("cluster", costly))
        except UserError as error:
            known.append(from_message("provider", Severity.STOPS, str(error)))
        except Exception as error:
            known.append(failed_check("provider", error))
    return known + examine(checks)
