"""Which stack a command means that names none, and Pulumi's own note of the stack that is selected.

The note is `workspaces/<project>-<SHA-1 of Pulumi.yaml's path>-workspace.json` in Pulumi's folder, as the
CLI's sdk/go/common/workspace writes it. To read it takes no start of the CLI, which costs half a second.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from infra.runner import locations

VARIABLE = "SLURM_STACKS_STACK"
PULUMI_VARIABLE = "PULUMI_STACK"
USUAL = "local"


@dataclass(frozen=True, slots=True)
class Chosen:
    """A stack that no `--stack` named.

    Attributes:
        by: what chose it; None: nothing did, and it is the usual one.
    """

    stack: str
    by: str | None = None


def default(project_dir: Path) -> Chosen:
    """The stack of a command without `--stack`.

    It is that of $SLURM_STACKS_STACK, else the one that is selected in Pulumi and has a file in the checkout,
    else `local`.
    """
    if stack := os.environ.get(VARIABLE):
        return Chosen(stack, f"${VARIABLE}")
    if stack := os.environ.get(PULUMI_VARIABLE):
        return Chosen(_short(stack), f"${PULUMI_VARIABLE}")
    stack = selected(project_dir)
    if stack is None or not (project_dir / f"Pulumi.{stack}.yaml").is_file():
        return Chosen(USUAL)
    # Nobody has to be told that it is the one that it always is.
    return Chosen(stack, None if stack == USUAL else "`pulumi stack select`")


def selected(project_dir: Path) -> str | None:
    """The stack that `pulumi stack select` chose in this checkout; None: it chose none, or cannot be read."""
    try:
        stack = json.loads(note(project_dir).read_text(encoding="utf-8")).get("stack")
    except (OSError, ValueError, AttributeError):
        return None
    return _short(stack) if isinstance(stack, str) and stack else None


@contextlib.contextmanager
def kept(project_dir: Path) -> Iterator[None]:
    """Leave the user's selection as it is, whatever the CLI selects for us meanwhile.

    The Automation API reaches a stack by selecting it: the next bare command would mean that one.
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
    """The CLI's note of this checkout; it need not exist."""
    home = Path(os.environ.get("PULUMI_HOME") or locations.home() / ".pulumi")
    settings = project_dir.resolve() / "Pulumi.yaml"
    try:
        content = yaml.safe_load(settings.read_text(encoding="utf-8"))
        name = str(content["name"])
    except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError):
        name = "slurm-stacks"
    digest = hashlib.sha1(os.fsencode(settings), usedforsecurity=False).hexdigest()
    return home / "workspaces" / f"{name}-{digest}-workspace.json"


def _short(stack: str) -> str:
    """`organization/project/stack` is how Pulumi names a stack of its service."""
    return stack.rpartition("/")[2]
