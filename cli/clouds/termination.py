"""Terminates what Slurm has launched, without the controller, which may be dead or still launching."""

from __future__ import annotations

import time
from collections.abc import Callable

from cli.clouds.cloud import ALIVE, ENDING, Cloud
from infra.errors import UserError
from node import plurals

POLL_SECONDS = 5.0
SECONDS = 900.0
"""The time limit. Machines with many network cards take minutes to terminate, and keep their network
interfaces until then."""
QUIET_LOOKS = 2
"""How often in a row the list must be empty: a cloud's lists lag behind a launch."""


def terminate_compute(
    cloud: Cloud,
    say: Callable[[str], None],
    seconds: float = SECONDS,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Terminate a cluster's compute machines, wait until they are gone, and remove what they left behind.

    Args:
        seconds: The time limit.

    Returns:
        The number of terminated machines.

    Raises:
        UserError: Some machines are left after `seconds`, or the cloud refuses.
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
            say(f"ending {plurals.count(len(there), 'machine')} of cluster {cluster}")
            said = len(there)
        if there and time.monotonic() > deadline:
            names = ", ".join(f"{machine.name} ({machine.id})" for machine in there[:5])
            have = "has" if len(there) == 1 else "have"
            raise UserError(
                f"{plurals.count(len(there), 'machine')} of cluster {cluster} {have} not ended within "
                f"{seconds:g} s: {names}. "
                f"Run the command again; what still costs money is in {cloud.label}'s console under the "
                f"name of the cluster, {cluster}"
            )
        if quiet < QUIET_LOOKS:
            sleep(POLL_SECONDS)
    cloud.remove_loose()
    return len(asked)
