"""The database of a whole machine's controller: the distribution's MariaDB, which systemd keeps running."""

from __future__ import annotations

from node.bootstrap.context import Context
from node.bootstrap.vm import kept_state
from node.system import files

# Slurm requests these values. Otherwise it complains at each start.
SETTINGS = "[mysqld]\ninnodb_buffer_pool_size=256M\ninnodb_lock_wait_timeout=900\n"
START_SECONDS = 300.0
"""The time limit of its start, which includes the repair of its files after a power loss."""
AT_BOOT = "etc/systemd/system/multi-user.target.wants/mariadb.service"
"""The link by which systemd starts it at each boot. The package makes it, also in images of compute nodes."""


def configure(context: Context) -> bool:
    """Write the settings. This is called before the package is installed, so that MariaDB starts only once.

    Returns:
        Whether the settings have changed.
    """
    drop = context.at("etc/mysql/mariadb.conf.d/90-slurm-stacks.cnf")
    drop.parent.mkdir(parents=True, exist_ok=True)
    return files.write(drop, SETTINGS.encode())


def disable_autostart(context: Context) -> None:
    """Remove the start at boot, so that only our steps start MariaDB."""
    context.at(AT_BOOT).unlink(missing_ok=True)


def _own(context: Context) -> None:
    """Give the database's files to its user, whose number differs where another machine has made them."""
    data = context.at(kept_state.MYSQL)
    user = context.run("id", "--user", "mysql").strip()
    if data.is_dir() and user.isdigit() and data.stat().st_uid != int(user):
        context.run("chown", "--recursive", "mysql:mysql", str(data), timeout=START_SECONDS)


def start(context: Context, statements: str) -> dict[str, str]:
    """Start MariaDB and runs `statements`.

    Returns:
        The environment variables for its clients. There are none, because its socket is at the default path.
    """
    if context.settings.design.state() is not None:
        _own(context)
    verb = "restart" if configure(context) else "start"
    context.run("systemctl", verb, "mariadb", timeout=START_SECONDS)
    context.run("mariadb", stdin=statements, attempts=5, pause=2.0)
    return {}
