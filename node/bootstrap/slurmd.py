"""Starts a slurmd so that its node registers, with a workaround for a release that sometimes loses nodes.

Slurm's traps (docs/internals/slurm_traps.md): boot-second.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import threading
import time

from node.bootstrap.services import Service, Services
from node.design.folders import Folders
from node.slurm.version import Version, traits
from node.system.processes import ProcessId

CHECK_SECONDS = (3.0, 5.0, 10.0)
"""The pauses between the looks at a node that has not registered; the last one repeats."""
QUIET_SECONDS = 0.4
"""The longest time from slurmd's first look at the clock to its registration."""


def start_delay(version: Version, uptime: float) -> float:
    """Return the seconds to wait before `slurmd -b` where nodes come up within a second.

    With -b a slurmd reports its own start as the boot time of its node, and slurmctld ignores a node that
    booted before it was requested. 22.05 counts the time since then in whole seconds of the kernel's uptime:
    if a new one begins between slurmd's start and its registration, the node seems to be a second older. So
    no slurmd is started shortly before a second of uptime ends (of 240 nodes none was lost, before 17 of 80).
    A later SIGHUP makes a lost slurmd register once more.

    Args:
        uptime: `time.clock_gettime(time.CLOCK_BOOTTIME)`.
    """
    left = 1.0 - uptime % 1.0
    return left if traits(version).boot_time_in_uptime and left < QUIET_SECONDS else 0.0


def repeat_delay(started: float, uptime: float) -> float:
    """Return the seconds until a slurmd registers once more, so that its node seems no second older.

    The same fault of 22.05 (see `start_delay`) would otherwise meet each repetition again. Slurmd subtracts
    the whole seconds of uptime since its start from the clock. That difference is exact if, within a second
    of uptime, the registration comes no earlier than the start came. So it is repeated a little after that
    moment, with most of the second left until it arrives.

    Args:
        started: The uptime at slurmd's start, as `time.clock_gettime(time.CLOCK_BOOTTIME)`.
        uptime: The present uptime.
    """
    moment = started % 1.0
    return (moment + (1.0 - moment) / 3 - uptime) % 1.0


def start_slurmd(services: Services, service: Service, node: str, folders: Folders, version: Version) -> int:
    """Start a node's slurmd when its registration will be accepted, and checks that it was.

    `start_delay` describes the fault of 22.05. On a busy machine the start may take longer than expected.
    Then a SIGHUP makes slurmd register once more.

    Returns:
        The pid of slurmd.
    """
    time.sleep(start_delay(version, _uptime()))
    started = _uptime()
    pid = services.start(service)
    process = ProcessId.of(pid)
    if traits(version).boot_time_in_uptime and process is not None:
        arguments = (node, folders, process, started)
        threading.Thread(target=_repeat_registration, args=arguments, daemon=True).start()
    return pid


def _repeat_registration(node: str, folders: Folders, slurmd: ProcessId, started: float) -> None:
    # Imported late, after the node's start, so that no boot waits for it.
    from node.slurm.control import Control, SlurmError

    control = Control(folders.slurm_conf)
    for pause in itertools.chain(CHECK_SECONDS, itertools.repeat(CHECK_SECONDS[-1])):
        time.sleep(pause)
        if not slurmd.alive():
            return
        try:
            state = control.nodes()[node]
        except (SlurmError, KeyError):
            continue
        if not state.is_powering_up:
            return
        print(f"{node} has not registered; its slurmd is asked to do so again", flush=True)
        time.sleep(repeat_delay(started, _uptime()))
        with contextlib.suppress(ProcessLookupError):
            os.kill(slurmd.pid, signal.SIGHUP)


def _uptime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
