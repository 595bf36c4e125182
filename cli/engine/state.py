"""The state of a stack that runs without the Pulumi CLI: the list of what was begun, and its outputs.

It is one JSON file, which is replaced before and after each verb: a kill leaves nothing that is not listed.
"""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from infra import os_errors
from infra.errors import UserError
from infra.program import locations
from infra.program.stack import Stack
from node.system.processes import boot_id

STATE_FILE = "state.json"
VERSION = 2
COMMAND = "command:local:Command"


@dataclass(slots=True)
class Made:
    """A command of which a verb has begun.

    Attributes:
        inputs: What the program has given it: the verbs, and their interpreter, environment and input.
        deleted_with: The URN of what takes it along when both are deleted; empty if nothing does.
        outputs: What its last verb printed; empty until it exists.
        whole: Whether the last verb that began has succeeded. Else it runs again.
        process: Pid and start time of the verb that runs, so that a later run can end it after a kill.
    """

    inputs: dict[str, Any]
    deleted_with: str = ""
    id: str = ""
    outputs: dict[str, str] = field(default_factory=dict)
    whole: bool = False
    process: tuple[int, int] | None = None


class DamagedStateError(UserError):
    """The state cannot be read, so it does not say what was made.

    Attributes:
        path: The state's file.
    """

    def __init__(self, path: Path, stack: str, problem: Exception) -> None:
        super().__init__(
            f"{path}, the state of the stack, is damaged ({problem!r}). `./cluster down --stack {stack}` "
            f"ends the cluster without it; then `./cluster up --stack {stack}` makes a new one.",
            code="state.damaged",
        )
        self.path = path


class State:
    """What was begun of one stack. Several threads call its methods.

    Each one that changes something replaces the file before it returns, or raises a `UserError`.

    Attributes:
        made: URN -> what was begun; each follows what it depends on.
        ignore_full_disk: For a destroy, which must end: to delete what is gone does no harm.
    """

    def __init__(self, stack: Stack) -> None:
        self.path = path_of(stack)
        self.boot = boot_id()
        self.made: dict[str, Made] = {}
        self.outputs: dict[str, Any] = {}
        self.ignore_full_disk = False
        self._lock = threading.Lock()

    @classmethod
    def load(cls, stack: Stack) -> State:
        """Read the file; return an empty state if there is none.

        Raises:
            DamagedStateError: The file does not hold a state.
            UserError: Another version of this program wrote it.
        """
        state = cls(stack)
        try:
            data = json.loads(state.path.read_text(encoding="utf-8"))
            if data["version"] not in (1, VERSION):
                raise UserError(
                    f"{state.path} was written by another version of this program (state version "
                    f"{data['version']}, and this one reads {VERSION}): use that version.",
                    code="state.version",
                )
            made = _of_version_1(data["resources"]) if data["version"] == 1 else data["made"]
            state.made = {urn: Made(**each) for urn, each in made.items()}
            state.boot, state.outputs = data["boot"], data["outputs"]
        except FileNotFoundError:
            return state
        except OSError as error:
            raise os_errors.explain(error, state.path) from error
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise DamagedStateError(state.path, stack.name, error) from error
        return state

    def put(self, urn: str, made: Made) -> None:
        with self._lock:
            self.made[urn] = made
            self._save()

    def remove(self, urn: str) -> None:
        with self._lock:
            del self.made[urn]
            self._save()

    def sort(self, urns: Sequence[str]) -> None:
        """Put what is listed in this order, and what is not among these URNs last."""
        with self._lock:
            self.made = {
                urn: self.made[urn] for urn in dict.fromkeys([*urns, *self.made]) if urn in self.made
            }

    def save(self) -> None:
        with self._lock:
            self._save()

    def _save(self) -> None:
        made = {urn: asdict(each) for urn, each in self.made.items()}
        data = {"version": VERSION, "boot": self.boot, "outputs": self.outputs, "made": made}
        fresh = self.path.with_suffix(".new")
        try:
            descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                json.dump(data, file, indent=1)
                file.flush()
                os.fsync(descriptor)
            fresh.replace(self.path)
        except OSError as error:
            if not (self.ignore_full_disk and error.errno in (errno.ENOSPC, errno.EDQUOT)):
                raise os_errors.explain(error, self.path) from error

    def erase(self) -> None:
        """Remove the file of a stack of which nothing is left."""
        self.path.unlink(missing_ok=True)
        self.path.with_suffix(".new").unlink(missing_ok=True)


def _of_version_1(resources: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the commands of a state that an earlier version wrote, which recorded all resources."""
    kept = ("inputs", "deleted_with", "id", "outputs", "process")
    return {
        each["urn"]: {"whole": each["status"] == "created", **{key: each[key] for key in kept}}
        for each in resources
        if each["type"] == COMMAND
    }


def path_of(stack: Stack) -> Path:
    return locations.state_dir(stack) / STATE_FILE


def has_state(stack: Stack) -> bool:
    """Return whether there is a state, even a damaged one. The stack is then up without the Pulumi CLI."""
    return path_of(stack).exists()


def outputs(stack: Stack) -> dict[str, Any] | None:
    """Return the recorded outputs; `None` if the stack is not up."""
    state = State.load(stack)
    return state.outputs if state.made else None
