"""The stack of a command without `--stack`, and Pulumi's own record of the selected stack.

The record is `workspaces/<project>-<SHA-1 of Pulumi.yaml's path>-workspace.json` in Pulumi's folder, written
by the CLI's sdk/go/common/workspace. Reading the file avoids a start of the CLI, which takes half a second.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from infra.program import locations, project_file
from infra.program.stack import Stack

VARIABLE = "SLURM_STACKS_STACK"
PULUMI_VARIABLE = "PULUMI_STACK"
USUAL = "local"


@dataclass(frozen=True, slots=True)
class Chosen:
    """The stack of a command without `--stack`.

    Attributes:
        stack: Its name as it was chosen: Pulumi's service names a stack `organization/project/stack`.
        by: What chose it; `None` if it is the default.
    """

    stack: str
    by: str | None = None


def default(project_dir: Path) -> Chosen:
    """Return the stack of a command without `--stack`.

    It is the stack of $SLURM_STACKS_STACK, else that of $PULUMI_STACK, else the stack that is selected in
    Pulumi if it has a file in the checkout, else `local`.
    """
    if stack := os.environ.get(VARIABLE):
        return Chosen(stack, f"${VARIABLE}")
    if stack := os.environ.get(PULUMI_VARIABLE):
        return Chosen(stack, f"${PULUMI_VARIABLE}")
    stack = selected(project_dir)
    if stack is None or not Stack(project_dir, stack.rpartition("/")[2]).file.is_file():
        return Chosen(USUAL)
    # The message about the choice is not needed if the choice equals the default.
    return Chosen(stack, None if stack == USUAL else "`pulumi stack select`")


def selected(project_dir: Path) -> str | None:
    """Return the stack that `pulumi stack select` chose in this checkout; `None` if there is no record.

    Since 3.256 the CLI remembers one for each backend (pkg/workspace/settings.go), before that one for all.
    """
    try:
        record = json.loads(note(project_dir).read_text(encoding="utf-8"))
        stack = record.get("stack")
        if stacks := record.get("stacks"):
            # Imported here, because it reads YAML, and few commands ask for the selection.
            from infra.program import owner

            stack = stacks.get(owner.backend_url(project_dir), stack)
    except (OSError, ValueError, AttributeError, RecursionError):
        return None
    return stack if isinstance(stack, str) and stack else None


@contextlib.contextmanager
def kept(project_dir: Path) -> Iterator[None]:
    """Restore the user's selection after the body.

    The Automation API selects the stack that it works on. Without this, the user's next `pulumi` command
    would use that stack.
    """
    file = note(project_dir)
    before = file.read_bytes() if file.exists() else None
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            if before is None:
                file.unlink(missing_ok=True)
            elif file.read_bytes() != before:
                file.write_bytes(before)


def note(project_dir: Path) -> Path:
    """Return the CLI's record for this checkout; the file may be missing."""
    settings = project_dir.resolve() / "Pulumi.yaml"
    name = project_file.name_of(settings.parent)
    digest = hashlib.sha1(os.fsencode(settings), usedforsecurity=False).hexdigest()
    return locations.pulumi_home() / "workspaces" / f"{name}-{digest}-workspace.json"
