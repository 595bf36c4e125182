"""Runs a role's steps on this machine, each within its time, and reports each."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from infra.node.bootstrap.report import BootReport, file_sink
from infra.node.bootstrap.services import InitServices
from infra.node.bootstrap.steps import STEPS, Context, SkipStep, Step
from infra.node.codec import from_json
from infra.node.model import Folders, Settings


class StepTimeoutError(Exception):
    """A step took longer than it may."""


EXPECTED = (StepTimeoutError, OSError, RuntimeError, ValueError, subprocess.SubprocessError)
"""Failures that say themselves what is wrong."""


def bootstrap(settings_file: Path, role: str, host: str, bucket: str) -> None:
    """Boot this machine, then stay with its services for its life.

    A failed boot leaves the machine as it is, for those who look why; it does not become a node.
    """
    settings = from_json(Settings, json.loads(settings_file.read_text()))
    folders = Folders(settings)
    own = f"boot/{host}.json" if folders.process else "boot.json"
    sinks = [file_sink(Path(str(folders.lib)) / own), file_sink(Path(bucket) / "boot" / f"{host}.json")]
    services = InitServices()
    report = BootReport(host, role, sinks)
    context = Context(settings, settings_file, role, host, folders, services, report)
    run_steps(context, [step for step in STEPS if role in step.roles])
    services.keep()


def run_steps(context: Context, steps: Sequence[Step]) -> bool:
    """Every step in turn until one fails. True when the machine is ready."""
    for step in steps:
        context.report.begin(step.name, step.timeout)
        start = time.monotonic()
        try:
            note = _within(step, context)
        except SkipStep as skip:
            context.report.end("skipped", time.monotonic() - start, str(skip))
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
    signal.setitimer(signal.ITIMER_REAL, step.timeout)
    try:
        return step.run(context)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
