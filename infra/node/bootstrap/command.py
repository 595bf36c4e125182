"""Running a command of the machine's: with a time limit, and its last lines in the error."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Mapping
from typing import Protocol

TAIL_LINES = 15


class CommandError(RuntimeError):
    """The first line says what failed; the next are the command's last.

    Attributes:
        status: its exit status; None where it was not done in time, or is not there.
    """

    def __init__(self, message: str, status: int | None) -> None:
        super().__init__(message)
        self.status = status


class Runner(Protocol):
    """Runs a command; tests put a recorder in its place."""

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
    """Run a command to its end. Returns its standard output.

    Args:
        timeout: seconds for each attempt; then it is killed, with all that it has started.
        env: beside our own environment.
        allow: exit statuses that are no failure.
        attempts: for what may pass by itself, with `pause` seconds between two.

    Raises:
        CommandError: it is not there, was not done in time, or ended with another status.
    """
    for left in reversed(range(attempts)):
        try:
            return _once(argv, timeout, env, stdin, allow)
        except CommandError as error:
            if not left or error.status == 127:
                raise
            print(f"once more in {pause:g} s: {error}", file=sys.stderr, flush=True)
            time.sleep(pause)
    raise AssertionError("attempts is at least 1")


def _once(
    argv: tuple[str, ...],
    timeout: float,
    env: Mapping[str, str] | None,
    stdin: str,
    allow: Collection[int],
) -> str:
    # Here and not above: a process machine's boot runs no command, and has no time for it.
    import shlex
    import tempfile

    # Files and no pipes: a daemon that the command leaves behind would hold a pipe open for ever.
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        given.write(stdin.encode())
        given.seek(0)
        try:
            child = subprocess.Popen(
                argv, stdin=given, stdout=out, stderr=err, env={**os.environ, **(env or {})},
                cwd="/", start_new_session=True,
            )  # fmt: skip
        except FileNotFoundError:
            raise CommandError(f"{argv[0]} is not installed on this machine", 127) from None
        try:
            status: int | None = child.wait(timeout)
        except subprocess.TimeoutExpired:
            status = None
            _kill(child)
        except BaseException:  # the step's own time is over
            _kill(child)
            raise
        out.seek(0)
        err.seek(0)
        said, complained = (file.read().decode(errors="replace") for file in (out, err))
    if status in allow:
        return said
    ended = f"not done after {timeout:g} s" if status is None else f"exit status {status}"
    tail = (complained.strip() or said.strip()).splitlines()[-TAIL_LINES:]
    raise CommandError("\n".join([f"{shlex.join(argv)}: {ended}", *tail]), status)


def _kill(child: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
