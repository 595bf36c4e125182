"""Runs the verbs of a stack's commands. The state lists each before it begins, and when it is done."""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from cli.console import events
from cli.console.events import OnEvent, Operation, Summary
from cli.engine.state import COMMAND, Made, State
from infra.errors import UserError
from node.system.processes import CALLER_VARIABLE, ProcessId, caller
from operations import processes

SHELL = ("/bin/sh", "-c")
"""What runs a command that names no interpreter, as in pulumi-command."""
TAIL_LINES = 20


class VerbError(Exception):
    """A verb failed; the message says how, with the end of its output."""


class Verbs:
    """The verbs of one `up` or `down`. Several threads call `make`.

    Args:
        directory: Where they run: the program's folder.

    Attributes:
        stopping: Set by an interrupt; no verb begins after it.
    """

    def __init__(self, directory: Path, state: State, on_event: OnEvent) -> None:
        self.processes = processes.Processes()
        self.stopping = threading.Event()
        self.failures: list[str] = []
        self._directory = directory
        self._state = state
        self._on_event = on_event
        self._done: list[Operation] = []
        self._began = time.monotonic()

    @property
    def whole(self) -> bool:
        """Whether no verb has failed, and there was no interrupt."""
        return not (self.failures or self.stopping.is_set())

    def summary(self) -> Summary:
        return Summary(dict(Counter(self._done)), len(self.failures), time.monotonic() - self._began)

    def end_leftovers(self) -> None:
        """End the verbs that a killed run has left behind: they must not run beside others."""
        for urn, made in self._state.made.items():
            if made.process and processes.end_leftover(ProcessId(*map(int, made.process))):
                text = f"{_name(urn)}: ended the command that a killed run left behind"
                self._on_event(events.Message(text))
            made.process = None

    def make(self, urn: str, inputs: dict[str, Any], deleted_with: str) -> Made | None:
        """Have what a command declares. Its verb can run again, but with the same inputs need not.

        With other triggers it is another one, and the former is deleted first.

        Returns:
            What is listed of it; `None` if a verb failed, or did not begin because of an interrupt.
        """
        made = self._state.made.get(urn) or Made(inputs)
        operation: Operation = "updated" if made.outputs else "created"
        if made.whole and made.inputs == inputs:
            operation = "unchanged"
        elif made.inputs.get("triggers") != inputs.get("triggers"):
            operation = "replaced"
        if self.stopping.is_set():
            return None
        with self._reported(urn, operation):
            if operation == "replaced":
                self._end(urn, made)
                made = Made(inputs)  # it takes the former's place in the list
            if operation != "unchanged":
                made.whole = False  # first: another thread may save at any moment
                made.inputs, made.deleted_with = inputs, deleted_with
                self._apply(urn, made)
            return made
        return None

    def delete(self, urns: Sequence[str]) -> None:
        """Delete what is listed, the last first, up to the first that fails: it needs those before it."""
        for urn in reversed(urns):
            if not self.whole:
                return
            made = self._state.made[urn]
            with self._reported(urn, "deleted"):
                if made.deleted_with not in urns:
                    self._end(urn, made)
                self._state.remove(urn)

    def _apply(self, urn: str, made: Made) -> None:
        """Run the verb that updates, or else creates."""
        verb = made.inputs.get("create")
        if made.outputs:
            verb = made.inputs.get("update", verb)
        else:
            made.id = _name(urn) + secrets.token_hex(4)
        self._state.put(urn, made)
        made.outputs = self._run(urn, made, verb) if verb else {"stdout": "", "stderr": ""}
        made.whole = True
        self._state.save()

    def _end(self, urn: str, made: Made) -> None:
        """Run the verb that deletes, if there is one."""
        if verb := made.inputs.get("delete"):
            made.whole, made.outputs = False, {}
            self._state.save()
            self._run(urn, made, verb)

    def _run(self, urn: str, made: Made, verb: str) -> dict[str, str]:
        """Run a verb in the program's folder, with the command's environment and input.

        Returns:
            `stdout` and `stderr`, each without one final newline, as pulumi-command returns them.

        Raises:
            VerbError: It failed, was killed, or did not begin because of an interrupt.
            OSError: It could not be started.
        """

        def show(stream: events.Stream, line: str) -> None:
            # The output of an interrupted verb, such as a traceback, explains nothing.
            if not self.stopping.is_set():
                self._on_event(events.OutputLine(urn, _name(urn), stream, line))

        def note(pid: int) -> None:
            process = ProcessId.of(pid)
            made.process = (pid, process.started) if process else None
            self._state.save()

        if self.stopping.is_set():
            raise VerbError("interrupted")
        own = {key: str(value) for key, value in made.inputs.get("environment", {}).items()}
        done = processes.run(
            [*made.inputs.get("interpreter", SHELL), verb],
            cwd=self._directory,
            env={**os.environ, CALLER_VARIABLE: caller(os.getpid()), **own},
            stdin=made.inputs.get("stdin", ""),
            on_line=show,
            processes=self.processes,
            on_start=note,
        )
        made.process = None
        if done.returncode:
            raise VerbError("interrupted" if self.stopping.is_set() else _explained(done))
        return {"stdout": done.stdout.removesuffix("\n"), "stderr": done.stderr.removesuffix("\n")}

    @contextlib.contextmanager
    def _reported(self, urn: str, operation: Operation) -> Iterator[None]:
        """Report the begin and the end of the body. A failure is recorded and not raised."""
        began, subject = time.monotonic(), (urn, _name(urn), COMMAND, operation)
        if operation != "unchanged":
            self._on_event(events.ResourceStarted(*subject))
        try:
            yield
        except (VerbError, UserError, OSError) as error:
            self.failures.append(f"{_name(urn)}: {error}")
            self._on_event(events.ResourceFailed(*subject, time.monotonic() - began, str(error)))
        else:
            self._done.append(operation)
            self._on_event(events.ResourceDone(*subject, time.monotonic() - began))


def _name(urn: str) -> str:
    return urn.split("::", 3)[3]


def _explained(done: processes.Finished) -> str:
    number, lines = done.returncode, (done.stderr.strip() or done.stdout.strip()).splitlines()
    how = f"exit status {number}" if number > 0 else f"killed by signal {-number}"
    return "\n".join([f"{how}:", *lines[-TAIL_LINES:]]) if lines else f"{how}, and it printed nothing"
