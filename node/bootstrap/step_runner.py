"""Runs steps on this machine one after another, with time limits, and writes them to the boot report."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from types import FrameType

from node.bootstrap.context import Context, Reboot, SkipStep, Step, StepFailedError


class StepTimeoutError(Exception):
    """A step exceeded its time limit."""


EXPECTED = (StepTimeoutError, OSError, RuntimeError, ValueError, subprocess.SubprocessError)
"""Errors whose message alone says what is wrong."""


def run_steps(context: Context, steps: Sequence[Step], restart: Callable[[], object] | None = None) -> bool:
    """Run the steps one after another until one fails, and return whether the machine is ready.

    Args:
        restart: Restarts the machine if a step requires it. `None` means an immediate restart by systemd.
    """
    for step in steps:
        context.report.begin(step.name, step.timeout)
        start = time.monotonic()
        try:
            note = _within(step, context)
        except SkipStep as skip:
            context.report.end("skipped", time.monotonic() - start, str(skip))
        except Reboot as reboot:
            context.report.end("done", time.monotonic() - start, f"{reboot}; the machine starts again")
            context.report.finish("rebooting")
            if restart is None:
                context.run("systemctl", "reboot")
            else:
                restart()
            return False
        except Exception as error:  # a failed boot is always reported, whatever the reason
            note, *tail = explained(error)
            if isinstance(error, StepFailedError):
                print(f"step {step.name} failed: {note}", *tail, sep="\n", file=sys.stderr)
            else:
                traceback.print_exc()
            sys.stderr.flush()
            context.report.end("failed", time.monotonic() - start, note, tail)
            context.report.finish("failed")
            return False
        else:
            note, *tail = note.splitlines() or [""]
            context.report.end("done", time.monotonic() - start, note, tail)
    context.report.finish("ready")
    return True


def explained(error: Exception) -> list[str]:
    """Return the report's lines on a failure: the message, then further lines.

    The traceback is included only for errors that this program does not expect. The machine's log has the
    traceback of every error but a `StepFailedError`.
    """
    first, *rest = (str(error) or repr(error)).splitlines()
    if isinstance(error, subprocess.CalledProcessError):
        rest += str(error.stderr or error.output or "").splitlines()
    if not isinstance(error, EXPECTED):
        rest += traceback.format_exc().splitlines()
    notes = [line for note in getattr(error, "__notes__", []) for line in note.splitlines()]
    return [first, *rest, *notes]


def _within(step: Step, context: Context) -> str:
    def expired(_number: int, _frame: FrameType | None) -> None:
        raise StepTimeoutError(f"step {step.name} was not done after {step.timeout:g} s")

    before = signal.signal(signal.SIGALRM, expired)
    # Two `try` blocks are needed: the signal may come before the step begins or after it has ended.
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, step.timeout)
            return step.run(context)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.signal(signal.SIGALRM, before)
