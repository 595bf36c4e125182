"""The distribution's packages: installed once, behind whoever else is installing."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True)
class Offer:
    """One version of a package in the lists."""

    version: str
    depends: str
    """The field as it is written; empty without one."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What apt would do.

    Attributes:
        possible: whether it found a way.
        versions: package -> version, of all that it would install or change.
        said: why it could not, in its own words.
    """

    possible: bool
    versions: dict[str, str]
    said: str = ""


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


def install(
    context: Context, names: Iterable[str], *, fresh: bool = False, downgrade: bool = False
) -> list[str]:
    """Have these packages. Returns those that were missing.

    Args:
        fresh: the lists have been read a moment ago.
        downgrade: what is pinned to an older version may become older.

    Raises:
        CommandError: apt could not; its last lines are with it.
    """
    if not (wanted := missing(context, names)):
        return []
    if not fresh:
        update(context)
    command = ("apt-get", *OPTIONS, "install", *_how(downgrade), *wanted)
    # A mirror that is just being filled knows a version in its lists that it does not have yet.
    context.run(*command, timeout=INSTALL_SECONDS, env=ENVIRONMENT, attempts=3, pause=10.0)
    return wanted


def simulate(context: Context, names: Iterable[str], *, downgrade: bool = False) -> Plan:
    """What `install` would do with these packages, by apt's own resolver. Nothing changes."""
    command = ("apt-get", *OPTIONS, "--simulate", "install", *_how(downgrade), *names)
    # Its words are read, so they are English.
    said = context.run(*command, timeout=120.0, env={**ENVIRONMENT, "LC_ALL": "C"}, allow=(0, 100))
    # Inst name [installed version] (version origin [architecture])
    lines = re.findall(r"^Inst (\S+)(?: \[\S+\])? \((\S+) ", said, re.MULTILINE)
    # apt ends a refusal with E: on the standard error, and says on the standard output what does not fit.
    possible = "unmet dependencies" not in said and (bool(lines) or not missing(context, names))
    return Plan(possible, dict(lines), "" if possible else said.strip())


def _how(downgrade: bool) -> tuple[str, ...]:
    return ("--no-install-recommends", *(("--allow-downgrades",) if downgrade else ()))


def offers(context: Context, name: str) -> list[Offer]:
    """Every version of a package that the lists have, or that is installed."""
    said = context.run("apt-cache", "show", name, allow=(0, 100))
    stanzas = [dict(re.findall(r"^([A-Za-z-]+): (.*)$", text, re.MULTILINE)) for text in said.split("\n\n")]
    return [Offer(s["Version"], s.get("Depends", "")) for s in stanzas if "Version" in s]


def installed(context: Context, names: Iterable[str]) -> dict[str, str]:
    """Package -> version, of those that are installed."""
    query = ("dpkg-query", "--show", "--showformat=${db:Status-Status} ${Package} ${Version}\n", *names)
    rows = [line.split() for line in context.run(*query, allow=(0, 1)).splitlines()]
    return {row[1]: row[2] for row in rows if row[0] == "installed" and len(row) == 3}


def purge(context: Context, names: Iterable[str]) -> None:
    """Remove these packages, which are installed, with what depends on them."""
    context.run("apt-get", *OPTIONS, "purge", *names, timeout=INSTALL_SECONDS, env=ENVIRONMENT)


def known(context: Context, name: str) -> bool:
    """Whether a package can be installed: the lists name many that are only mentioned."""
    return "\nVersion:" in context.run("apt-cache", "show", "--no-all-versions", name, allow=(0, 100))


def names(context: Context, prefix: str) -> list[str]:
    """Packages whose name begins so, as far as the lists mention them."""
    return context.run("apt-cache", "pkgnames", prefix).split()


def mask(context: Context, *units: str) -> list[str]:
    """Have units that never start, also if a package that is installed later would start them.

    Returns those that could be started until now.
    """
    folder = files.folder(context.at("etc/systemd/system"))
    return [unit for unit in units if files.link(folder / unit, "/dev/null")]
