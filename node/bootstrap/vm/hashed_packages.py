"""Installs packages of the stack file that are on no package registry: each is known by its hash."""

from __future__ import annotations

from collections.abc import Sequence

from node.bootstrap.context import Context
from node.bootstrap.vm import apt
from node.bootstrap.vm.hashed_files import DRAFTS, STAMPS, download
from node.design.containers import Package
from node.system import files


def install(context: Context, packages: Sequence[Package]) -> list[str]:
    """Install the packages that this machine does not have, and return their names.

    Raises:
        ServiceError: A package cannot be fetched, or has another hash.
        CommandError: apt cannot install one.
    """
    if not (missing := [package for package in packages if not _there(context, package)]):
        return []
    drafts = files.folder(context.at(DRAFTS), 0o700)
    paths = {package.sha256: drafts / f"{package.sha256[:16]}.deb" for package in missing}
    for package in missing:
        download(context, package.archived(), package.sha256, paths[package.sha256])
    names = [str(path) for path in paths.values()]
    if not apt.simulate(context, names).possible:
        apt.update(context)
    apt.install_files(context, names)
    stamps, installed = files.folder(context.at(STAMPS)), []
    for digest, path in paths.items():
        name = context.run("dpkg-deb", "--show", "--showformat=${Package} ${Version}", str(path)).strip()
        files.write(stamps / digest, f"{name}\n".encode())
        path.unlink()
        installed.append(name.split()[0])
    return installed


def _there(context: Context, package: Package) -> bool:
    """Return whether this very package is installed."""
    stamp = context.at(STAMPS) / package.sha256
    if not stamp.exists():
        return False
    name, version = stamp.read_text().split()
    return apt.installed(context, [name]) == {name: version}
