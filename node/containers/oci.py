"""Slurm's `--container` with crun: oci.conf, and the folders on a node. Pure.

Slurm copies the `config.json` of the user's OCI bundle, with the task's command in it, and then calls the
commands of oci.conf as the user. `node/containers/run.py` turns the copy into one that works on every node
for every user.

Source: https://slurm.schedmd.com/oci.conf.html. Slurm 22.05 knows no other keys than these.
"""

from __future__ import annotations

from pathlib import PurePosixPath

from node.folders import Folders
from node.model import Settings

STATE = "oci"
"""The folder, below `Folders.run`, in which each user has the state of running containers."""
PROGRAM = "node/containers/run.py"
PACKAGES = ("crun",)
"""The distribution's packages that a node needs."""
TOOLS = ("skopeo", "umoci")
"""The packages with which users turn an image into a bundle, on the machines where they log in."""
NAME = "%n.%u.%j.%s.%t"
"""A container's name: node, user, job, step, task."""


def state(settings: Settings) -> PurePosixPath:
    """The folder that has a folder for each user who runs a container."""
    return Folders(settings).run / STATE


def render(settings: Settings) -> str:
    """oci.conf, without a header.

    Every mount of nodes is an argument, so that a task's start reads no settings.
    """
    folders = Folders(settings)
    own = f"{state(settings)}/%u"
    crun = f"crun --rootless=true --cgroup-manager=disabled --root={own}"
    shown = [mount.path for mount in settings.design.mounts if "compute" in mount.roles]
    mounts = "".join(f" --mount={path}" for path in dict.fromkeys(shown))
    # Without `exec` the shell would get the task's signals, and end before the task has done its work.
    start = (
        f"exec {settings.site.python} -I {folders.code / PROGRAM} --bundle=%b --state={own}{mounts} {NAME}"
    )
    lines = {
        "RunTimeQuery": f"{crun} state {NAME}",
        "RunTimeKill": f"{crun} kill {NAME} KILL",
        "RunTimeDelete": f"{crun} delete --force {NAME}",
        "RunTimeRun": start,
    }
    return "".join(f'{key}="{value}"\n' for key, value in lines.items())
