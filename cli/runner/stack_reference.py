"""`pulumi.StackReference` between stacks of the embedded runner: the outputs that another stack has recorded.

It lets a consumer of a local cluster (`docs/consuming.md`) run without the Pulumi CLI.
"""

from __future__ import annotations

from typing import Any

from cli.runner.state import State
from infra.errors import EXIT_REFUSED, UserError
from infra.program import locations

TYPE = "pulumi:pulumi:StackReference"


def outputs(reference: str) -> dict[str, Any]:
    """The outputs of the stack `<organization>/<project>/<stack>`; secrets are `[secret]`.

    Raises:
        UserError: The embedded runner has no such stack that is up, or more than one checkout has one.
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
