"""The distribution's packages: installed once, behind whoever else is installing."""

from __future__ import annotations

from collections.abc import Iterable

from infra.node.bootstrap import files
from infra.node.bootstrap.context import Context

LOCK_SECONDS = 300
UPDATE_SECONDS = 180.0
INSTALL_SECONDS = 900.0
ENVIRONMENT = {
    "DEBIAN_FRONTEND": "noninteractive",
    # Ubuntu would start services again that a package has touched; ours are not its to start.
    "NEEDRESTART_SUSPEND": "1",
    "HOME": "/root",
}
OPTIONS = (
    "--quiet",
    "--yes",
    f"--option=DPkg::Lock::Timeout={LOCK_SECONDS}",
    "--option=Acquire::Retries=3",
    "--option=Dpkg::Options::=--force-confold",
    "--option=Dpkg::Use-Pty=0",
)


def missing(context: Context, names: Iterable[str]) -> list[str]:
    """Those that are not installed, in their order."""
    wanted = list(dict.fromkeys(names))
    if not wanted:
        return []
    query = ("dpkg-query", "--show", "--showformat=${db:Status-Status} ${Package}\n", *wanted)
    # Status 1: it does not know them all.
    said = context.run(*query, allow=(0, 1)).splitlines()
    there = {line.split()[1] for line in said if line.startswith("installed ")}
    return [name for name in wanted if name not in there]


def update(context: Context) -> None:
    """Read the package lists. Whoever holds their lock is waited for: apt itself waits for dpkg's only."""
    command = ("apt-get", *OPTIONS, "--option=APT::Update::Error-Mode=any", "update")
    context.run(*command, timeout=UPDATE_SECONDS, env=ENVIRONMENT, attempts=12, pause=10.0)


def install(context: Context, names: Iterable[str], *, fresh: bool = False) -> list[str]:
    """Have these packages. Returns those that were missing.

    Args:
        fresh: the lists have been read a moment ago.

    Raises:
        CommandError: apt could not; its last lines are with it.
    """
    if not (wanted := missing(context, names)):
        return []
    if not fresh:
        update(context)
    command = ("apt-get", *OPTIONS, "install", "--no-install-recommends", *wanted)
    # A mirror that is just being filled knows a version in its lists that it does not have yet.
    context.run(*command, timeout=INSTALL_SECONDS, env=ENVIRONMENT, attempts=3, pause=10.0)
    return wanted


def purge(context: Context, names: Iterable[str]) -> None:
    """Remove these packages, which are installed, with what depends on them."""
    context.run("apt-get", *OPTIONS, "purge", *names, timeout=INSTALL_SECONDS, env=ENVIRONMENT)


def known(context: Context, name: str) -> bool:
    """Whether a package can be installed: the lists name many that are only mentioned."""
    return "\nVersion:" in context.run("apt-cache", "show", "--no-all-versions", name, allow=(0, 100))


def names(context: Context, prefix: str) -> list[str]:
    """Packages whose name begins so, as far as the lists mention them."""
    return context.run("apt-cache", "pkgnames", prefix).split()


def mask(context: Context, *units: str) -> None:
    """Have units that never start, also if a package that is installed later would start them."""
    folder = files.folder(context.at("etc/systemd/system"))
    for unit in units:
        files.link(folder / unit, "/dev/null")
