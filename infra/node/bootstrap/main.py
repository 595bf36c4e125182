"""Runs a role's steps on this machine, each within its time, and reports each."""

from __future__ import annotations

import json
import signal
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
            tail = traceback.format_exc().splitlines()
            print(*tail, sep="\n", file=sys.stderr, flush=True)
            context.report.end("failed", time.monotonic() - start, str(error) or repr(error), tail)
            context.report.finish("failed")
            return False
        else:
            context.report.end("done", time.monotonic() - start, note)
    context.report.finish("ready")
    return True


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
