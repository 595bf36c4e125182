"""Runs steps on this machine in turn, each within its time, and reports each."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from types import FrameType

from infra.node.bootstrap.context import Context, Reboot, SkipStep, Step


class StepTimeoutError(Exception):
    """A step took longer than it may."""


EXPECTED = (StepTimeoutError, OSError, RuntimeError, ValueError, subprocess.SubprocessError)
"""Failures that say themselves what is wrong."""


def run_steps(context: Context, steps: Sequence[Step], restart: Callable[[], object] | None = None) -> bool:
    """Every step in turn until one fails. True when the machine is ready.

    Args:
        restart: how the machine starts again where a step wants it; None: by systemd, now.
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
        except Exception as error:  # a boot that fails says so, whatever the reason
            traceback.print_exc()
            sys.stderr.flush()
            note, *tail = explained(error)
            context.report.end("failed", time.monotonic() - start, note, tail)
            context.report.finish("failed")
            return False
        else:
            context.report.end("done", time.monotonic() - start, note)
    context.report.finish("ready")
    return True


def explained(error: Exception) -> list[str]:
    """What the report says of a failure: the sentence, then lines that belong to it.

    The lines of a traceback only where this program did not expect the error; the machine's log has them all.
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
    # Two of them: the time may be over just as the step has ended, or has not begun.
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, step.timeout)
            return step.run(context)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.signal(signal.SIGALRM, before)
