"""Runs a command with a time limit. The error of a failed command has its last lines."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Collection, Mapping
from typing import Protocol

from node.slurm.environment import without_slurm
from node.system import subprocesses, waiting

TAIL_LINES = 15


class CommandError(RuntimeError):
    """A command failed. The message's first line says how; the command's last lines follow.

    Attributes:
        status: The exit status. `None` means that the command did not end in time. 127 means that it is not
            installed.
    """

    def __init__(self, message: str, status: int | None) -> None:
        super().__init__(message)
        self.status = status


class Runner(Protocol):
    """A function that runs a command. Tests use a recorder instead."""

    def __call__(
        self,
        *argv: str,
        timeout: float = 60.0,
        env: Mapping[str, str] | None = None,
        stdin: str = "",
        allow: Collection[int] = (0,),
        attempts: int = 1,
        pause: float = 5.0,
    ) -> str: ...


def run(
    *argv: str,
    timeout: float = 60.0,
    env: Mapping[str, str] | None = None,
    stdin: str = "",
    allow: Collection[int] = (0,),
    attempts: int = 1,
    pause: float = 5.0,
) -> str:
    """Run a command to its end and returns its standard output.

    Args:
        timeout: Seconds for each attempt. After that the command and all of its processes are killed.
        env: Variables in addition to our own environment, of which no variable of Slurm's is passed on.
        stdin: The text for standard input.
        allow: The exit statuses that are not a failure.
        attempts: The number of attempts, for errors that may pass by themselves.
        pause: Seconds between two attempts.

    Raises:
        CommandError: The command is not installed, did not end in time, or ended with another status.
    """

    def again(error: CommandError) -> bool:
        if error.status != 127:
            print(f"trying again in {pause:g} s: {error}", file=sys.stderr, flush=True)
        return error.status != 127

    def once() -> str:
        return _once(argv, timeout, env, stdin, allow)

    return waiting.retry(once, CommandError, itertools.repeat(pause, attempts - 1), again)


def _once(
    argv: tuple[str, ...],
    timeout: float,
    env: Mapping[str, str] | None,
    stdin: str,
    allow: Collection[int],
) -> str:
    try:
        ended = subprocesses.run(argv, {**without_slurm(os.environ), **(env or {})}, timeout, stdin=stdin)
    except FileNotFoundError:
        raise CommandError(f"{argv[0]} is not installed on this machine", 127) from None
    if ended.status in allow:
        return ended.output
    # Imported late to save time: the boot of a process machine runs no command.
    import shlex

    how = f"not done after {timeout:g} s" if ended.status is None else f"exit status {ended.status}"
    tail = (ended.errors.strip() or ended.output.strip()).splitlines()[-TAIL_LINES:]
    raise CommandError("\n".join([f"{shlex.join(argv)}: {how}", *tail]), ended.status)
