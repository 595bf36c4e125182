"""Another Slurm for the whole run: `SLURM_STACKS_TEST_SLURM` names the folder of an installation.

Its programs, in `bin` and `sbin`, stand in for those in /usr/bin and /usr/sbin for this process and all that
it starts: they are bind-mounted in a mount namespace of its own, so that nothing outside sees them.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from pathlib import Path

VARIABLE = "SLURM_STACKS_TEST_SLURM"
_CLONE_NEWNS = 0x00020000


def enter() -> None:
    """Put the folder's programs in place, if the variable names one. The first process of a run does it.

    Raises:
        SystemExit: The folder has no Slurm or is hidden from nodes, or this user may not mount.
    """
    folder = os.environ.get(VARIABLE)
    if not folder:
        return
    places = {
        path: Path("/usr") / part / path.name
        for part in ("bin", "sbin")
        for path in sorted(Path(folder, part).glob("*"))
    }
    found = {path: place for path, place in places.items() if place.exists()}
    missing = {"slurmctld", "slurmd", "slurmstepd", "scontrol", "srun"} - {path.name for path in found}
    if missing:
        raise SystemExit(
            f"{VARIABLE}={folder}: must be the folder of an installation of Slurm, with bin and sbin, on a "
            f"machine that has Slurm: {', '.join(sorted(missing))} is missing in one of them"
        )
    hidden = sorted(str(path.resolve()) for path in found if path.resolve().is_relative_to("/tmp"))
    if hidden:
        raise SystemExit(
            f"{VARIABLE}={folder}: must not lie below /tmp, because each node has its own there: {hidden[0]}"
        )
    if all(path.samefile(place) for path, place in found.items()):
        return  # a process of the run has done it
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS):
        raise SystemExit(
            f"{VARIABLE}: a mount namespace is root's to make: {os.strerror(ctypes.get_errno())}"
        )
    _run("mount", "--make-rprivate", "/")
    for path, place in found.items():
        _run("mount", "--bind", str(path), str(place.resolve()))


def _run(*command: str) -> None:
    subprocess.run(command, check=True)
