"""Runs a command with a time limit. The error of a failed command has its last lines."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Mapping
from typing import Protocol

from node.slurm.environment import without_slurm

TAIL_LINES = 15


class CommandError(RuntimeError):
    """A command failed. The message's first line says how; the command's last lines follow.

    Attributes:
        status: the exit status. `None` means that the command did not end in time. 127 means that it is not
            installed.
    """

    def __init__(self, message: str, status: int | None) -> None:
        super().__init__(message)
        self.status = status


class Runner(Protocol):
    """Runs a command. Tests use a recorder instead."""

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
    """Runs a command to its end and returns its standard output.

    Args:
        timeout: seconds for each attempt. After that the command and all of its processes are killed.
        env: variables in addition to our own environment, of which no variable of Slurm's is passed on.
        stdin: the text for standard input.
        allow: the exit statuses that are not a failure.
        attempts: the number of attempts, for errors that may pass by themselves.
        pause: seconds between two attempts.

    Raises:
        CommandError: The command is not installed, did not end in time, or ended with another status.
    """
    for left in reversed(range(attempts)):
        try:
            return _once(argv, timeout, env, stdin, allow)
        except CommandError as error:
            if not left or error.status == 127:
                raise
            print(f"trying again in {pause:g} s: {error}", file=sys.stderr, flush=True)
            time.sleep(pause)
    raise AssertionError("attempts is at least 1")


def _once(
    argv: tuple[str, ...],
    timeout: float,
    env: Mapping[str, str] | None,
    stdin: str,
    allow: Collection[int],
) -> str:
    # Imported late to save time: the boot of a process machine runs no command.
    import shlex
    import tempfile

    # Files are used instead of pipes, because a daemon that the command starts would keep a pipe open.
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        given.write(stdin.encode())
        given.seek(0)
        try:
            child = subprocess.Popen(
                argv, stdin=given, stdout=out, stderr=err, env={**without_slurm(os.environ), **(env or {})},
                cwd="/", start_new_session=True,
            )  # fmt: skip
        except FileNotFoundError:
            raise CommandError(f"{argv[0]} is not installed on this machine", 127) from None
        try:
            status: int | None = child.wait(timeout)
        except subprocess.TimeoutExpired:
            status = None
            _kill(child)
        except BaseException:  # the time limit of the boot's step
            _kill(child)
            raise
        out.seek(0)
        err.seek(0)
        output, errors = (file.read().decode(errors="replace") for file in (out, err))
    if status in allow:
        return output
    ended = f"not done after {timeout:g} s" if status is None else f"exit status {status}"
    tail = (errors.strip() or output.strip()).splitlines()[-TAIL_LINES:]
    raise CommandError("\n".join([f"{shlex.join(argv)}: {ended}", *tail]), status)


def _kill(child: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
