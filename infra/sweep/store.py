"""The plan of the sweep under way, on the engineer's machine: `sweeps/<key>/plan.json` of the state folder.

The key is that of the checkout and the stack, so two clones never meet. The file is replaced as a whole, and
is there before the first job is: whatever ends this program, the next one finds what is under way.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from infra.errors import EXIT_REFUSED, UserError
from infra.hints import hint
from infra.node.codec import from_json, to_json
from infra.runner import locations
from infra.sweep.plan import API_VERSION, Plan


class Store:
    """The one sweep that a stack of a checkout may have under way."""

    def __init__(self, project: Path, stack: str) -> None:
        self._stack = stack
        self.folder = locations.state_root() / "sweeps" / locations.key(project, stack)
        self.file = self.folder / "plan.json"
        self._lock = self.folder / "lock"

    def load(self) -> Plan | None:
        """The plan, if there is one.

        Raises:
            UserError: exit 3; the file is not one of ours, or of another version.
        """
        try:
            text = self.file.read_text()
        except FileNotFoundError:
            return None
        try:
            value = json.loads(text)
            plan = from_json(Plan, value)
        except ValueError as error:
            raise UserError(self._unreadable(str(error)), EXIT_REFUSED) from None
        if plan.api_version != API_VERSION:
            raise UserError(self._unreadable(f"it is {plan.api_version}, not {API_VERSION}"), EXIT_REFUSED)
        return plan

    def save(self, plan: Plan) -> None:
        """Write it, durably. The lock must be held."""
        draft = self.file.with_name(f".{self.file.name}.{os.getpid()}")
        with draft.open("w") as file:
            json.dump(to_json(plan), file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(self.file)

    def has(self, plan: Plan) -> bool:
        """Whether that sweep is still under way."""
        there = self.load()
        return there is not None and there.id == plan.id

    def forget(self, plan: Plan) -> None:
        """The sweep is over. The lock must be held."""
        if self.has(plan):
            self.file.unlink()

    @contextmanager
    def locked(self, busy: Callable[[], None] = lambda: None) -> Iterator[None]:
        """One process at a time decides and submits; the kernel ends that however the process ends.

        Args:
            busy: called where another process is at it, before waiting for it.
        """
        descriptor = self._acquire(busy)
        try:
            yield
        finally:
            if not self.file.exists():
                self._lock.unlink(missing_ok=True)
                for folder in (self.folder, self.folder.parent):
                    with contextlib.suppress(OSError):  # others' sweeps are in there
                        folder.rmdir()
            os.close(descriptor)

    def _acquire(self, busy: Callable[[], None]) -> int:
        while True:
            try:
                with contextlib.suppress(FileExistsError):  # not `exist_ok`: that looks for it once more
                    self.folder.mkdir(mode=0o700, parents=True)
                descriptor = os.open(self._lock, os.O_RDWR | os.O_CREAT, 0o600)
            except FileNotFoundError:  # the last holder removed the folder just now
                continue
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                busy()
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            # Removed between our open and our lock: a file that is gone has no links.
            if os.fstat(descriptor).st_nlink:
                return descriptor
            os.close(descriptor)

    def _unreadable(self, why: str) -> str:
        return (
            f"{self.file}: {why}. If a sweep of this stack is under way, its jobs go on and "
            f"`{hint('exec', self._stack, '-- squeue')}` lists them. Remove the file to begin another."
        )
