"""Ends what jobs have left running on a process machine, as cgroups do on whole machines.

proctrack/linuxproc finds the processes of a step below its slurmstepd. A daemon leaves its parents, and comes
to the machine's init, which is the subreaper. There it is told from all else by the variables that Slurm has
given to the job's first process, so no process of another job or of anybody else is ended.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from node.system.processes import children, kill_together, with_descendants

STEPDS = ("slurmstepd", "slurmstepd-wlm")
"""Names of the program that runs a job's step on its node: Slurm's own name, and the name in Debian's and
Ubuntu's packages, which is behind a link of /etc/alternatives."""
_TITLE = re.compile(rb"slurmstepd: \[(\d+)")
_HETEROGENEOUS = (b"SLURM_HET_SIZE", b"SLURM_PACK_SIZE")


def end(node: str, known: Collection[int]) -> list[int]:
    """End the processes of jobs that have no slurmstepd on this node any more, and return their pids.

    Nothing is ended while a slurmstepd has not said its job yet. What the prolog or the epilog of a job has
    started stays, as it does on whole machines.

    Args:
        node: This node's name.
        known: The pids of the machine's services.
    """
    running: set[bytes] = set()
    left: list[tuple[int, Mapping[bytes, bytes]]] = []
    for pid in _own_children():
        if pid in known:
            continue
        with contextlib.suppress(OSError):  # it has ended, or shows nothing of itself
            if _is_stepd(pid):
                said = _TITLE.match(Path(f"/proc/{pid}/cmdline").read_bytes())
                if said is None:
                    return []
                running.add(said[1])
            else:
                left.append((pid, _environment(pid)))
    ended = [pid for pid, variables in left if _is_left(variables, node, running)]
    if ended:
        kill_together(ended := with_descendants(ended))
    return ended


def _own_children() -> Iterator[int]:
    """Yield the pids of this process's children. Kernels that list them spare a look at all processes."""
    try:
        # Orphans come to the first thread that lives.
        lists = [file.read_text() for file in Path("/proc/self/task").glob("*/children")]
    except OSError:  # a thread has just ended
        lists = []
    yield from map(int, " ".join(lists).split()) if lists else children(os.getpid())


def _is_stepd(pid: int) -> bool:
    # A program that was replaced by an upgrade has another word behind its name.
    return Path(f"/proc/{pid}/exe").readlink().name.partition(" ")[0] in STEPDS


def _environment(pid: int) -> dict[bytes, bytes]:
    """Return the variables with which a process was started; none while it starts another program."""
    entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return {name: value for name, mark, value in (entry.partition(b"=") for entry in entries) if mark}


def _is_left(variables: Mapping[bytes, bytes], node: str, running: Collection[bytes]) -> bool:
    """Return whether a process is of a job that has ended on this node."""
    job = variables.get(b"SLURM_JOB_ID")
    if job is None or variables.get(b"SLURMD_NODENAME") != os.fsencode(node):
        return False
    if b"SLURM_SCRIPT_CONTEXT" in variables:
        return False
    # The parts of such a job have numbers of their own, and their steps are named by the first one's.
    several = any(name in variables for name in _HETEROGENEOUS)
    return not running if several else job not in running
