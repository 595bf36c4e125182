"""Keeps the plan of the sweep under way in the stack's state: `sweep/plan.json`.

The file is written before
the first job is submitted, and always replaced as a whole. If this program ends, the next one finds the plan.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from cli.hints import hint
from cli.runner import lock
from cli.sweep.plan import API_VERSION, Plan
from infra.errors import EXIT_REFUSED, UserError
from infra.program import folders, locations
from infra.program.files import write_atomically
from infra.program.stack import Stack
from node.codec import from_json, to_json


class Store:
    """The plan file of a stack. A stack of a checkout has at most one sweep under way."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self.folder = locations.state_dir(stack) / "sweep"
        self.file = self.folder / "plan.json"
        self._lock = self.folder / "lock"

    def load(self) -> Plan | None:
        """Return the plan if there is one.

        Raises:
            UserError: The file is not a plan, or was written by another version (exit 3).
        """
        try:
            text = self.file.read_text()
        except FileNotFoundError:
            return None
        try:
            value = json.loads(text)
            plan = from_json(Plan, value)
        except (ValueError, RecursionError) as error:
            raise UserError(self._unreadable(str(error)), EXIT_REFUSED) from None
        if plan.api_version != API_VERSION:
            raise UserError(self._unreadable(f"it is {plan.api_version}, not {API_VERSION}"), EXIT_REFUSED)
        return plan

    def save(self, plan: Plan) -> None:
        """Write the plan so that it survives a crash. The caller must hold the lock."""
        write_atomically(self.file, json.dumps(to_json(plan), indent=1), durable=True)

    def has(self, plan: Plan) -> bool:
        """Return whether that sweep is still under way."""
        there = self.load()
        return there is not None and there.id == plan.id

    def forget(self, plan: Plan) -> None:
        """Remove the plan of a sweep that is over. The caller must hold the lock."""
        if self.has(plan):
            self.file.unlink()

    @contextmanager
    def locked(self, busy: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Hold the lock, so that one process at a time decides and submits.

        The kernel releases the lock when the process ends in any way.

        Args:
            busy: Called before waiting if another process holds the lock.
        """
        descriptor = lock.acquire(self._lock, self._make_folder, lambda _descriptor: busy())
        try:
            yield
        finally:
            if not self.file.exists():
                self._lock.unlink(missing_ok=True)
                with contextlib.suppress(FileNotFoundError):
                    self.folder.rmdir()
                folders.remove_empty(self.folder.parent)
            os.close(descriptor)

    def _make_folder(self) -> None:
        folders.make_state_dir(self._stack)
        with contextlib.suppress(FileExistsError):  # `exist_ok` would check the folder a second time
            self.folder.mkdir(mode=0o700)

    def _unreadable(self, why: str) -> str:
        return (
            f"{self.file}: {why}. If a sweep of this stack is under way, its jobs go on and "
            f"`{hint('exec', self._stack.name, '-- squeue')}` lists them. Remove the file to begin another."
        )
