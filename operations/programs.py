"""Runs short programs and captures what they print: the one way of the commands.

`operations.processes` runs what may take long, with a line of output at a time and a group to signal.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

CANNOT_RUN, TIMED_OUT = 127, 124
"""Statuses as of a shell and of timeout(1)."""


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
) -> Output:
    """Run a program to its end, without a terminal's input.

    Args:
        text: Its standard input; empty means none.
        env: Its environment; this program's by default.
        seconds: The time limit.
        merged: Whether its standard error is part of `out`, in the order in which it printed both.
    """
    try:
        done = subprocess.run(
            argv,
            env=env,
            input=text,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if merged else subprocess.PIPE,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
        )
    except OSError as error:
        return Output(CANNOT_RUN, err=str(error))
    except subprocess.TimeoutExpired:
        return Output(TIMED_OUT, err=f"no answer within {seconds:g} s")
    return Output(done.returncode, done.stdout, done.stderr or "")
