"""Slurm and munge from the distribution's packages, installed where missing; no daemon is started."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

from infra.errors import EXIT_REFUSED, UserError

# What each package is needed for, by the file that shows it.
NEEDED = {
    "slurmctld": "/usr/sbin/slurmctld",
    "slurmd": "/usr/sbin/slurmd",
    "slurm-client": "/usr/bin/scontrol",
    "munge": "/usr/sbin/munged",
}
SERVICES = ("slurmctld", "slurmd", "munge")
POLICY = "/usr/sbin/policy-rc.d"


def missing() -> list[str]:
    """Packages that this machine lacks."""
    return [package for package, file in NEEDED.items() if not Path(file).exists()]


def ensure(say: Callable[[str], None]) -> None:
    """Install what is missing.

    Raises:
        UserError: this user may not install packages, or the installation failed.
    """
    wanted = missing()
    if not wanted:
        return
    command = "apt-get install --no-install-recommends " + " ".join(wanted)
    if shutil.which("apt-get") is None:
        raise UserError(
            f"the local stack needs Slurm and munge ({', '.join(wanted)}), and there is no apt-get here: "
            "install your distribution's packages for slurmctld, slurmd, the Slurm clients and munge, "
            "without starting their services, and run the command again",
            EXIT_REFUSED,
        )
    root = [] if os.getuid() == 0 else ["sudo", "-n"]
    if root and subprocess.run([*root, "true"], capture_output=True, check=False).returncode:
        raise UserError(
            f"the local stack needs {', '.join(wanted)}, which only root can install. "
            f"Have an administrator run: {command}",
            EXIT_REFUSED,
        )
    say(f"installing {', '.join(wanted)} (the distribution's packages; their services stay off)")
    with _no_daemons(root):
        for arguments in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", *wanted]):
            result = subprocess.run(
                # By env, because sudo takes the variable out of the environment.
                [*root, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
            )
            if result.returncode:
                tail = "\n".join(result.stdout.strip().splitlines()[-10:])
                raise UserError(f"{command} failed:\n{tail}")
        # The packages enable their services for the next boot; this cluster's daemons are its own.
        if shutil.which("systemctl"):
            subprocess.run(
                [*root, "systemctl", "disable", "--quiet", *SERVICES], capture_output=True, check=False
            )
    if still := missing():
        raise UserError(f"{command} succeeded, but {', '.join(NEEDED[p] for p in still)} is not there")


@contextlib.contextmanager
def _no_daemons(root: list[str]) -> Iterator[None]:
    """Debian's own way to install services without starting them: a policy that forbids it."""
    if Path(POLICY).exists():
        yield
        return
    script = "#!/bin/sh\nexit 101\n"
    subprocess.run([*root, "tee", POLICY], input=script, text=True, stdout=subprocess.DEVNULL, check=True)
    try:
        subprocess.run([*root, "chmod", "755", POLICY], check=True)
        yield
    finally:
        subprocess.run([*root, "rm", "-f", POLICY], check=True)
