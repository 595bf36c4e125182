"""Starting a slurmd so that its node registers, with the cure for a release that sometimes loses it."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time

from infra.node.bootstrap.services import Service, Services
from infra.node.model import Folders
from infra.node.processes import ProcessId
from infra.node.slurm.slurmd import start_delay
from infra.node.slurm.version import Version, traits

CHECK_SECONDS = (3.0, 5.0, 10.0)


def start_slurmd(services: Services, service: Service, node: str, folders: Folders, version: Version) -> int:
    """Start a node's slurmd at a moment at which its registration counts, and see that it did.

    Returns its pid.

    See `start_delay` for what 22.05 does wrong. On a machine that is busy a start may take longer than the
    delay allows for; then a SIGHUP makes the slurmd register once more.
    """
    time.sleep(start_delay(version, time.clock_gettime(time.CLOCK_BOOTTIME)))
    pid = services.start(service)
    process = ProcessId.of(pid)
    if traits(version).boot_time_in_uptime and process is not None:
        threading.Thread(target=_see_to_it, args=(node, folders, process), daemon=True).start()
    return pid


def _see_to_it(node: str, folders: Folders, slurmd: ProcessId) -> None:
    # Imported after the node's start: no boot waits for it.
    from infra.node.slurm.control import Control, SlurmError

    control = Control(folders.slurm_conf)
    for pause in CHECK_SECONDS:
        time.sleep(pause)
        try:
            state = control.nodes()[node]
        except (SlurmError, KeyError):
            continue
        if not state.is_powering_up or not slurmd.alive():
            return
        print(f"{node} has not registered; its slurmd is asked to do so again", flush=True)
        with contextlib.suppress(ProcessLookupError):
            os.kill(slurmd.pid, signal.SIGHUP)
