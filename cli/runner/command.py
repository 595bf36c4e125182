"""`command:local:Command`, as version 1.2 of pulumi-command runs it (its provider/pkg/provider/local)."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cli.runner import process, wire
from cli.runner.events import OnEvent, OutputLine, Stream
from cli.runner.project import REDACTED
from infra.errors import EXIT_REFUSED, UserError
from node.processes import CALLER_VARIABLE, caller

TYPE = "command:local:Command"
DEFAULT_INTERPRETER = ("/bin/sh", "-c")
TAIL_LINES = 20
LONGEST_VARIABLE = 120_000
"""Longest previous output that is passed on, in bytes: the kernel refuses variables of 128 KiB or more."""
SHORTEST_MASKED = 4
"""Shorter secrets are not masked in output: the mask would hide other words and give the secret away."""


class CommandError(Exception):
    """A command failed; the message says how, with the end of its output."""


@dataclass(frozen=True, slots=True)
class Call:
    """One run of one of a resource's commands."""

    urn: str
    name: str
    inputs: dict[str, Any]
    """The resource's inputs; secrets are in clear text."""
    stdout: str = ""
    stderr: str = ""
    """Output of the previous run, for `PULUMI_COMMAND_STDOUT` and `PULUMI_COMMAND_STDERR`."""
    masks: list[str] = field(default_factory=list)
    """Strings that must not appear in events and messages."""


class Commands:
    """Runs commands for one project.

    Args:
        stopping: set by an interrupt; output of commands after it is not shown.
    """

    def __init__(
        self, directory: Path, on_event: OnEvent, processes: process.Processes, stopping: threading.Event
    ) -> None:
        self._directory = directory
        self._on_event = on_event
        self._processes = processes
        self._stopping = stopping

    def run(
        self, text: str, call: Call, on_start: Callable[[int], None] = lambda _pid: None
    ) -> tuple[str, str]:
        """Run `text` with the resource's interpreter, folder, environment and input.

        Returns:
            stdout and stderr, each without one final newline, as the provider returns them.

        Raises:
            CommandError: it could not be started, failed, or was killed.
        """
        inputs = call.inputs
        folder = self._directory / inputs.get("dir", ".")
        interpreter = inputs.get("interpreter") or DEFAULT_INTERPRETER
        if not folder.is_dir():
            raise CommandError(f"its folder {folder} does not exist")
        try:
            finished = process.run(
                [*interpreter, text],
                cwd=folder,
                env=self._environment(call),
                stdin=inputs.get("stdin", ""),
                on_line=self._printer(call),
                processes=self._processes,
                on_start=on_start,
            )
        except OSError as error:
            raise CommandError(f"cannot run {interpreter[0]}: {error.strerror}") from error
        if finished.returncode and self._stopping.is_set():
            # The output of an interrupted command, such as a traceback, explains nothing.
            raise CommandError("interrupted")

        if finished.returncode:
            raise CommandError(_mask(f"{_status(finished.returncode)}{_tail(finished)}", call.masks))
        return finished.stdout.removesuffix("\n"), finished.stderr.removesuffix("\n")

    def _environment(self, call: Call) -> dict[str, str]:
        env = {**os.environ, CALLER_VARIABLE: caller(os.getpid())}
        env.update({k: str(v) for k, v in (call.inputs.get("environment") or {}).items()})
        if call.inputs.get("addPreviousOutputInEnv", True):
            for variable, text in (
                ("PULUMI_COMMAND_STDOUT", call.stdout),
                ("PULUMI_COMMAND_STDERR", call.stderr),
            ):
                if 0 < len(text.encode()) <= LONGEST_VARIABLE:
                    env[variable] = text
        return env

    def _printer(self, call: Call) -> process.OnLine:
        logged: tuple[Stream, ...] = ("stdout", "stderr")
        match call.inputs.get("logging"):
            case "stdout":
                logged = ("stdout",)
            case "stderr":
                logged = ("stderr",)
            case "none":
                logged = ()

        def show(stream: Stream, line: str) -> None:
            if stream in logged and not self._stopping.is_set():
                self._on_event(OutputLine(call.urn, call.name, stream, _mask(line, call.masks)))

        return show


def check(name: str, inputs: dict[str, Any]) -> None:
    """Refuse inputs of a Command that the embedded runner does not support.

    Raises:
        UserError: exit 3.
    """
    for key in ("assetPaths", "archivePaths"):
        if key in inputs:
            raise UserError(f"{name}: `{key}` is more than the embedded runner does", EXIT_REFUSED)
    if wire.has_asset(inputs):
        raise UserError(f"{name}: assets are more than the embedded runner does", EXIT_REFUSED)
    for key in ("delete", "dir", "interpreter"):
        if wire.has_secret(inputs.get(key)):
            raise UserError(
                f"{name}: a secret in `{key}` would have to be kept in clear to destroy it later; "
                "the embedded runner keeps no secrets. Pass it in `environment` or `stdin`.",
                EXIT_REFUSED,
            )


def for_delete(inputs: dict[str, Any]) -> dict[str, Any]:
    """Return recorded inputs for the delete command, without secrets: only their digests are recorded."""

    def forgotten(value: Any) -> bool:
        return isinstance(value, dict) and set(value) == {wire.DIGEST}

    known = {k: v for k, v in inputs.items() if not forgotten(v)}
    if isinstance(environment := known.get("environment"), dict):
        known["environment"] = {k: v for k, v in environment.items() if not forgotten(v)}
    return known


def _status(returncode: int) -> str:
    if returncode > 0:
        return f"exit status {returncode}"
    try:
        return f"killed by {signal.Signals(-returncode).name}"
    except ValueError:
        return f"killed by signal {-returncode}"


def _tail(finished: process.Finished) -> str:
    lines = (finished.stderr.strip() or finished.stdout.strip()).splitlines()[-TAIL_LINES:]
    return ":\n" + "\n".join(lines) if lines else ", and it printed nothing"


def _mask(text: str, masks: list[str]) -> str:
    for mask in masks:
        if len(mask) >= SHORTEST_MASKED:
            text = text.replace(mask, REDACTED)
    return text
