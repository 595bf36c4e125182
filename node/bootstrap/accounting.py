"""Slurm's accounting on the controller: slurmdbd and its database, which is reached by a socket only."""

from __future__ import annotations

import re

from node import ports
from node.bootstrap import daemons, files
from node.bootstrap.context import Context
from node.bootstrap.services import Service

DATABASE = "slurm_acct_db"
CONF = """\
# Written by slurm-stacks at each boot.
AuthType=auth/munge
{auth}DbdHost=localhost
DbdPort={port}
SlurmUser={user}
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser={user}
StorageLoc={database}
LogFile={log}/slurmdbd.log
PidFile={run}/slurmdbd.pid
"""
SQL = """\
CREATE DATABASE IF NOT EXISTS {database};
CREATE USER IF NOT EXISTS '{user}'@'localhost' IDENTIFIED VIA unix_socket;
GRANT ALL ON {database}.* TO '{user}'@'localhost';
"""
USER = re.compile(r"[A-Za-z_][A-Za-z0-9_.@-]*")
"""Names that need no escapes inside the quotes of an SQL statement."""
ATTEMPTS, PAUSE_SECONDS = 20, 0.5
"""The retries of sacctmgr while slurmdbd makes its tables."""


def start(context: Context) -> str:
    """Starts the database and slurmdbd, and registers this cluster with it before slurmctld starts.

    Raises:
        ValueError: SlurmUser's name cannot be the name of a database user.
    """
    site, folders = context.settings.site, context.folders
    if not USER.fullmatch(site.user):
        raise ValueError(f"{site.user!r} cannot be the name of a database user")
    statements = SQL.format(database=DATABASE, user=site.user)
    if context.vm:
        from node.bootstrap.vm import mariadb as distribution_mariadb

        client_env = distribution_mariadb.start(context, statements)
    else:
        from node.bootstrap import mariadb

        client_env = mariadb.start(context, statements)
    text = CONF.format(
        auth=f"AuthInfo=socket={folders.munge_socket}\n" if context.process else "",
        port=site.slurmdbd_port, user=site.user, database=DATABASE, log=folders.log, run=folders.run,
    )  # fmt: skip
    # slurmdbd refuses a file that other users may read.
    files.write(context.path(folders.etc) / "slurmdbd.conf", text.encode(), 0o600, context.slurm_user)
    daemons.check_port(context, site.slurmdbd_port)
    log = context.path(folders.log) / "slurmdbd.out"
    # slurmdbd looks for slurmdbd.conf in the folder of this file.
    env = {"SLURM_CONF": str(folders.slurm_conf)}
    pid = context.services.start(
        Service("slurmdbd", ("/usr/sbin/slurmdbd", "-D"), log, {**env, **client_env}, context.slurm_user)
    )
    daemons.wait("slurmdbd", lambda: not ports.free(site.slurmdbd_port), log, pid)
    _register_cluster(context)
    return "slurmdbd"


def _register_cluster(context: Context) -> None:
    """Registers the cluster with slurmdbd, because slurmctld refuses to start otherwise."""
    name = context.settings.design.name
    known = context.slurm(
        "sacctmgr", "--noheader", "--parsable2", "show", "cluster", "format=cluster",
        attempts=ATTEMPTS, pause=PAUSE_SECONDS,
    )  # fmt: skip
    if name.lower() not in known.lower().split():
        context.slurm("sacctmgr", "--immediate", "add", "cluster", name)
