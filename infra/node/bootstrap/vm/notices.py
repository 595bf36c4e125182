"""A node's watch: the cloud tells the machine, and nobody else or not in time, that it will be taken.

There are 30 seconds on Compute Engine, and two minutes on EC2. So the node itself has Slurm give it no more
jobs and queue those again that it has, as the reconciler would; then it writes the notice into its boot
report, for a driver that hears of it from nobody else. Where there is more time (Compute Engine's hour ahead
of the host maintenance of a machine with GPUs) it takes no more jobs at once, and those that it has are
queued again only when the end is near. Where the cloud says only that it may take the machine (EC2's
rebalance recommendation) it takes no more jobs; the reconciler gives it back after those that it has.
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

from infra.node.bootstrap import report
from infra.node.bootstrap.context import Context
from infra.node.bootstrap.services import Service
from infra.node.bootstrap.vm import clouds
from infra.node.cloud.errors import ServiceError
from infra.node.cloud.notice import Notice
from infra.node.codec import from_json
from infra.node.elastic.plan import Action, clock
from infra.node.elastic.requeue import Requeue
from infra.node.elastic.rules import AT_RISK, LATER, NEAR_SECONDS, TAKEN, NodePhase, Verb
from infra.node.elastic.view import REASON_PREFIX, phase
from infra.node.model import Folders, Settings
from infra.node.slurm.control import Control, Slurm, SlurmError

WAIT_SECONDS = 60.0
SAME_SECONDS = 30.0
"""By how much two words on the same end may differ."""
PAUSE_SECONDS = 1.0
REPORT_SECONDS = 3.0
SLURM_SECONDS = 10.0
NAME = "notices"


def start(context: Context) -> str:
    """Start it, on a machine that its cloud has watch. Returns a word on it; empty where there is no need."""
    if not clouds.of(context.settings).watched(context):
        return ""
    call = (
        f"import sys; sys.path.insert(0, {str(context.folders.code)!r}); "
        f"from infra.node.bootstrap.vm.notices import main; main({str(context.settings_file)!r}, "
        f"{context.host!r})"
    )
    log = context.path(context.folders.log) / "notices.log"
    context.services.start(Service(NAME, (context.settings.site.python, "-I", "-S", "-c", call), log))
    return "the watch for notices"


def main(settings_file: str, node: str) -> None:
    settings = from_json(Settings, json.loads(Path(settings_file).read_text()))
    notices = clouds.of(settings).notices(node)
    control = Control(Folders(settings).slurm_conf, SLURM_SECONDS)
    signal.signal(signal.SIGTERM, _ends)
    try:
        at = watch(
            notices.wait,
            lambda reason: spare(control, node, reason),
            lambda at: announce(settings, node, at),
            announced(settings),
        )
        # Who ends it from here on waits until all is told: ignored, the signal would be lost.
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    except _Ending:
        # The machine is being switched off, which may be for what nobody has told us yet.
        with contextlib.suppress(ServiceError, SlurmError, KeyError):
            last_word(settings, control, node, notices.notice())
        return
    tell(settings, control, node, at)
    # Started again it would tell the same once more.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    signal.pause()


class _Ending(Exception):  # noqa: N818 - says what is the case
    """systemd wants this service to end."""


def _ends(_number: int, _frame: FrameType | None) -> None:
    raise _Ending


def watch(
    wait: Callable[[float], Notice | None],
    spare: Callable[[str], bool],
    announce: Callable[[float], None],
    due: float | None = None,
) -> float:
    """When the machine will be taken, as soon as that is near. What does not answer is asked again.

    Args:
        spare: called with the reason while it may be taken, or will be later, until it has had Slurm use the
            node no more.
        announce: called with the time as soon as that is known and not near.
        due: when it will be taken, as an earlier watch has announced it.
    """
    spared = False
    while True:
        try:
            left = math.inf if due is None else due - NEAR_SECONDS - time.time()
            if due is not None and left <= 0:
                print(f"this machine will be taken at {clock(due)}", flush=True)
                return due
            if (notice := wait(max(1.0, min(WAIT_SECONDS, left)))) is not None and notice.at is not None:
                # Of its hour the cloud does not say when it began: the first word of it counts.
                sooner = due is None or notice.at < due - SAME_SECONDS
                if sooner:
                    due = notice.at
                    print(f"{notice.cause}: this machine will be taken at {clock(due)}", flush=True)
                if notice.at - time.time() <= NEAR_SECONDS:
                    return notice.at
                if sooner:
                    announce(notice.at)
            if due is not None:
                spared = spared or spare(f"{LATER} at {clock(due)}")
            elif notice is not None:
                spared = spared or spare(AT_RISK)
        except (ServiceError, SlurmError, ValueError, KeyError) as error:
            print(error, file=sys.stderr, flush=True)
            time.sleep(PAUSE_SECONDS)


def last_word(settings: Settings, control: Slurm, node: str, notice: Notice | None) -> None:
    """What is told by a machine that is being switched off: nothing where that is Slurm's doing.

    An announcement stands for an hour, and Slurm gives the node back as soon as its jobs are over: a drain
    would keep the node's next machine from its jobs.

    Args:
        notice: as the cloud has it now.

    Raises:
        SlurmError, KeyError: Slurm does not answer, or does not know the node.
    """
    if notice is None or notice.at is None:
        return
    far = notice.at - time.time() > NEAR_SECONDS
    if far and phase(control.nodes()[node]) is NodePhase.POWERING_DOWN:
        return
    tell(settings, control, node, min(notice.at, announced(settings) or notice.at))


def spare(control: Slurm, node: str, reason: str) -> bool:
    """Have Slurm give the node no more jobs; those that it has go on.

    Returns:
        Whether it gets none; False while it starts or is silent: a drain would be none of a node that is up.

    Raises:
        SlurmError, KeyError: Slurm does not answer, refuses, or does not know the node.
    """
    state = control.nodes()[node]
    now = phase(state)
    # What is drained stays so: by a person, or by this watch before it was started again.
    if now is NodePhase.UP and not state.is_drained:
        print(f"the node takes no more jobs: {reason}", flush=True)
        control.update_node([node], state="DRAIN", reason=REASON_PREFIX + reason)
    return now not in (NodePhase.POWERING_UP, NodePhase.SILENT)


def tell(settings: Settings, control: Slurm, node: str, at: float) -> None:
    """Tell Slurm, then the report. What fails is printed: the other may still be of use.

    Args:
        at: when the machine will be taken, in seconds since the epoch.
    """
    action = Action(Verb.EVACUATE, node, None, f"{TAKEN} at {clock(at)}")
    try:
        Requeue(control).evacuate([action], {})
    except SlurmError as error:
        print(error, file=sys.stderr, flush=True)
    announce(settings, node, at)


def announced(settings: Settings) -> float | None:
    """When this machine will be taken, as its boot report has it from an earlier watch."""
    return report.notice(_report(settings))


def announce(settings: Settings, node: str, at: float) -> None:
    """Tell the driver, where it hears of it from nobody else. What fails is printed."""
    if clouds.of(settings).tells_controller:
        return
    try:
        publish(settings, node, at)
    except (OSError, ValueError, KeyError) as error:
        print(f"the notice is not in the boot report: {error}", file=sys.stderr, flush=True)


def publish(settings: Settings, node: str, at: float) -> None:
    """Write the notice into the machine's boot report, here and in the bucket.

    Raises:
        OSError, ValueError: there is no report, or the bucket takes none.
    """
    own = _report(settings)
    text = json.dumps({**json.loads(own.read_text()), "notice": at}, indent=1)
    report.file_sink(own)(text)
    where, name = clouds.of(settings), settings.site.driver["bucket"]
    url = name if "://" in name else f"{where.scheme}{name}"
    where.bucket(url, attempts=3, timeout=REPORT_SECONDS).put(f"boot/{node}.json", text.encode())


def _report(settings: Settings) -> Path:
    return Path(str(Folders(settings).lib)) / "boot.json"
