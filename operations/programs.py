"""Runs programs to their end, and captures or shows what they print: the one way of the commands.

`operations.processes` runs what Ctrl-C must end in order, with a line of output at a time.
`node.system.subprocesses.start` starts what outlives a command.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO

CANNOT_RUN, TIMED_OUT = 127, 124
"""Statuses as of a shell and of timeout(1)."""
BLOCK = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Output:
    """What a program printed, and how it ended.

    Attributes:
        status: Its exit status; CANNOT_RUN, or TIMED_OUT after which it was killed.
        out: Its standard output.
        err: Its standard error, or why it could not be run.
    """

    status: int
    out: str = ""
    err: str = ""

    @property
    def failed(self) -> bool:
        """Whether the status is not 0."""
        return self.status != 0


def capture(
    argv: Sequence[str],
    *,
    text: str = "",
    env: Mapping[str, str] | None = None,
    seconds: float | None = None,
    merged: bool = False,
    errors: str = "replace",
    handles: Collection[int] = (),
    apart: bool = False,
) -> Output:
    """Run a program to its end, without a terminal's input, and capture what it prints.

    Args:
        text: Its standard input; empty means none.
        env: Its environment; this program's by default.
        seconds: The time limit.
        merged: Whether its standard error is part of `out`, in the order in which it printed both.
        errors: What becomes of bytes that are no text; `surrogateescape` keeps them, for names of files.
        handles: Descriptors that the program inherits.
        apart: Whether it gets a session of its own: all that it has started ends with its time limit, and a
            terminal's Ctrl-C reaches this program alone, which then ends it.
    """
    try:
        with (
            subprocess.Popen(
                argv,
                env=env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT if merged else subprocess.PIPE,
                text=True,
                errors=errors,
                pass_fds=tuple(handles),
                start_new_session=apart,
            ) as process,
            _killed_on_error(process, group=apart),
        ):
            out, err = process.communicate(text, seconds)
    except OSError as error:
        return Output(CANNOT_RUN, err=str(error))
    except subprocess.TimeoutExpired:
        return Output(TIMED_OUT, err=f"no answer within {seconds:g} s")
    return Output(process.returncode, out, err or "")


@contextlib.contextmanager
def _killed_on_error(process: subprocess.Popen[str], *, group: bool) -> Iterator[None]:
    """Kill a program, or all of its process group, if waiting for it ends by any error."""
    try:
        yield
    except BaseException:
        process.kill()
        if group:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        raise


def show(
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    seconds: float | None = None,
    into: IO[str] | None = None,
    errors: bool = True,
    reads: bool = False,
) -> Output:
    """Run a program to its end whose output is for the user, and goes where this program's goes.

    Args:
        env: Its environment; this program's by default.
        seconds: The time limit.
        into: Where its standard output goes; to this program's by default.
        errors: Whether standard error is shown as well. If not, it is captured.
        reads: Whether it reads this program's standard input. If not, it has none.
    """
    try:
        done = subprocess.run(
            argv,
            env=env,
            stdin=None if reads else subprocess.DEVNULL,
            stdout=into,
            stderr=None if errors else subprocess.PIPE,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
        )
    except OSError as error:
        return Output(CANNOT_RUN, err=str(error))
    except subprocess.TimeoutExpired:
        return Output(TIMED_OUT, err=f"no end within {seconds:g} s")
    return Output(done.returncode, err=done.stderr or "")


def transfer(
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    source: IO[bytes] | None = None,
    target: IO[bytes] | None = None,
    on_line: Callable[[str], object],
) -> Output:
    """Run a program to its end that reads a file or writes one, byte by byte, as long as that takes.

    Args:
        env: Its environment; this program's by default.
        source: Its standard input; none by default.
        target: The file for its standard output, which is captured otherwise.
        on_line: Called with each line of its standard error, as it comes.

    Raises:
        OSError: The file cannot be written; the program is ended.
    """
    try:
        process = subprocess.Popen(
            argv,
            env=env,
            stdin=subprocess.DEVNULL if source is None else source,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
    except OSError as error:
        return Output(CANNOT_RUN, err=str(error))
    lines: list[str] = []

    def read(stream: IO[bytes]) -> None:
        for raw in stream:
            lines.append(raw.decode(errors="replace").rstrip())
            on_line(lines[-1])

    with process:
        # Both streams are read at once, so that neither fills up.
        reader = threading.Thread(target=read, args=(process.stderr,), daemon=True)
        reader.start()
        try:
            printed = b""
            if process.stdout is not None and target is None:
                printed = process.stdout.read()
            elif process.stdout is not None and target is not None:
                # Not by the program itself, which on a full disk could not say whose disk that is.
                shutil.copyfileobj(process.stdout, target, BLOCK)
            status = process.wait()
        except BaseException:
            process.terminate()
            raise
        reader.join()
    return Output(status, printed.decode(errors="replace"), "\n".join(lines))
