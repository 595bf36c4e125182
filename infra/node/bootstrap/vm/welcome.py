"""What who logs in reads: that the machine is not done yet, that it is, or that it never will be.

On machines where people log in, and on the controller. Who is logged in meanwhile is told by a broadcast.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from infra.node.bootstrap import files
from infra.node.bootstrap.command import CommandError
from infra.node.bootstrap.context import Context
from infra.node.bootstrap.vm import disks
from infra.node.model import Mount

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


def around(context: Context, boot: Callable[[], bool]) -> None:
    """Boot, with a word before it, and one after it if it failed; `complete` has the one in between."""
    if not _told(context):
        boot()
        return
    # A machine that boots again without having been off has it already.
    hidden = "" if disks.mounted(context.settings.site.shared) else _home(context, HOME_BEGUN)
    _motd(context, BEGUN + hidden)
    boot()
    steps = context.report.content["steps"]
    # What fails after Slurm has started is told by the report alone.
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


def complete(context: Context) -> None:
    """Slurm runs here."""
    if not _told(context):
        return
    design = context.settings.design
    partitions = ", ".join(partition.name for partition in design.partitions)
    # Whether it was mounted just now is known by what was written before.
    motd = context.at(MOTD)
    begun = motd.exists() and "will be mounted" in motd.read_text()
    _motd(context, CLUSTER.format(name=design.name, partitions=partitions))
    _broadcast(context, DONE.format(role=context.role) + (_home(context, HOME_DONE) if begun else ""))


def _told(context: Context) -> bool:
    return context.role != "compute"


def _home(context: Context, text: str) -> str:
    """The lines on the shared folder; none where the machine mounts nothing there."""
    shared = context.settings.site.shared
    here = [mount for mount in context.mounts() if _place(context, mount) == shared]
    if not here:
        return ""
    elsewhere = here[0].served_by not in (None, context.role)
    home = f"{here[0].path} on the controller" if elsewhere else f"The cluster's {here[0].path}"
    return text.format(home=home, shared=here[0].path)


def _place(context: Context, mount: Mount) -> str:
    return str(context.at(mount.path.lstrip("/")))


def _motd(context: Context, text: str) -> None:
    motd = context.at(MOTD)
    motd.parent.mkdir(parents=True, exist_ok=True)
    files.place(motd, text.encode())


def _broadcast(context: Context, text: str) -> None:
    """Nobody's boot fails of it."""
    with contextlib.suppress(CommandError):
        context.run("wall", stdin=text, timeout=10.0)
