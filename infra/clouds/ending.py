"""Ending what Slurm has launched, with the cloud alone: the controller may be dead, or still launching."""

from __future__ import annotations

import time
from collections.abc import Callable

from infra.clouds.cloud import ALIVE, ENDING, Cloud
from infra.errors import UserError
from infra.node import words

POLL_SECONDS = 5.0
SECONDS = 900.0
"""Machines with many network cards take minutes to end, and hold their network interfaces so long."""
QUIET_LOOKS = 2
"""A cloud's lists lag behind a launch: nothing is gone before it was missing twice."""


def sweep(
    cloud: Cloud,
    say: Callable[[str], None],
    seconds: float = SECONDS,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """End every compute machine of a cluster and wait until they have gone, then remove what they left.

    Returns:
        How many were ended.

    Raises:
        UserError: some are left after so many seconds, or the cloud refuses.
    """
    cluster = cloud.place.cluster
    deadline = time.monotonic() + seconds
    asked: set[str] = set()
    quiet, said = 0, -1
    while quiet < QUIET_LOOKS:
        there = cloud.machines(*ALIVE, *ENDING, role="compute")
        alive = [machine for machine in there if machine.state in ALIVE]
        if alive:
            cloud.end(alive)
        asked.update(machine.id for machine in alive)
        quiet = 0 if there else quiet + 1
        if there and len(there) != said:
            say(f"ending {words.count(len(there), 'machine')} of cluster {cluster}")
            said = len(there)
        if there and time.monotonic() > deadline:
            names = ", ".join(f"{machine.name} ({machine.id})" for machine in there[:5])
            have = "has" if len(there) == 1 else "have"
            raise UserError(
                f"{words.count(len(there), 'machine')} of cluster {cluster} {have} not ended within "
                f"{seconds:g} s: {names}. "
                f"Run the command again; what still costs money is in {cloud.label}'s console under the "
                f"name of the cluster, {cluster}"
            )
        if quiet < QUIET_LOOKS:
            sleep(POLL_SECONDS)
    cloud.remove_loose()
    return len(asked)
