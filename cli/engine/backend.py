"""Asks the backend that holds a stack's state whether an operation of Pulumi's is under way there.

The stack's lock in the checkout says nothing of another checkout or machine. The engine refuses to begin an
operation beside another one, but only when it begins: by then jobs would have ended. No lock is broken here,
whosever it is, and none is kept: what begins after the question, the engine refuses.

- A file backend has a file for each lock.
- Pulumi's service says of a stack whether it is being updated.
- A bucket (S3, Google's, Azure's) can only be asked by an operation that takes the lock: a refresh of the
  stack's own entry in the state, for which no provider is asked.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from infra.errors import EXIT_REFUSED, UserError
from infra.program import owner, project_file
from infra.program.stack import Stack
from node.system import foreign

LOCKS = Path(".pulumi", "locks")
"""The folder of a file backend's locks: organization/<project>/<stack>/<id>.json, or before Pulumi 3.61
<stack>/<id>.json."""
SERVICES = ("https", "http")
"""The schemes of the URLs of Pulumi's service, which may be hosted by oneself."""
ROOT = "pulumi:pulumi:Stack"
"""The type of a stack's own entry in its state."""


def refuse_if_locked_here(stack: Stack, url: str) -> bool:
    """Refuse if a file backend has a lock of the stack.

    Returns:
        Whether it is a file backend, so that nothing else need be asked.

    Raises:
        UserError: Exit 3; the message names who has the lock.
    """
    folder = owner.backend_folder(url)
    if folder is None:
        return False
    if held := [_words(file) for file in sorted(_locks(folder / LOCKS, stack))]:
        raise _busy(stack, url, ", ".join(held))
    return True


def _locks(folder: Path, stack: Stack) -> Iterator[Path]:
    name = stack.name.rpartition("/")[2]
    yield from folder.glob(f"*/{project_file.name_of(stack.project)}/{name}/*.json")
    yield from folder.glob(f"{name}/*.json")


def _words(file: Path) -> str:
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        lock = foreign.record(file)
        return f"{lock['username']}@{lock['hostname']} (pid {lock['pid']}) since {lock['timestamp']}"
    return str(file)


def refuse_if_updating(stack: Stack, url: str, selected: Any, config: str | None) -> None:
    """Refuse if the service or the bucket that holds the stack's state says that an operation is under way.

    Args:
        selected: The stack, as the Automation API has selected it.
        config: The stack file for the CLI.

    Raises:
        UserError: Exit 3.
        CommandError: The CLI failed for another reason.
    """
    from pulumi.automation.errors import ConcurrentUpdateError

    if urlsplit(url).scheme in SERVICES:
        # Its name has the organization, unless that is the user's own. The current stack may be another one.
        own = str(selected.name).rpartition("/")[2]
        listed = selected.workspace.list_stacks()
        if any(entry.update_in_progress for entry in listed if entry.name.rpartition("/")[2] == own):
            raise _busy(stack, url, "an update is in progress")
        return
    resources = (selected.export_stack().deployment or {}).get("resources") or []
    targets = [str(resource["urn"]) for resource in resources if resource["type"] == ROOT]
    if not targets:
        return
    try:
        selected.refresh(target=targets, color="never", show_secrets=False, config_file=config)
    except ConcurrentUpdateError as error:
        raise _busy(
            stack, url, str(error).rpartition("stderr: ")[2].strip().rpartition("error: ")[2].rstrip(".")
        ) from None


def _busy(stack: Stack, url: str, who: str) -> UserError:
    return UserError(
        f"nothing was changed: another operation of Pulumi works on stack {stack.name}, as its backend {url} "
        f"says: {who}. Wait for it to end. If it was killed, `pulumi cancel --stack {stack.engine_name}` "
        "removes its lock.",
        EXIT_REFUSED,
        code="runner.backend-busy",
    )
