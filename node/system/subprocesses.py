"""Starts programs. All of a machine's code starts them here, so that each has the same protections.

A program gets the environment that the caller names, and a session of its own: a signal to the caller's
process group does not reach it, and when its time is over, all that it has started ends with it. Its output
goes to files and not to pipes, because a daemon that it starts would keep a pipe open.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
from collections.abc import Collection, Mapping, Sequence
from typing import IO, Any, NamedTuple

SEARCH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""The PATH of programs whose caller has none of its own to pass on."""
KILL_SECONDS = 2.0
"""The longest wait for the end of a killed program. One that is stuck in the kernel does not end."""


class Ran(NamedTuple):
    """How a program ended.

    Attributes:
        status: The exit status; negative for a signal. `None` means that the program was killed, because its
            time was over.
        output: Its standard output; empty if the caller gave a file for it.
        errors: Its standard error, likewise.
    """

    status: int | None
    output: str = ""
    errors: str = ""

    def last_line(self) -> str:
        """Return the last line that it printed, or a word for none."""
        lines = (self.errors.strip() or self.output.strip()).splitlines()
        return lines[-1].strip() if lines else "no output"


def start(
    argv: Sequence[str],
    env: Mapping[str, str],
    output: IO[bytes] | int,
    *,
    errors: IO[bytes] | int | None = None,
    stdin: IO[bytes] | int = subprocess.DEVNULL,
    folder: str | os.PathLike[str] = "/",
    handles: Collection[int] = (),
    identity: Mapping[str, Any] | None = None,
) -> subprocess.Popen[bytes]:
    """Start a program in a session of its own.

    Args:
        argv: The command line.
        env: The whole environment.
        output: The file of standard output.
        errors: The file of standard error; the same one by default.
        stdin: Standard input; empty by default.
        folder: The working folder.
        handles: Descriptors that the program inherits.
        identity: The user and the groups, as `node.system.accounts.start_as` returns them.

    Raises:
        OSError: The program cannot be started; `FileNotFoundError`: it is not installed.
    """
    return subprocess.Popen(
        argv,
        stdin=stdin,
        stdout=output,
        stderr=output if errors is None else errors,
        env=dict(env),
        cwd=folder,
        pass_fds=tuple(handles),
        start_new_session=True,
        **(identity or {}),
    )


def run(
    argv: Sequence[str],
    env: Mapping[str, str],
    seconds: float | None = None,
    *,
    stdin: str = "",
    output: IO[bytes] | None = None,
    apart: bool = False,
    most_bytes: int | None = None,
    folder: str | os.PathLike[str] = "/",
    handles: Collection[int] = (),
) -> Ran:
    """Run a program to its end. When its time is over, it is killed with all that it has started.

    Args:
        argv, env, folder, handles: As for `start`.
        seconds: The time limit.
        stdin: The text of standard input.
        output: A file for standard output and standard error, which `Ran` then lacks.
        apart: Whether standard error is not for that file, but for `Ran`.
        most_bytes: The greatest length of a file that it writes; a longer one ends it by SIGXFSZ.

    Raises:
        OSError: As for `start`.
    """
    with contextlib.ExitStack() as files:
        # They are in memory: they need no space on a disk, and no module for temporary files.
        given, out, err = (
            files.enter_context(os.fdopen(os.memfd_create(name), "w+b"))
            for name in ("stdin", "stdout", "stderr")
        )
        given.write(stdin.encode())
        given.seek(0)
        child = start(
            argv,
            env,
            out if output is None else output,
            errors=err if output is None or apart else None,
            stdin=given,
            folder=folder,
            handles=handles,
        )
        if most_bytes is not None:
            with contextlib.suppress(ProcessLookupError):  # it has ended
                resource.prlimit(child.pid, resource.RLIMIT_FSIZE, (most_bytes, most_bytes))
        try:
            status: int | None = child.wait(seconds)
        except subprocess.TimeoutExpired:
            status = None
            kill(child)
        except BaseException:  # the time limit of a boot's step, or Ctrl-C
            kill(child)
            raise
        out.seek(0)
        err.seek(0)
        texts = [file.read().decode(errors="replace") for file in (out, err)]
    return Ran(status, *texts)


def kill(child: subprocess.Popen[bytes]) -> None:
    """End a started program with all that is in its session's process group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(KILL_SECONDS)
