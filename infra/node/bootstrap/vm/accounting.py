"""Slurm's accounting on the controller: slurmdbd, and MariaDB behind a socket that asks no password."""

from __future__ import annotations

import re

from infra.node import ports
from infra.node.bootstrap import daemons, files
from infra.node.bootstrap.context import Context
from infra.node.bootstrap.services import Service

PORT = 6819
DATABASE = "slurm_acct_db"
CONF = """\
# Written by slurm-stacks at each boot.
AuthType=auth/munge
DbdHost=localhost
DbdPort={port}
SlurmUser={user}
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser={user}
StorageLoc={database}
LogFile={log}/slurmdbd.log
PidFile={run}/slurmdbd.pid
"""
# What Slurm asks for, or it complains at each start.
MARIADB = "[mysqld]\ninnodb_buffer_pool_size=256M\ninnodb_lock_wait_timeout=900\n"
SQL = """\
CREATE DATABASE IF NOT EXISTS {database};
CREATE USER IF NOT EXISTS '{user}'@'localhost' IDENTIFIED VIA unix_socket;
GRANT ALL ON {database}.* TO '{user}'@'localhost';
"""
USER = re.compile(r"[a-z_][a-z0-9_-]*")


def start(context: Context) -> str:
    """Start slurmdbd and have this cluster known to it, before slurmctld asks."""
    user, folders = context.settings.site.user, context.folders
    if not USER.fullmatch(user):
        raise ValueError(f"{user!r} is no name for a database's user")
    drop = context.at("etc/mysql/mariadb.conf.d/90-slurm-stacks.cnf")
    drop.parent.mkdir(parents=True, exist_ok=True)
    changed = files.place(drop, MARIADB.encode())
    context.run("systemctl", "restart" if changed else "start", "mariadb", timeout=100.0)
    context.run("mariadb", stdin=SQL.format(database=DATABASE, user=user), attempts=5, pause=2.0)
    text = CONF.format(port=PORT, user=user, database=DATABASE, log=folders.log, run=folders.run)
    conf = context.path(folders.etc) / "slurmdbd.conf"
    # slurmdbd refuses a file that others may read.
    files.place(conf, text.encode(), 0o600, user)
    daemons.see_port(context, PORT)
    log = context.path(folders.log) / "slurmdbd.out"
    pid = context.services.start(Service("slurmdbd", ("/usr/sbin/slurmdbd", "-D"), log, user=user))
    daemons.wait("slurmdbd", lambda: not ports.free(PORT), log, pid)
    name, env = context.settings.design.name, {"SLURM_CONF": str(folders.slurm_conf)}
    known = context.run(
        "sacctmgr", "--noheader", "--parsable2", "show", "cluster", "format=cluster",
        env=env, attempts=5, pause=2.0,
    )  # fmt: skip
    if name.lower() not in known.lower().split():
        context.run("sacctmgr", "--immediate", "add", "cluster", name, env=env)
    return "slurmdbd"
