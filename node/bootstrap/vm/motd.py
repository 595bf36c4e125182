"""The message at login: the machine is still being installed, is ready, or has failed.

It is for login machines and the controller. Users who are logged in during the boot get a broadcast.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from node.bootstrap.command import CommandError
from node.bootstrap.context import Context
from node.bootstrap.vm import disks
from node.design.storage import Mount
from node.system import files

MOTD = "etc/motd"
BEGUN = """\
*** Slurm is currently being installed/configured in the background. ***
A terminal broadcast will announce when installation and configuration is complete.
"""
HOME_BEGUN = """\
{home} will be mounted over the existing {shared}.
Any changes in {shared} will be hidden. Please wait until the installation is complete before making \
changes in your home directory.
"""
DONE = "*** Slurm {role} daemon installation complete ***\n"
HOME_DONE = """\
{home} was mounted over the existing {shared}.
Either log out and log back in or cd into ~.
"""
FAILED = """\
*** The installation of Slurm on this machine has failed. ***
{why}
`./cluster status --stack {stack}` and `./cluster logs --stack {stack} {host}` show it where the cluster
was made; {report} has it here.
"""
CLUSTER = "Slurm cluster {name}, partitions: {partitions}. sinfo shows its nodes, sbatch takes a job.\n"


def boot_with_messages(context: Context, boot: Callable[[], bool]) -> None:
    """Boot with a message before it, and one after a failure. `announce_ready` writes the one in between."""
    if not _has_motd(context):
        boot()
        return
    # If the boot is repeated without a restart, the folder is mounted already.
    hidden = "" if disks.mounted(context.settings.site.shared) else _home(context, HOME_BEGUN)
    _motd(context, BEGUN + hidden)
    boot()
    steps = context.report.content["steps"]
    # A failure after Slurm's start is shown only by the report.
    if context.report.content["state"] == "failed" and "ready" not in (step["name"] for step in steps[:-1]):
        step = steps[-1]
        report = context.path(context.folders.lib) / "boot.json"
        why = f"step {step['name']}: {step['note']}"
        _motd(
            context,
            text := FAILED.format(
                why=why, host=context.host, report=report, stack=context.settings.design.stack
            ),
        )
        _broadcast(context, text)


def announce_ready(context: Context) -> None:
    """Write and broadcasts the message that Slurm runs."""
    if not _has_motd(context):
        return
    design = context.settings.design
    partitions = ", ".join(design.slurm_partitions())
    # The former message shows whether the home folder was mounted during this boot.
    motd = context.at(MOTD)
    begun = motd.exists() and "will be mounted" in motd.read_text()
    _motd(context, CLUSTER.format(name=design.name, partitions=partitions))
    _broadcast(context, DONE.format(role=context.role) + (_home(context, HOME_DONE) if begun else ""))


def _has_motd(context: Context) -> bool:
    return context.role != "compute"


def _home(context: Context, text: str) -> str:
    """Return the lines on the shared folder, or nothing if the machine does not mount it."""
    shared = context.settings.site.shared
    mounts = [mount for mount in context.mounts() if _mount_point(context, mount) == shared]
    if not mounts:
        return ""
    elsewhere = mounts[0].served_by not in (None, context.role)
    home = f"{mounts[0].path} on the controller" if elsewhere else f"The cluster's {mounts[0].path}"
    return text.format(home=home, shared=mounts[0].path)


def _mount_point(context: Context, mount: Mount) -> str:
    return str(context.at(mount.path.lstrip("/")))


def _motd(context: Context, text: str) -> None:
    motd = context.at(MOTD)
    motd.parent.mkdir(parents=True, exist_ok=True)
    files.write(motd, text.encode())


def _broadcast(context: Context, text: str) -> None:
    """Send a message to all terminals. A failure does not stop the boot."""
    with contextlib.suppress(CommandError):
        context.run("wall", stdin=text, timeout=10.0)
