"""`./cluster doctor`: what would stop `up` of a stack here, before anything is made.

Nothing is changed but what is kept of machine types (`infra.asking`). What differs by provider is the
provider's own (`diagnose`).
"""

from __future__ import annotations

import functools
from pathlib import Path

from infra import providers
from infra.doctor import project as general
from infra.doctor import show
from infra.doctor.finding import Check, Finding, Severity, broken, examine, said, warns
from infra.errors import EXIT_FAILED, UserError


def run(project: Path, stack: str, *, as_json: bool) -> int:
    """Look, and show what was found.

    Returns:
        The exit status: 1 if something would stop `up`.
    """
    findings = findings_of(project, stack)
    if as_json:
        show.as_json(stack, findings)
    else:
        show.as_text(stack, findings)
    return EXIT_FAILED if any(f.severity is Severity.STOPS for f in findings) else 0


def findings_of(project: Path, stack: str) -> list[Finding]:
    """All that was found, in the order in which a person wants to read it."""
    types = list(general.machine_types(project, stack))
    try:
        file, design, training, provider = general.stack_file(project, stack)
    except Exception as error:  # as for every check: what is broken keeps nothing else from being told
        file, design, training, provider = broken("stack.file", error), None, None, None
    checks = [
        Check("python", functools.partial(general.python, project)),
        Check("environment", general.environment),
        Check("state", functools.partial(general.state, project, stack)),
    ]
    known: list[Finding] = [file, *types]
    if design is not None:
        # Before the checks that run side by side: the program wants the current folder to itself.
        known += general.planned(project, stack)
    if provider is None:
        cure = "Mend the stack file first, and look again."
        known.append(warns("provider", "the stack file does not say where the cluster is to be", cure))
    else:
        checks.insert(1, Check("runner", functools.partial(general.chosen_runner, project, stack, provider)))
        try:
            checks += providers.load(provider).diagnose(project, stack, design, training)
        except UserError as error:
            known.append(said("provider", Severity.STOPS, str(error)))
        except Exception as error:
            known.append(broken("provider", error))
    return known + examine(checks)
