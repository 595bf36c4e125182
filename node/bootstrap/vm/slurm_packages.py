"""Installs Slurm from where the stack file has it: from packages, a repository, or a source that is built.

Packages and built sources become a folder that apt knows as a repository, so that apt resolves what they need
of each other. A preference keeps the distribution's Slurm away: a machine has one release, or its boot fails.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from urllib.parse import urlsplit

from node.bootstrap.context import Context
from node.bootstrap.vm import apt, apt_repositories
from node.design.model import ClusterDesign, SlurmSettings
from node.system import files

DEBIAN = {
    "controller": ("slurmctld", "slurm-client"),
    "login": ("slurm-client",),
    "compute": ("slurmd", "slurm-client"),
}
"""The names in Debian, in Ubuntu, and of packages that are made from their source."""
DEBIAN_ACCOUNTING = ("slurmdbd", "slurm-wlm-mysql-plugin")
SCHEDMD = {
    "controller": ("slurm-smd-slurmctld", "slurm-smd-client"),
    "login": ("slurm-smd-client",),
    "compute": ("slurm-smd-slurmd", "slurm-smd-client"),
}
"""The names of packages that are made from the folder `debian` of SchedMD's own source."""
SCHEDMD_ACCOUNTING = ("slurm-smd-slurmdbd",)

FOLDER = "usr/share/slurm-stacks/slurm"
"""The packages. A baked image has them, and apt's list of sources there names the folder."""
NAME = "slurm-stacks-slurm"
"""The name of the files in apt's folders."""
PREFERENCES = """\
Package: slurm* libslurm* libpmi0* libpmi2-0* sackd
Pin: {ours}
Pin-Priority: 1001

Package: slurm* libslurm* libpmi0* libpmi2-0* sackd
Pin: version *
Pin-Priority: -1
"""


def elsewhere(settings: SlurmSettings) -> bool:
    """Return whether the stack file names a Slurm other than the distribution's."""
    return bool(settings.packages) or settings.source is not None or settings.repository is not None


def of_distribution(design: ClusterDesign, role: str) -> tuple[str, ...]:
    """Return the packages of Slurm that a role gets from its distribution."""
    return () if elsewhere(design.slurm) else _names(design, role)[0]


def content(settings: SlurmSettings) -> dict[str, object]:
    """Return what an image holds of a Slurm that is not the distribution's."""
    if settings.source is not None:
        return {"slurm": settings.source}
    if settings.repository is not None:
        return {"slurm": [settings.repository.url, settings.repository.suite]}
    return {"slurm": [package.sha256 for package in settings.packages]} if settings.packages else {}


def install(context: Context) -> list[str]:
    """Install the Slurm of the stack file where it is missing, and return the packages' names.

    Raises:
        ServiceError: A package or a key cannot be fetched, or is another one.
        CommandError: apt cannot install them, or a source cannot be built.
    """
    design = context.settings.design
    if not elsewhere(design.slurm):
        return []
    debian, schedmd = _names(design, context.role)
    if not apt.missing(context, debian) or not apt.missing(context, schedmd):
        return []
    if design.slurm.repository is not None:
        _add(context)
    else:
        _fill(context)
    apt.update(context)
    names = schedmd if all(apt.known(context, name) for name in schedmd) else debian
    return apt.install(context, names, fresh=True, downgrade=True)


def _names(design: ClusterDesign, role: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the packages of a role, by the names of Debian and by those of SchedMD."""
    accounting = role == "controller" and design.slurm.accounting
    return (
        DEBIAN[role] + (DEBIAN_ACCOUNTING if accounting else ()),
        SCHEDMD[role] + (SCHEDMD_ACCOUNTING if accounting else ()),
    )


def _add(context: Context) -> None:
    repository = context.settings.design.slurm.repository
    assert repository is not None
    source = " ".join([repository.url, repository.suite, *repository.components])
    apt_repositories.add_repository(context, NAME, repository.key, source, fingerprint=repository.fingerprint)
    _prefer(context, f'origin "{urlsplit(repository.url).hostname}"')


def _fill(context: Context) -> None:
    """Put the packages into the folder, and tell apt."""
    from node.bootstrap.vm import hashed_files, slurm_source

    settings, folder = context.settings.design.slurm, files.folder(context.at(FOLDER))
    if settings.source is not None:
        slurm_source.build(context, settings.source, folder)
    for package in settings.packages:
        path = folder / f"{package.sha256[:16]}.deb"
        if not path.exists():
            hashed_files.download(context, package.archived(), package.sha256, path)
            path.chmod(0o644)
    index = _index(context, folder).encode()
    files.write(folder / "Packages", index)
    digest = hashlib.sha256(index).hexdigest()
    release = f"Origin: {NAME}\nSHA256:\n {digest} {len(index)} Packages\n"
    files.write(folder / "Release", release.encode())
    sources = files.folder(context.at("etc/apt/sources.list.d")) / f"{NAME}.list"
    # apt may trust what is there: root has compared each file's hash, or has built it.
    files.write(sources, f"deb [trusted=yes] file:{folder} ./\n".encode())
    _prefer(context, f"release o={NAME}")


def _prefer(context: Context, ours: str) -> None:
    """Have apt take Slurm from one place alone, which is described as after `Pin:`."""
    preferences = files.folder(context.at("etc/apt/preferences.d")) / NAME
    files.write(preferences, PREFERENCES.format(ours=ours).encode())


def _index(context: Context, folder: Path) -> str:
    """Return the list of a folder's packages, in apt's form."""
    paragraphs = []
    for path in sorted(folder.glob("*.deb")):
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        control = context.run("dpkg-deb", "--field", str(path)).strip()
        place = f"Filename: ./{path.name}\nSize: {path.stat().st_size}\nSHA256: {digest}\n"
        paragraphs.append(f"{control}\n{place}")
    return "\n".join(paragraphs)
