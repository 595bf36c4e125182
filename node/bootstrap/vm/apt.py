"""Installs the distribution's packages with apt, after other programs that hold its locks."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from node.bootstrap.context import Context
from node.system import files

LOCK_SECONDS = 300
UPDATE_SECONDS = 180.0
INSTALL_SECONDS = 900.0
ENVIRONMENT = {
    "DEBIAN_FRONTEND": "noninteractive",
    # Without this Ubuntu would restart services after an installation, including ours.
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
    """A version of a package in the package lists.

    Attributes:
        depends: The text of the field. It is empty if the package has no such field.
    """

    version: str
    depends: str


@dataclass(frozen=True, slots=True)
class Plan:
    """The result of a simulated installation.

    Attributes:
        possible: Whether apt can install the packages.
        versions: Package -> version, for all packages that apt would install or change.
        output: apt's output, if it cannot install the packages.
    """

    possible: bool
    versions: dict[str, str]
    output: str = ""


def suite(context: Context) -> str:
    """Return the name of the distribution's release, as package archives have it: trixie, noble.

    Raises:
        RuntimeError: The distribution has no such name.
    """
    text = context.at("etc/os-release").read_text()
    if (match := re.search(r"^VERSION_CODENAME=\"?([a-z]+)", text, re.MULTILINE)) is None:
        raise RuntimeError("/etc/os-release has no VERSION_CODENAME: which packages fit is not known")
    return match[1]


def missing(context: Context, names: Iterable[str]) -> list[str]:
    """Return the packages that are not installed, in the given order."""
    wanted = list(dict.fromkeys(names))
    if not wanted:
        return []
    query = ("dpkg-query", "--show", "--showformat=${db:Status-Status} ${Package}\n", *wanted)
    # Status 1 means that dpkg does not know some of them.
    lines = context.run(*query, allow=(0, 1)).splitlines()
    present = {line.split()[1] for line in lines if line.startswith("installed ")}
    return [name for name in wanted if name not in present]


def update(context: Context) -> None:
    """Update the package lists. It waits for the lock of the lists, because apt waits only for dpkg's."""
    command = ("apt-get", *OPTIONS, "--option=APT::Update::Error-Mode=any", "update")
    context.run(*command, timeout=UPDATE_SECONDS, env=ENVIRONMENT, attempts=12, pause=10.0)


def install(
    context: Context, names: Iterable[str], *, fresh: bool = False, downgrade: bool = False
) -> list[str]:
    """Install packages, and return those that were missing.

    Args:
        fresh: Whether the lists have just been updated.
        downgrade: Whether packages that are pinned to an older version may be downgraded.

    Raises:
        CommandError: apt failed. The error has its last lines.
    """
    if not (wanted := missing(context, names)):
        return []
    if not fresh:
        update(context)
    command = ("apt-get", *OPTIONS, "install", *_how(downgrade), *wanted)
    # The lists of a mirror that is being updated may name a version that the mirror does not have yet.
    context.run(*command, timeout=INSTALL_SECONDS, env=ENVIRONMENT, attempts=3, pause=10.0)
    return wanted


def install_files(context: Context, paths: Iterable[str]) -> None:
    """Install packages from files, with the packages that they need.

    Raises:
        CommandError: apt failed. The error has its last lines.
    """
    command = ("apt-get", *OPTIONS, "install", *_how(downgrade=True), *paths)
    context.run(*command, timeout=INSTALL_SECONDS, env=ENVIRONMENT, attempts=3, pause=10.0)


def simulate(context: Context, names: Iterable[str], *, downgrade: bool = False) -> Plan:
    """Simulate `install` with apt's own resolver. Nothing changes."""
    command = ("apt-get", *OPTIONS, "--simulate", "install", *_how(downgrade), *names)
    # The output is parsed, so it must be English.
    output = context.run(*command, timeout=120.0, env={**ENVIRONMENT, "LC_ALL": "C"}, allow=(0, 100))
    # Inst name [installed version] (version origin [architecture])
    lines = re.findall(r"^Inst (\S+)(?: \[\S+\])? \((\S+) ", output, re.MULTILINE)
    # If apt refuses, standard error ends with a line "E: …", and standard output says what does not fit.
    possible = "unmet dependencies" not in output and (bool(lines) or not missing(context, names))
    return Plan(possible, dict(lines), "" if possible else output.strip())


def _how(downgrade: bool) -> tuple[str, ...]:
    return ("--no-install-recommends", *(("--allow-downgrades",) if downgrade else ()))


def offers(context: Context, name: str) -> list[Offer]:
    """Return all versions of a package that are in the lists or installed."""
    output = context.run("apt-cache", "show", name, allow=(0, 100))
    stanzas = [dict(re.findall(r"^([A-Za-z-]+): (.*)$", text, re.MULTILINE)) for text in output.split("\n\n")]
    return [Offer(s["Version"], s.get("Depends", "")) for s in stanzas if "Version" in s]


def installed(context: Context, names: Iterable[str]) -> dict[str, str]:
    """Return package -> version, for the installed packages."""
    query = ("dpkg-query", "--show", "--showformat=${db:Status-Status} ${Package} ${Version}\n", *names)
    rows = [line.split() for line in context.run(*query, allow=(0, 1)).splitlines()]
    return {row[1]: row[2] for row in rows if row[0] == "installed" and len(row) == 3}


def version_order(version: str) -> tuple[int, ...]:
    """Return the sort key of a version or a kernel's release: its numbers."""
    return tuple(int(number) for number in re.findall(r"\d+", version))


def purge(context: Context, names: Iterable[str]) -> None:
    """Remove installed packages and the packages that depend on them."""
    context.run("apt-get", *OPTIONS, "purge", *names, timeout=INSTALL_SECONDS, env=ENVIRONMENT)


def known(context: Context, name: str) -> bool:
    """Return whether a package can be installed. The lists also mention packages that do not exist."""
    return "\nVersion:" in context.run("apt-cache", "show", "--no-all-versions", name, allow=(0, 100))


def names(context: Context, prefix: str) -> list[str]:
    """Return the packages that the lists mention and whose names have a prefix."""
    return context.run("apt-cache", "pkgnames", prefix).split()


def mask(context: Context, *units: str) -> list[str]:
    """Mask systemd units, so that they never start, not even those of packages that are installed later.

    Returns:
        The units that were not masked before.
    """
    folder = files.folder(context.at("etc/systemd/system"))
    return [unit for unit in units if files.link(folder / unit, "/dev/null")]
