"""`pulumi.StackReference` among stacks of the embedded runner: the outputs that another one has recorded."""

from __future__ import annotations

from typing import Any

from infra.errors import EXIT_REFUSED, UserError
from infra.runner import locations
from infra.runner.state import State

TYPE = "pulumi:pulumi:StackReference"


def outputs(reference: str) -> dict[str, Any]:
    """The outputs of the stack `<organization>/<project>/<stack>`; secrets are `[secret]`.

    Raises:
        UserError: no stack of that name is up under the embedded runner, or more than one checkout has one.
    """
    match reference.split("/"):
        case [_organization, project, stack]:
            pass
        case _:
            raise UserError(f"StackReference {reference!r}: write organization/<project>/<stack>")
    found: list[State] = []
    for path in sorted(locations.state_root().glob("*/state.json")):
        state = State.load(path)
        if (state.project, state.stack) == (project, stack) and not state.empty:
            found.append(state)
    if len(found) == 1:
        return found[0].outputs
    if found:
        folders = ", ".join(str(state.path.parent) for state in found)
        problem = f"is up in {len(found)} checkouts (state in {folders}); destroy all but one"
    else:
        problem = "is not up under the embedded runner; bring it up first, or use the Pulumi CLI"
    raise UserError(f"StackReference {reference!r}: that stack {problem}", EXIT_REFUSED)
