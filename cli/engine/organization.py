"""The organization of a stack in Pulumi's backend, which its files, folders, locks and runs do not name.

Two organizations can have stacks of the same name. In one checkout these would be one cluster with two
states, because they share the stack file and the names in the cloud. So a stack keeps the organization with
which it was brought up from here (`infra.program.clusters`) until it is down. A short name means that one,
and another one is refused.
"""

from __future__ import annotations

from dataclasses import replace

from infra.errors import EXIT_REFUSED, UserError
from infra.program import clusters
from infra.program.stack import Stack
from operations import programs

ASK_SECONDS = 30.0


def resolved(stack: Stack) -> Stack:
    """Return the stack with the organization with which it was brought up from here, if it was.

    Raises:
        UserError: Exit 3; the stack names another organization.
    """
    record = clusters.of(stack)
    if record is None or record.organization == stack.named_organization:
        return stack
    if stack.named_organization is None:
        return replace(stack, organization=record.organization)
    if record.organization is None and _default() == stack.named_organization:
        return stack
    up = replace(stack, organization=record.organization)
    by = f"as {up.engine_name}" if record.organization else "without an organization"
    raise UserError(
        f"{stack.engine_name}: this checkout has a cluster of stack {stack.name} that was brought up {by}, "
        f"and both have the same files and names. Write `--stack {up.engine_name}`, end that cluster first "
        f"(`./cluster down --stack {up.engine_name}`), or use another checkout",
        EXIT_REFUSED,
        code="stack.other-organization",
    )


def refuse_without_cli(stack: Stack) -> None:
    """Refuse to run a stack of an organization without the engine, which alone has access to its state.

    Raises:
        UserError: Exit 3.
    """
    if stack.named_organization is not None:
        raise UserError(
            f"{stack.engine_name} is a stack of the organization {stack.organization}, whose state only the "
            "Pulumi CLI with its command plugin can read and write. A stack without an organization needs "
            "neither",
            EXIT_REFUSED,
            code="stack.organization-needs-pulumi",
        )


def _default() -> str | None:
    """Return the organization that the CLI takes for a short name; `None` if it does not say."""
    for words in (["org", "get-default"], ["whoami"]):
        done = programs.capture(["pulumi", *words, "--non-interactive"], seconds=ASK_SECONDS)
        answer = done.out.strip()
        if not done.failed and answer and len(answer.split()) == 1:
            return answer
    return None
