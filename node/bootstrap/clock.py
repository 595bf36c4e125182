"""Compares a machine's clock with the controller's before the machine's daemons speak to Slurm.

munge refuses a message that seems to be five minutes old, or as much ahead ("Expired credential", "Rewound
credential"). Then slurmd cannot register, and says nothing that names the clock.
"""

from __future__ import annotations

import sys
import time

from node.bootstrap.command import CommandError
from node.bootstrap.context import Context
from node.system.waiting import wait_at_most

MUNGE_SECONDS = 300.0
"""The lifetime of munge's credentials, which is also the largest difference of clocks that it tolerates."""
TOLERANCE_SECONDS = MUNGE_SECONDS - 10.0
"""The largest difference here: messages take a moment on their way."""
SYNC_SECONDS = 60.0
"""How long chrony may take to set the clock. This is less than the time limit of the step `ready`."""
PAUSE_SECONDS = 2.0


def remember(context: Context, controller: float) -> None:
    """Remember the controller's time. A later change of this machine's clock does not affect that.

    Args:
        controller: Seconds since the epoch.
    """
    context.controller_clock = controller - time.monotonic()
    ahead = _ahead(context)
    if abs(ahead) > TOLERANCE_SECONDS:
        context.report.correct(ahead)


def check(context: Context) -> None:
    """Wait until chrony has set a clock that differs from the controller's. Without chrony it does not wait.

    Raises:
        OSError: munge would refuse this machine's messages.
    """

    def over() -> bool:
        return _is_right(context) or not _step(context)

    wait_at_most(over, SYNC_SECONDS, PAUSE_SECONDS)
    if not _is_right(context):
        ahead = _ahead(context)
        raise OSError(
            f"this machine's clock is {abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} the "
            f"controller's, and munge refuses messages that are {MUNGE_SECONDS:.0f} s off: see which of "
            "the two is wrong (date -u), and what its chrony says (chronyc tracking)"
        )


def _is_right(context: Context) -> bool:
    return abs(_ahead(context)) <= TOLERANCE_SECONDS


def _ahead(context: Context) -> float:
    """Return by how many seconds this machine's clock is ahead of the controller's."""
    if context.controller_clock is None:
        return 0.0
    return time.time() - (context.controller_clock + time.monotonic())


def _step(context: Context) -> bool:
    """Have chrony set the clock at once, if it knows the time by now, and return whether chrony runs."""
    print("the clock differs from the controller's; chrony is to set it", file=sys.stderr, flush=True)
    try:
        context.run("systemctl", "is-active", "--quiet", "chrony.service", timeout=10.0)
        context.run("chronyc", "makestep", timeout=10.0, allow=(0, 1))
    except CommandError:
        return False
    return True
