"""The steps of process machines, which all share the user, the network and the files of one host."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
from pathlib import Path

from node.bootstrap import daemons
from node.bootstrap.context import Context, SkipStep
from node.bootstrap.services import Service
from node.bootstrap.slurmd import start_slurmd
from node.design.sites import LocalSite
from node.elastic import programs
from node.slurm import version

VERSION_FILE = "version"
"""The file beside slurm.conf with the release of Slurm for which it was rendered."""


def users(context: Context) -> str:
    # The name comes from the user database, as in Slurm. $USER may have any value.
    user = pwd.getpwuid(os.getuid()).pw_name
    if user != context.settings.site.user:
        # A slurmd that does not run as root cannot change its user: jobs would run as the cluster's owner.
        raise PermissionError(
            f"this cluster belongs to {context.settings.site.user}; {user} cannot run a machine of it"
        )
    return f"Slurm runs as {user}"


def hosts(_context: Context) -> str:
    raise SkipStep("machines of this host get their names from the local cloud")


def secrets(context: Context) -> str:
    """Make the munge key on the controller. Pulumi never sees it."""
    key = context.path(context.folders.munge_key)
    if key.exists() and key.stat().st_size >= 32:
        return "the munge key is there"
    if context.role != "controller":
        raise FileNotFoundError(f"{key}: the controller makes it before any other machine starts")
    # Imported late, because only the controller's first boot makes a key.
    from node.system import files

    files.write(key, os.urandom(1024), 0o400)
    return "made the munge key"


def mounts(context: Context) -> str:
    site = context.settings.site
    for folder in (site.shared, site.apps):
        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        if not os.access(path, os.W_OK):
            raise PermissionError(f"{path} is not writable for {site.user}")
    return f"{site.shared} and {site.apps} are there"


def slurm(context: Context) -> str:
    """Render the configuration on the controller, for the release of Slurm that is installed there."""
    folders = context.folders
    if context.role == "controller":
        # Imported late: a compute node renders nothing, and without these imports it boots in half the time.
        from node.health import programs as node_programs
        from node.slurm.configure import configure
        from node.system import files

        text = context.run("slurmctld", "-V").strip()
        context.report.content["facts"]["slurm"] = text
        paths = (folders.etc, folders.run, folders.log, folders.state, folders.spool, folders.elastic)
        for folder in paths:
            context.path(folder).mkdir(parents=True, exist_ok=True)
        programs.write(context.settings, context.settings_file)
        node_programs.write(context.settings, context.settings_file)
        context.report.content["facts"] |= configure(context.settings, text, files.write).facts()
        (context.path(folders.etc) / VERSION_FILE).write_text(text)
        return text
    if not context.path(folders.slurm_conf).exists():
        raise FileNotFoundError(f"{folders.slurm_conf}: the controller has not made it yet")
    return "the controller's configuration is there"


def ready(context: Context) -> str:
    if context.role == "controller":
        return _controller(context)
    if context.role == "compute":
        return _compute(context)
    return "nothing to start"


def _controller(context: Context) -> str:
    cloud = context.settings.site.cloud
    if isinstance(cloud, LocalSite) and cloud.loopback_only and socket.gethostname() != "localhost":
        raise OSError(
            "the controller has no namespace, in which it would listen on the loopback alone; the end of its "
            "log says why; `up` brings it up without when it runs again"
        )
    run = context.path(context.folders.run)
    daemons.check_port(context, context.settings.site.slurmctld_port)
    # munged makes a socket that every user may use, and insists that all can reach it. Here nobody but the
    # owner can enter the run directory, which keeps others from the cluster. In an ordinary user's namespace
    # it would also refuse root's folders, which belong to nobody there. What munged checks of the folders
    # besides, `infra.program.folders` has checked.
    daemons.munged(context, run, run, context.path(context.folders.log), "--force")
    started = ["munged"]
    if context.settings.design.slurm.accounting:
        # Imported late to save time: few clusters need it.
        from node.bootstrap import accounting

        started.append(accounting.start(context))
    daemons.controller(context)
    if context.settings.design.slurm.accounting:
        from node.accounting import apply, enrolment

        enrolment.enrol_queued(context)
        apply.finish(context)
    return f"{', '.join([*started, 'slurmctld'])} and the elastic daemon run"


def _begin_without_leftovers(context: Context) -> None:
    """Remove what an earlier machine of this name has left for a step of a job that may now start again.

    Slurm's PMIx names its folders by job and step, and does not start a step whose folders are there.
    """
    spool = context.path(context.folders.spool) / context.host
    for left in (*spool.glob("pmix.*"), *spool.glob("spmix_appdir_*")):
        shutil.rmtree(left, ignore_errors=True)


def _compute(context: Context) -> str:
    # Imported late, because whole machines do not need it.
    from node.slurm.addressing import slurmd_ports

    folders, log = context.folders, context.path(context.folders.log)
    daemons.check_port(context, slurmd_ports(context.settings)[context.host])
    (context.path(folders.spool) / context.host).mkdir(parents=True, exist_ok=True)
    _begin_without_leftovers(context)
    release = version.parse((context.path(folders.etc) / VERSION_FILE).read_text())
    start_slurmd(
        context.services,
        Service(
            "slurmd",
            # Without -b the node registers but stays "powering up" until ResumeTimeout, because its boot
            # time is that of the host, which is older than the request.
            ("/usr/sbin/slurmd", "-D", "-b", "-N", context.host, "-f", str(folders.slurm_conf)),
            log / f"slurmd-{context.host}.out",
            {"SLURM_CONF": str(folders.slurm_conf)},
        ),
        context.host,
        folders,
        release,
    )
    return "slurmd runs"
