"""The database of a cloud's controller: the distribution's MariaDB, kept by systemd."""

from __future__ import annotations

from infra.node.bootstrap import files
from infra.node.bootstrap.context import Context

# What Slurm asks for, or it complains at each start.
SETTINGS = "[mysqld]\ninnodb_buffer_pool_size=256M\ninnodb_lock_wait_timeout=900\n"


def start(context: Context, statements: str) -> dict[str, str]:
    """Start MariaDB and have it run `statements`.

    Returns:
        Environment variables for its clients: none, since its socket is where they look.
    """
    drop = context.at("etc/mysql/mariadb.conf.d/90-slurm-stacks.cnf")
    drop.parent.mkdir(parents=True, exist_ok=True)
    changed = files.place(drop, SETTINGS.encode())
    context.run("systemctl", "restart" if changed else "start", "mariadb", timeout=100.0)
    context.run("mariadb", stdin=statements, attempts=5, pause=2.0)
    return {}
