"""A node's watch for notices that the cloud will take the machine.

The cloud informs only the machine, or informs others too late. There are 30 seconds on Compute Engine, and
two minutes on EC2. So the node itself drains itself and requeues its jobs, as the reconciler would. Then it
sends the notice to the controller in its boot report, for a driver that does not learn of it otherwise.

If there is more time (an hour on Compute Engine before the host maintenance of a machine with GPUs), the node
is drained at once, but its jobs are requeued only when the end is near. If the cloud only may take the
machine (EC2's rebalance recommendation), the node is drained, and the reconciler gives it back after its
jobs.
"""

from __future__ import annotations

import contextlib
import json
import math
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from node.bootstrap import report, report_sender
from node.bootstrap.context import Context
from node.bootstrap.services import Service
from node.bootstrap.vm import clouds
from node.design.folders import Folders
from node.design.model import Settings
from node.design.published import read_settings
from node.elastic.plan import Action, clock
from node.elastic.requeue import Requeue
from node.elastic.rules import AT_RISK, LATER, NEAR_SECONDS, TAKEN, NodePhase, Verb
from node.elastic.view import REASON_PREFIX, phase
from node.slurm.control import Control, Slurm, SlurmError
from node.system import foreign
from node.system.cloud_api import Notice, ServiceError

WAIT_SECONDS = 60.0
SAME_SECONDS = 30.0
"""The greatest difference between two notices of the same end."""
PAUSE_SECONDS = 1.0
REPORT_SECONDS = 3.0
ATTEMPTS = 3
SLURM_SECONDS = 10.0
NAME = "notices"


def start(context: Context) -> str:
    """Start the watch, if the machine's cloud needs it, and return a note for the report, or none."""
    if not clouds.of(context.settings).watched(context):
        return ""
    call = (
        f"import sys; sys.path.insert(0, {str(context.folders.code)!r}); "
        f"from node.bootstrap.vm.notices import main; main({str(context.settings_file)!r}, "
        f"{context.host!r})"
    )
    log = context.path(context.folders.log) / "notices.log"
    context.services.start(Service(NAME, (context.settings.site.python, "-I", "-S", "-c", call), log))
    return "the watch for notices"


def main(settings_file: str, node: str) -> None:
    settings = read_settings(Path(settings_file))
    notices = clouds.of(settings).notices(node)
    control = Control(Folders(settings).slurm_conf, SLURM_SECONDS)
    signal.signal(signal.SIGTERM, _ends)
    try:
        at = watch(
            notices.wait,
            lambda reason: drain(control, node, reason),
            lambda at: announce(settings, node, at),
            announced(settings),
        )
        # From here on SIGTERM waits until all is reported. If it were ignored, it would be lost.
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    except _Ending:
        # The machine is being switched off, perhaps because of a notice that this watch has not seen yet.
        with contextlib.suppress(ServiceError, SlurmError, KeyError):
            final_notice(settings, control, node, notices.notice())
        return
    evacuate(settings, control, node, at)
    # The process stays, because after a restart it would report the same notice again.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    signal.pause()


class _Ending(Exception):  # noqa: N818 - says what is the case
    """systemd stops this service."""


def _ends(_number: int, _frame: FrameType | None) -> None:
    raise _Ending


def watch(
    wait: Callable[[float], Notice | None],
    drain: Callable[[str], bool],
    announce: Callable[[float], None],
    due: float | None = None,
) -> float:
    """Wait until the machine's end is near, and returns its time. Failed requests are repeated.

    Args:
        wait: Waits for a notice, at most so many seconds, and returns it.
        drain: Drains the node. It is called with the reason, again until it returns true, while the machine
            may be taken or will be taken later.
        announce: Is called with the time if it is known and not near.
        due: The time of the end that an earlier watch has announced. `None` means that there is none.
    """
    drained = False
    while True:
        try:
            left = math.inf if due is None else due - NEAR_SECONDS - time.time()
            if due is not None and left <= 0:
                print(f"this machine will be taken at {clock(due)}", flush=True)
                return due
            if (notice := wait(max(1.0, min(WAIT_SECONDS, left)))) is not None and notice.at is not None:
                # The cloud does not say when the hour began, so the first notice counts.
                sooner = due is None or notice.at < due - SAME_SECONDS
                if sooner:
                    due = notice.at
                    print(f"{notice.cause}: this machine will be taken at {clock(due)}", flush=True)
                if notice.at - time.time() <= NEAR_SECONDS:
                    return notice.at
                if sooner:
                    announce(notice.at)
            if due is not None:
                drained = drained or drain(f"{LATER} at {clock(due)}")
            elif notice is not None:
                drained = drained or drain(AT_RISK)
        except (ServiceError, SlurmError, ValueError, KeyError) as error:
            print(error, file=sys.stderr, flush=True)
            time.sleep(PAUSE_SECONDS)


def final_notice(settings: Settings, control: Slurm, node: str, notice: Notice | None) -> None:
    """Report the notice of a machine that is being switched off, except if Slurm switches it off.

    A notice may be an hour early, and Slurm may give the node back when its jobs have ended. A drain would
    then stop jobs on the node's next machine.

    Args:
        notice: The cloud's present notice.

    Raises:
        SlurmError: Slurm does not answer.
        KeyError: Slurm does not know the node.
    """
    if notice is None or notice.at is None:
        return
    far = notice.at - time.time() > NEAR_SECONDS
    if far and phase(control.nodes()[node]) is NodePhase.POWERING_DOWN:
        return
    evacuate(settings, control, node, min(notice.at, announced(settings) or notice.at))


def drain(control: Slurm, node: str, reason: str) -> bool:
    """Drain the node. Its jobs go on.

    Returns:
        Whether the node gets no more jobs. False means that it still starts or is silent and was not drained.

    Raises:
        SlurmError: Slurm does not answer, or refuses.
        KeyError: Slurm does not know the node.
    """
    state = control.nodes()[node]
    now = phase(state)
    # A node that a user or an earlier watch has drained keeps its reason.
    if now is NodePhase.UP and not state.is_drained:
        print(f"the node takes no more jobs: {reason}", flush=True)
        control.update_node([node], state="DRAIN", reason=REASON_PREFIX + reason)
    return now not in (NodePhase.POWERING_UP, NodePhase.SILENT)


def evacuate(settings: Settings, control: Slurm, node: str, at: float) -> None:
    """Drain the node and requeue its jobs, then write the report. An error of the first is printed only.

    This process ends with the machine, so it repeats nothing that a killed slurmctld has forgotten. The
    controller does so once it has the notice: it requeues each job that runs on the node then, and remembers
    that. What remains is a job that this requeue has ended before slurmctld comes back.

    Args:
        at: The time of the machine's end, in seconds since the epoch.
    """
    action = Action(Verb.EVACUATE, node, None, f"{TAKEN} at {clock(at)}")
    try:
        Requeue(control).evacuate([action], {})
    except SlurmError as error:
        print(error, file=sys.stderr, flush=True)
    announce(settings, node, at)


def announced(settings: Settings) -> float | None:
    """Return the time of the machine's end that an earlier watch wrote into the boot report."""
    return report.notice(_report(settings))


def announce(settings: Settings, node: str, at: float) -> None:
    """Publish the notice, if the driver does not learn of it otherwise. Errors are only printed."""
    if clouds.of(settings).tells_controller:
        return
    try:
        boot_report = _report(settings)
        text = json.dumps({**foreign.record(boot_report), "notice": at}, indent=1)
        report.file_sink(boot_report)(text)
    except (OSError, ValueError, TypeError) as error:
        print(f"the notice is not in the boot report: {error}", file=sys.stderr, flush=True)
        return
    # Only the first of the two changes anything; people read the second.
    for publish in (_to_controller, _to_bucket):
        try:
            publish(settings, node, text)
        except (OSError, ValueError, KeyError) as error:
            print(f"the notice is not published: {error}", file=sys.stderr, flush=True)


def _to_controller(settings: Settings, _node: str, text: str) -> None:
    """Send the report to the controller.

    Raises:
        OSError: The controller did not take it.
        ValueError, KeyError: The report is damaged.
    """
    content, address = report.brief(text), settings.site.controller_address
    for left in reversed(range(ATTEMPTS)):
        try:
            report_sender.send(address, content, seconds=REPORT_SECONDS)
        except OSError:
            if not left:
                raise
        else:
            return


def _to_bucket(settings: Settings, node: str, text: str) -> None:
    cloud, name = clouds.of(settings), str(settings.site.bucket)
    url = name if "://" in name else f"{cloud.scheme}{name}"
    cloud.bucket(url, attempts=ATTEMPTS, timeout=REPORT_SECONDS).put(f"boot/{node}.json", text.encode())


def _report(settings: Settings) -> Path:
    return Path(str(Folders(settings).lib)) / "boot.json"
