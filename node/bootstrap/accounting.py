"""Slurm's accounting on the controller: slurmdbd and its database, which is reached by a socket only."""

from __future__ import annotations

from collections.abc import Callable

from node.accounting import apply, enrolment
from node.bootstrap import daemons
from node.bootstrap.context import Context
from node.bootstrap.own_mariadb import start_mariadb
from node.bootstrap.services import Service
from node.slurm import users
from node.slurm.addressing import communication
from node.system import files, ports

DATABASE = "slurm_acct_db"
CONF = """\
# Written by slurm-stacks at each boot.
AuthType=auth/munge
{auth}{listens}DbdHost=localhost
DbdPort={port}
Parameters=PreserveCaseUser
SlurmUser={user}
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser={owner}
StorageLoc={database}
LogFile={log}/slurmdbd.log
PidFile={run}/slurmdbd.pid
"""
SQL = """\
CREATE DATABASE IF NOT EXISTS {database};
CREATE USER IF NOT EXISTS '{owner}'@'localhost' IDENTIFIED {how};
GRANT ALL ON {database}.* TO '{owner}'@'localhost';
"""
OWNER = "slurm"
"""The database's user. On whole machines it is Slurm's user, too."""
BY_USER, BY_FOLDER = "VIA unix_socket", "BY ''"
"""How the database knows its user: by the process's user, or because nobody else reaches its socket. Process
machines have the second: the name of the cluster's owner can be one that a database's user cannot have."""
ATTEMPTS, PAUSE_SECONDS = 20, 0.5
"""The retries of sacctmgr while slurmdbd makes its tables."""


def start(context: Context, before_slurmdbd: Callable[[Context], None] | None = None) -> str:
    """Start the database and slurmdbd, and registers this cluster with it before slurmctld starts.

    Args:
        before_slurmdbd: Called on a whole machine when the database runs and slurmdbd does not.
    """
    # Imported late, because no node needs it.
    from node.elastic import programs

    site, folders = context.settings.site, context.folders
    how = BY_FOLDER if context.process else BY_USER
    statements = SQL.format(database=DATABASE, owner=OWNER, how=how)
    if context.vm:
        from node.bootstrap.vm import mariadb as distribution_mariadb

        client_env = distribution_mariadb.start(context, statements)
        if before_slurmdbd is not None:
            before_slurmdbd(context)
    else:
        client_env = start_mariadb(context, statements)
    text = CONF.format(
        auth=f"AuthInfo=socket={folders.munge_socket}\n" if context.process else "",
        listens="".join(f"{key}={value}\n" for key, value in communication(site.cloud, "NoInAddrAny")),
        port=site.slurmdbd_port, user=users.spelled(site.user), owner=OWNER, database=DATABASE,
        log=folders.log, run=folders.run,
    )  # fmt: skip
    # slurmdbd refuses a file that other users may read.
    files.write(context.path(folders.etc) / "slurmdbd.conf", text.encode(), 0o600, context.slurm_user)
    daemons.check_port(context, site.slurmdbd_port)
    log = context.path(folders.log) / "slurmdbd.out"
    # slurmdbd looks for slurmdbd.conf in the folder of this file.
    env = {"SLURM_CONF": str(folders.slurm_conf)}
    pid = context.services.start(
        Service(
            "slurmdbd",
            ("/usr/sbin/slurmdbd", "-D"),
            log,
            {**env, **client_env},
            context.slurm_user,
            condition=programs.holds_state(context.settings),
        )
    )
    daemons.wait("slurmdbd", lambda: not ports.free(site.slurmdbd_port), log, pid)
    is_new = _register_cluster(context)
    enrolment.enrol(context, is_new=is_new)
    apply.prepare(context)
    return "slurmdbd"


def _register_cluster(context: Context) -> bool:
    """Register the cluster with slurmdbd, because slurmctld refuses to start otherwise.

    Returns:
        Whether slurmdbd did not know it.
    """
    name = context.settings.design.name
    known = context.slurm(
        "sacctmgr", "--noheader", "--parsable2", "show", "cluster", "format=cluster",
        attempts=ATTEMPTS, pause=PAUSE_SECONDS,
    )  # fmt: skip
    if is_new := name.lower() not in known.lower().split():
        context.slurm("sacctmgr", "--immediate", "add", "cluster", name)
    return is_new
