"""Terminates what Slurm has launched, without the controller, which may be dead or still launching."""

from __future__ import annotations

import time
from collections.abc import Callable

from infra.errors import UserError
from node.system import plurals
from operations.clouds.cloud import ALIVE, ENDING, Cloud
from operations.waiting import attempts

TERMINATION_POLL_SECONDS = 5.0
TERMINATION_SECONDS = 900.0
"""The time limit. Machines with many network cards take minutes to terminate, and keep their network
interfaces until then."""
QUIET_LOOKS = 2
"""How often in a row the list must be empty: a cloud's lists lag behind a launch."""


def terminate_compute(
    cloud: Cloud,
    say: Callable[[str], None],
    seconds: float = TERMINATION_SECONDS,
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
    requested: set[str] = set()
    quiet, reported = 0, -1
    for left in attempts(seconds, TERMINATION_POLL_SECONDS, sleep):
        machines = cloud.machines(*ALIVE, *ENDING, role="compute")
        alive = [machine for machine in machines if machine.state in ALIVE]
        if alive:
            cloud.end(alive)
        requested.update(machine.id for machine in alive)
        quiet = 0 if machines else quiet + 1
        if machines and len(machines) != reported:
            say(f"ending {plurals.count(len(machines), 'machine')} of cluster {cluster}")
            reported = len(machines)
        if quiet == QUIET_LOOKS:
            break
        if machines and not left:
            names = ", ".join(f"{machine.name} ({machine.id})" for machine in machines[:5])
            have = "has" if len(machines) == 1 else "have"
            raise UserError(
                f"{plurals.count(len(machines), 'machine')} of cluster {cluster} {have} not ended within "
                f"{seconds:g} s: {names}. "
                f"Run the command again; what still costs money is in {cloud.label}'s console under the "
                f"name of the cluster, {cluster}",
                code="cloud.machines-left",
            )
    cloud.remove_loose()
    return len(requested)
