"""The database of a controller without systemd: a MariaDB of the cluster's own under the machine's init."""

from __future__ import annotations

import os
import shutil
import socket
from pathlib import Path, PurePosixPath

from infra.node.bootstrap import daemons, files
from infra.node.bootstrap.context import Context
from infra.node.bootstrap.services import Service
from infra.node.model import Folders

INSTALL_SECONDS = 100.0
ANSWER_SECONDS = 1.0
SOCKET_VARIABLE = "MYSQL_UNIX_PORT"
"""Where MariaDB's client library looks for the server's socket; slurmdbd.conf has no option for it."""
CONF = """\
# Written by slurm-stacks at each boot.
[mysqld]
{user}datadir={data}
socket={socket}
pid-file={pid}
init-file={statements}
# Reached by its socket only.
skip-networking
skip-name-resolve
innodb_lock_wait_timeout=900
# For one machine's jobs. Slurm recommends a gigabyte and more at each start (innodb_buffer_pool_size), which
# is for a server's.
innodb_buffer_pool_size=32M
# It reserves terabytes of addresses otherwise; a release that knows no such option passes over it.
loose-innodb_buffer_pool_size_max=64M
innodb_log_file_size=16M
innodb_autoextend_increment=8
key_buffer_size=1M
aria_pagecache_buffer_size=8M
max_connections=32
log_warnings=1
# A commit is in the kernel's hands at once, and so survives any process, and on the disk within a second.
innodb_flush_log_at_trx_commit=2
# Containers often forbid io_uring.
innodb_use_native_aio=0
"""


def database(folders: Folders) -> PurePosixPath:
    """Where the records lie: on a controller that has a disk of its own, they outlive its machine there."""
    return folders.lib / "database"


def database_socket(folders: Folders) -> PurePosixPath:
    """No longer than the elastic daemon's: `conf.check_paths` has seen that that one fits."""
    return folders.run / "mariadb.sock"


def start(context: Context, statements: str) -> dict[str, str]:
    """Start MariaDB, which runs `statements` before it answers; a new cluster's database is made first.

    Returns:
        Environment variables for its clients.
    """
    folders, owner = context.folders, context.slurm_user
    data, reached = (context.path(part(folders)) for part in (database, database_socket))
    etc = context.path(folders.etc)
    files.place(etc / "mariadb.sql", statements.encode())
    # Not as root is its own rule, unless it is told so.
    root = context.process and context.settings.site.user == "root"
    text = CONF.format(
        user="user=root\n" if root else "", data=data, socket=reached, pid=folders.run / "mariadb.pid",
        statements=etc / "mariadb.sql",
    )  # fmt: skip
    conf = etc / "mariadb.cnf"
    files.place(conf, text.encode())
    if not data.is_dir():
        _install(context, conf, data)
    # Left by one that was killed: it must not pass for the one that is started now.
    reached.unlink(missing_ok=True)
    log = context.path(folders.log) / "mariadb.log"
    command = ("/usr/sbin/mariadbd", f"--defaults-file={conf}")
    pid = context.services.start(Service("mariadb", command, log, user=owner))
    daemons.wait("MariaDB", lambda: _answers(reached), log, pid)
    return {SOCKET_VARIABLE: str(reached)}


def _install(context: Context, conf: Path, data: Path) -> None:
    """Make an empty database: whole under its name, or not at all."""
    draft = data.with_name(f"{data.name}.new")
    shutil.rmtree(draft, ignore_errors=True)
    owner = context.slurm_user
    files.folder(draft, 0o700, owner)
    user = owner or context.settings.site.user
    context.run(
        "/usr/bin/mariadb-install-db", f"--defaults-file={conf}", f"--datadir={draft}",
        *([f"--user={user}"] if os.geteuid() == 0 else []),
        "--skip-test-db", "--skip-name-resolve", "--auth-root-authentication-method=socket",
        timeout=INSTALL_SECONDS,
    )  # fmt: skip
    draft.replace(data)


def _answers(path: Path) -> bool:
    """Whether it greets who connects, which it does once it is ready; its socket is there before."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(ANSWER_SECONDS)
        try:
            client.connect(str(path))
            return client.recv(1) != b""
        except OSError:
            return False
