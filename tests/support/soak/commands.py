"""The faults of a soak that are in `./cluster` itself: a killed `up`, a refused `down`, a killed `down`.

A `down` that has told jobs to end has done what it was asked for, so a soak kills it before: when it has
closed the partitions. A `down` that nobody kills would destroy the cluster; so the one here kills itself at
the latest before the engine's destroy.
"""

from __future__ import annotations

import os
import random
import subprocess
from pathlib import Path

from infra.errors import EXIT_REFUSED
from node.system import locks
from tests.support import killed_command
from tests.support.checkout import Checkout
from tests.support.soak import sharing

UP_KILLED, DOWN_REFUSED, DOWN_KILLED = "up killed", "down refused", "down killed"
COMMANDS = (UP_KILLED, DOWN_REFUSED, DOWN_KILLED)
LONGEST_UP_SECONDS = 5.0
SPARE = ("nodes: {max: 2}}  # spare", "nodes: {max: 1}}  # spare")
CHANGES = (("suspend_time: 4,", "suspend_time: 5,"), SPARE, sharing.CHANGE)
"""Texts of the stack file, before and after, if it has them.

Fewer nodes close their partition for the moment of the change. It is one without jobs: `up` refuses the
change where a job is on a node that goes.
"""


def change(checkout: Checkout, chance: random.Random) -> str:
    """Change the stack file, there or back, in a way that ends no job, and return the change."""
    text = _file(checkout).read_text()
    before, after = chance.choice([pair for pair in CHANGES if any(side in text for side in pair)])
    if before not in text:
        before, after = after, before
    _write(checkout, before, after)
    return after


def _file(checkout: Checkout) -> Path:
    return checkout.folder / f"Pulumi.{checkout.stack}.yaml"


def _write(checkout: Checkout, before: str, after: str) -> None:
    _file(checkout).write_text(_file(checkout).read_text().replace(before, after))


def kill_up(checkout: Checkout, seconds: float) -> str:
    """Run `up`, kill it after a while, and return how it ended."""
    up = subprocess.Popen(
        [str(checkout.folder / "cluster"), "up", "--stack", checkout.stack],
        env=checkout.env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        return f"ended with status {up.wait(seconds)}"
    except subprocess.TimeoutExpired:
        up.kill()
        up.wait()
        return f"SIGKILL after {seconds:.1f} s"


def refused_down(checkout: Checkout) -> str:
    """Run `down` while another process holds the stack's lock, and return what is wrong; empty if nothing."""
    lock = os.open(checkout.state / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        if not locks.acquire(lock, wait=False):
            return ""
        done = checkout.cluster("down", "--yes", timeout=120)
    finally:
        os.close(lock)
    return "" if done.returncode == EXIT_REFUSED else f"status {done.returncode}: {done.stderr[-500:]}"


def kill_down(checkout: Checkout) -> str:
    """Run a `down` that is killed when it has closed the partitions, and return how it ended."""
    # If Slurm is silent, it goes on without them, and is killed before it destroys anything.
    done = killed_command.run(checkout, (killed_command.CLOSED, killed_command.DESTROY), "down", "--yes")
    return f"status {done.returncode}: {done.stderr.strip()[-200:]}"
