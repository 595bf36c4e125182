"""The engine's preview before `up` on a cloud: the cloud's provider checks every value that is known."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from cli.console.events import Event, Operation, ResourceDone, ResourceStarted
from cli.console.progress import Console
from infra.errors import EXIT_FAILED, EXIT_REFUSED, UserError
from infra.program.stack import Stack

if TYPE_CHECKING:
    from cli.engine.runner import Runner
    from node.design.model import ClusterDesign

_VERBS: dict[Operation, str] = {
    "created": "create",
    "updated": "update",
    "replaced": "replace",
    "deleted": "delete",
}


def check(stack: Stack, cluster: ClusterDesign, engine: Runner, console: Console, *, benchmark: bool) -> None:
    """Have the engine preview the change on a cloud: the cloud's provider checks every value that is known.

    The plan and the cloud's API may accept what the provider between them refuses, and without a preview that
    would show half an hour later, when all that comes before it exists and is paid for. No job is ended yet.

    Raises:
        UserError: Exit 3; the preview fails. Nothing was changed.
    """
    if cluster.provider == "local":
        return

    def on_event(event: Event) -> None:
        # Warnings come again with the change itself, and errors are in the exception.
        if console.live and isinstance(event, ResourceStarted | ResourceDone):
            console.now(event.name)

    try:
        with console.waiting("asking the cloud's provider whether this can be made"):
            summary = engine.preview(on_event, benchmark=benchmark)
    except UserError as error:
        if error.exit_code != EXIT_FAILED:
            raise
        raise UserError(
            f"nothing was changed: the preview of this change fails\n{textwrap.indent(str(error), '  ')}\n"
            f"Where a value is refused, change the key of {stack.file.name} that it comes from. If no key "
            "does, it is a mistake of this project: report it with these lines.",
            EXIT_REFUSED,
            code="change.preview-failed",
        ) from None
    counted = [f"{verb} {n}" for done, verb in _VERBS.items() if (n := summary.counts.get(done))]
    console.say(f"the provider accepts it: {', '.join(counted) or 'nothing to do'}")
