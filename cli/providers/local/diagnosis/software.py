"""Checks of the distribution's programs that a local cluster needs."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable

from cli.findings import Finding, Severity, fine, from_message, stops, warns
from cli.providers.local.diagnosis.host import Host
from node.slurm.version import NEWEST_TESTED, Version, parse, spell
from node.system.subprocesses import SEARCH
from operations import pages
from operations.local import system_packages

ASKED = {
    "slurmctld": ("-V",),
    "slurmd": ("-V",),
    "munge": ("--version",),
}
"""The options that print a daemon's version. (The clients need a slurm.conf, and search for it by DNS.)"""


def system(host: Host, platform: str = sys.platform) -> Iterable[Finding]:
    """Check that this is Linux with /proc."""
    if platform != "linux":
        yield stops(
            "system.linux",
            f"this is {platform}: a local cluster's machines are processes of Linux",
            "Run ./cluster in a Linux machine: a virtual one or a container will do.",
        )
        return
    if host.text("/proc/self/stat") is None:
        yield stops(
            "system.proc",
            "/proc is not mounted, and a cluster finds its processes there",
            "As root: mount -t proc proc /proc",
        )
        return
    release = (host.text("/proc/sys/kernel/osrelease") or "").strip()
    name = next(
        (
            line.partition("=")[2].strip('"')
            for line in (host.text("/etc/os-release") or "").splitlines()
            if line.startswith("PRETTY_NAME=")
        ),
        "Linux",
    )
    yield fine("system.linux", f"{name}, kernel {release}")


def installed(host: Host) -> Iterable[Finding]:
    """Check that Slurm and munge are installed in a release that works, or can be installed."""
    if missing := system_packages.missing():
        yield _installable(host, missing)
        return
    if problem := system_packages.unsuitable():
        yield from_message("packages.slurm", Severity.STOPS, problem)
        return
    versions: dict[str, Version] = {}
    munge = ""
    for package, options in ASKED.items():
        file = system_packages.NEEDED[system_packages.SLURM][package]
        status, answer = host.run([file, *options])
        if status:
            cure = f"Have it installed again (as root: apt-get install --reinstall {package})."
            yield stops("packages.broken", f"{file} does not run: {answer}", cure)
            return
        if package == "munge":
            munge = answer.partition(" ")[0]
            continue
        try:
            versions[file] = parse(answer)
        except ValueError as error:
            yield stops("packages.broken", f"{file}: {error}", f"Have {package} installed again.")
            return
    first = _first_in_path(host)
    if first is not None:
        versions[first[0]] = first[1]
    yield from _releases(versions, munge)


def accounting(host: Host) -> Iterable[Finding]:
    """Check that slurmdbd and MariaDB, which keep the records of `sacct`, are or can be installed."""
    missing = system_packages.missing(system_packages.ACCOUNTING)
    if missing:
        what = "slurmdbd with its plugin for MySQL, and MariaDB's server"
        yield _installable(host, missing, "accounting.missing", what)
        return
    status, answer = host.run(["/usr/sbin/mariadbd", "--version"])
    if status:
        cure = "Have it installed again (as root: apt-get install --reinstall mariadb-server-core)."
        yield stops("accounting.broken", f"/usr/sbin/mariadbd does not run: {answer}", cure)
        return
    release = (re.findall(r"Ver (\d+\.\d+\.\d+)", answer) or ["of an unknown release"])[0]
    yield fine("accounting.installed", f"slurmdbd and MariaDB {release}")


def _installable(
    host: Host,
    missing: list[str],
    check: str = "packages.missing",
    what: str = "slurmctld, slurmd, the Slurm clients and munge",
) -> Finding:
    if host.which("apt-get") is None:
        return stops(
            check,
            f"{', '.join(missing)}: not installed, and there is no apt-get here",
            f"Install your distribution's packages of {what}, without starting their services: "
            f"{pages.SLURM}.",
        )
    if host.uid != 0 and host.run(["sudo", "-n", "true"])[0]:
        return stops(
            check,
            f"{', '.join(missing)}: not installed, and only root can do it",
            f"Have an administrator run: {system_packages.command(missing)}",
        )
    return fine(check, f"{', '.join(missing)}: not installed yet; `up` does it by apt-get")


def _first_in_path(host: Host) -> tuple[str, Version] | None:
    """Return the slurmctld that machines find first: slurm.conf is written for its release."""
    file = host.which("slurmctld", path=SEARCH)
    if file is None or file == system_packages.NEEDED[system_packages.SLURM]["slurmctld"]:
        return None
    status, words = host.run([file, "-V"])
    try:
        return (file, parse(words)) if status == 0 else None
    except ValueError:
        return None


def _releases(versions: dict[str, Version], munge: str) -> Iterable[Finding]:
    installed_releases = ", ".join(f"{file} {spell(release)}" for file, release in versions.items())
    if len(set(versions.values())) > 1:
        yield stops(
            "packages.releases",
            f"programs of different releases of Slurm: {installed_releases}",
            "Keep one installation: remove the other, or its folder from PATH.",
        )
        return
    release = next(iter(versions.values()))
    if release > NEWEST_TESTED:
        yield warns(
            "packages.release",
            f"Slurm {spell(release)} is newer than {spell(NEWEST_TESTED)}, the newest that this was tested "
            "with",
            f"It may work. If it does not, install an older release: {pages.SLURM}.",
        )
        return
    yield fine("packages.installed", f"Slurm {spell(release)} and {munge}")
