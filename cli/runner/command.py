"""`command:local:Command`, as version 1.2 of pulumi-command runs it (its provider/pkg/provider/local)."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cli.hints import HOW_TO_INSTALL
from cli.runner.events import OnEvent, OutputLine, Stream
from infra.errors import EXIT_REFUSED, UserError
from node.processes import CALLER_VARIABLE, caller
from operations import processes

TYPE = "command:local:Command"
INPUTS = ("create", "update", "delete", "triggers", "environment", "stdin")
"""The inputs that the embedded runner knows, which are those that the local stack uses."""
TAIL_LINES = 20


class CommandError(Exception):
    """A command failed; the message says how, with the end of its output."""


class Commands:
    """The commands of one project, and the way to run them.

    Args:
        stopping: Set by an interrupt; output of commands after it is not shown.
    """

    def __init__(
        self, directory: Path, on_event: OnEvent, processes: processes.Processes, stopping: threading.Event
    ) -> None:
        self._directory = directory
        self._on_event = on_event
        self._processes = processes
        self._stopping = stopping

    def run(
        self, text: str, urn: str, name: str, inputs: dict[str, Any], on_start: Callable[[int], None]
    ) -> dict[str, str]:
        """Run a resource's command in the project's folder, with the resource's environment and input.

        Returns:
            `stdout` and `stderr`, each without one final newline, as the provider returns them.

        Raises:
            CommandError: It could not be started, failed, or was killed.
        """

        def show(stream: Stream, line: str) -> None:
            if not self._stopping.is_set():
                self._on_event(OutputLine(urn, name, stream, line))

        env = {**os.environ, CALLER_VARIABLE: caller(os.getpid())}
        env |= {key: str(value) for key, value in (inputs.get("environment") or {}).items()}
        try:
            finished = processes.run(
                ["/bin/sh", "-c", text],
                cwd=self._directory,
                env=env,
                stdin=inputs.get("stdin", ""),
                on_line=show,
                processes=self._processes,
                on_start=on_start,
            )
        except OSError as error:
            raise CommandError(f"cannot run /bin/sh in {self._directory}: {error.strerror}") from error
        if finished.returncode and self._stopping.is_set():
            # The output of an interrupted command, such as a traceback, explains nothing.
            raise CommandError("interrupted")
        if finished.returncode:
            raise CommandError(f"{_status(finished.returncode)}{_tail(finished)}")
        return {
            "stdout": finished.stdout.removesuffix("\n"),
            "stderr": finished.stderr.removesuffix("\n"),
        }


def check(name: str, inputs: dict[str, Any]) -> None:
    """Refuse inputs of a Command that the embedded runner does not support.

    Raises:
        UserError: Exit 3, saying how to install Pulumi.
    """
    if unknown := sorted(inputs.keys() - set(INPUTS)):
        raise UserError(
            f"{name}: {', '.join(unknown)}: an input that needs the Pulumi CLI; without it a command has "
            f"{', '.join(INPUTS)}. {HOW_TO_INSTALL}",
            EXIT_REFUSED,
        )


def _status(returncode: int) -> str:
    if returncode > 0:
        return f"exit status {returncode}"
    try:
        return f"killed by {signal.Signals(-returncode).name}"
    except ValueError:
        return f"killed by signal {-returncode}"


def _tail(finished: processes.Finished) -> str:
    lines = (finished.stderr.strip() or finished.stdout.strip()).splitlines()[-TAIL_LINES:]
    return ":\n" + "\n".join(lines) if lines else ", and it printed nothing"
