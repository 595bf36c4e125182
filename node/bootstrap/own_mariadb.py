"""The database of a controller without systemd: the cluster's own MariaDB, kept by the machine's init."""

from __future__ import annotations

import os
import shutil
import socket
from pathlib import Path, PurePosixPath

from node.bootstrap import daemons
from node.bootstrap.context import Context
from node.bootstrap.services import Service
from node.design.folders import Folders
from node.system import files

INSTALL_SECONDS = 100.0
ANSWER_SECONDS = 1.0
SOCKET_VARIABLE = "MYSQL_UNIX_PORT"
"""The variable with the socket's path for MariaDB's client library. slurmdbd.conf has no option for it."""
MARIADB_CONF = """\
# Written by slurm-stacks at each boot.
[mysqld]
{user}datadir={data}
socket={socket}
pid-file={pid}
init-file={statements}
# The server is reached by its socket only.
skip-networking
skip-name-resolve
innodb_lock_wait_timeout=900
# Enough for the jobs of one machine. The gigabyte and more that Slurm recommends is for a server.
innodb_buffer_pool_size=32M
# Without this limit MariaDB reserves terabytes of addresses. Older releases ignore the option.
loose-innodb_buffer_pool_size_max=64M
innodb_log_file_size=16M
# A transaction of slurmdbd has some kilobytes. The default takes 16 MiB of memory.
innodb_log_buffer_size=1M
innodb_autoextend_increment=8
# At its first start slurmdbd makes about forty tables. With a file for each this takes twice as long.
innodb_file_per_table=0
key_buffer_size=1M
aria_pagecache_buffer_size=8M
max_connections=32
log_warnings=1
# A commit is given to the kernel at once, so it survives the end of any process. It is on the disk in 1 s.
innodb_flush_log_at_trx_commit=2
# Containers often forbid io_uring.
innodb_use_native_aio=0
"""


def database_socket(folders: Folders) -> PurePosixPath:
    """Return the path of the socket.

    It is not longer than the daemon's, which `conf.check_paths` has checked.
    """
    return folders.run / "mariadb.sock"


def start_mariadb(context: Context, statements: str) -> dict[str, str]:
    """Start MariaDB, which runs `statements` before it answers. A new cluster's database is made first.

    Returns:
        The environment variables for MariaDB's clients.
    """
    folders, owner = context.folders, context.slurm_user
    data, client_socket = context.path(folders.database), context.path(database_socket(folders))
    etc = context.path(folders.etc)
    files.write(etc / "mariadb.sql", statements.encode())
    # MariaDB refuses to run as root without this option.
    root = context.process and context.settings.site.user == "root"
    text = MARIADB_CONF.format(
        user="user=root\n" if root else "", data=data, socket=client_socket, pid=folders.run / "mariadb.pid",
        statements=etc / "mariadb.sql",
    )  # fmt: skip
    conf = etc / "mariadb.cnf"
    files.write(conf, text.encode())
    if not data.is_dir():
        _install(context, conf, data)
    # The socket of a killed MariaDB must not pass for that of the new one.
    client_socket.unlink(missing_ok=True)
    log = context.path(folders.log) / "mariadb.log"
    command = ("/usr/sbin/mariadbd", f"--defaults-file={conf}")
    pid = context.services.start(Service("mariadb", command, log, user=owner))
    daemons.wait("MariaDB", lambda: _mariadb_answers(client_socket), log, pid)
    return {SOCKET_VARIABLE: str(client_socket)}


def _install(context: Context, conf: Path, data: Path) -> None:
    """Make an empty database. The folder gets its name only when it is complete, and on the disk.

    MariaDB would wait for the disk hundreds of times meanwhile. Here it waits once, at the end.
    """
    draft = data.with_name(f"{data.name}.new")
    shutil.rmtree(draft, ignore_errors=True)
    owner = context.slurm_user
    files.folder(draft, 0o700, owner)
    user = owner or context.settings.site.user
    context.run(
        "/usr/bin/mariadb-install-db", f"--defaults-file={conf}", f"--datadir={draft}",
        *([f"--user={user}"] if os.geteuid() == 0 else []),
        "--skip-test-db", "--skip-name-resolve", "--auth-root-authentication-method=socket",
        "--debug-no-sync", timeout=INSTALL_SECONDS,
    )  # fmt: skip
    context.run("find", str(draft), "-exec", "sync", "{}", "+", timeout=INSTALL_SECONDS)
    draft.replace(data)


def _mariadb_answers(path: Path) -> bool:
    """Return whether MariaDB sends its greeting. Its socket exists before it is ready."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(ANSWER_SECONDS)
        try:
            client.connect(str(path))
            return client.recv(1) != b""
        except OSError:
            return False
