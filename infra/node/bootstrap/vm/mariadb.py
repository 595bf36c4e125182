"""The database of a cloud's controller: the distribution's MariaDB, kept by systemd."""

from __future__ import annotations

from infra.node.bootstrap import files
from infra.node.bootstrap.context import Context

# What Slurm asks for, or it complains at each start.
SETTINGS = "[mysqld]\ninnodb_buffer_pool_size=256M\ninnodb_lock_wait_timeout=900\n"
START_SECONDS = 300.0
"""How long its start may take: after a power loss it repairs its files first."""
AT_BOOT = "etc/systemd/system/multi-user.target.wants/mariadb.service"
"""Has systemd start it at each boot. The package makes it, also in images that compute nodes start from."""


def configure(context: Context) -> bool:
    """Have its settings; called before the package is installed, so that it starts once.

    Returns whether they are new.
    """
    drop = context.at("etc/mysql/mariadb.conf.d/90-slurm-stacks.cnf")
    drop.parent.mkdir(parents=True, exist_ok=True)
    return files.place(drop, SETTINGS.encode())


def leave_to_us(context: Context) -> None:
    """Have it started by our steps, and by nothing else."""
    context.at(AT_BOOT).unlink(missing_ok=True)


def start(context: Context, statements: str) -> dict[str, str]:
    """Start MariaDB and have it run `statements`.

    Returns:
        Environment variables for its clients: none, since its socket is where they look.
    """
    verb = "restart" if configure(context) else "start"
    context.run("systemctl", verb, "mariadb", timeout=START_SECONDS)
    context.run("mariadb", stdin=statements, attempts=5, pause=2.0)
    return {}
