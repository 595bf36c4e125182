"""Slurm's accounting on the controller: slurmdbd, and the database behind a socket that asks no password."""

from __future__ import annotations

import re

from infra.node import ports
from infra.node.bootstrap import daemons, files
from infra.node.bootstrap.context import Context
from infra.node.bootstrap.services import Service

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
"""Names that mean themselves in a statement's quotes."""
ATTEMPTS, PAUSE_SECONDS = 20, 0.5
"""sacctmgr's, while slurmdbd makes its tables."""


def start(context: Context) -> str:
    """Start the database and slurmdbd, and have this cluster known to it before slurmctld asks.

    Raises:
        ValueError: SlurmUser's name cannot be a database user's.
    """
    site, folders = context.settings.site, context.folders
    if not USER.fullmatch(site.user):
        raise ValueError(f"{site.user!r} is no name for a database's user")
    statements = SQL.format(database=DATABASE, user=site.user)
    if context.vm:
        from infra.node.bootstrap.vm import mariadb as of_distribution

        reached = of_distribution.start(context, statements)
    else:
        from infra.node.bootstrap import mariadb

        reached = mariadb.start(context, statements)
    text = CONF.format(
        auth=f"AuthInfo=socket={folders.munge_socket}\n" if context.process else "",
        port=site.slurmdbd_port, user=site.user, database=DATABASE, log=folders.log, run=folders.run,
    )  # fmt: skip
    # slurmdbd refuses a file that others may read.
    files.place(context.path(folders.etc) / "slurmdbd.conf", text.encode(), 0o600, context.slurm_user)
    daemons.see_port(context, site.slurmdbd_port)
    log = context.path(folders.log) / "slurmdbd.out"
    # It looks for its own file beside this one.
    env = {"SLURM_CONF": str(folders.slurm_conf)}
    pid = context.services.start(
        Service("slurmdbd", ("/usr/sbin/slurmdbd", "-D"), log, {**env, **reached}, context.slurm_user)
    )
    daemons.wait("slurmdbd", lambda: not ports.free(site.slurmdbd_port), log, pid)
    _know_cluster(context, env)
    return "slurmdbd"


def _know_cluster(context: Context, env: dict[str, str]) -> None:
    """slurmctld refuses to start where slurmdbd does not know its cluster."""
    name = context.settings.design.name
    known = context.run(
        "sacctmgr", "--noheader", "--parsable2", "show", "cluster", "format=cluster",
        env=env, attempts=ATTEMPTS, pause=PAUSE_SECONDS,
    )  # fmt: skip
    if name.lower() not in known.lower().split():
        context.run("sacctmgr", "--immediate", "add", "cluster", name, env=env)
