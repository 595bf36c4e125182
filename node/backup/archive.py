"""The form of a backup: one file with a manifest, and the content that the manifest's digest covers.

The file is a tar of two members, so that it can be looked into without this program:

    manifest.json    which cluster, when, by which release of Slurm, and the content's size and digest
    content.tar.gz   `state/` (slurmctld's StateSaveLocation), `accounting.sql`, `ssh/` (the controller's host
                     keys) and `config/` (Slurm's configuration and the settings, for people who look)

It has secrets: the scripts and environments of jobs, and the private host keys. munge's key is not in it.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import stat
import tarfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

API_VERSION = "slurm-stacks/backup/v1"
MANIFEST, CONTENT = "manifest.json", "content.tar.gz"
MOST_MANIFEST = 64 * 1024
"""The greatest size of a manifest, in bytes."""
SUFFIX = ".backup.tar"
STATE, ACCOUNTING, HOST_KEYS, CONFIG = "state", "accounting.sql", "ssh", "config"
"""The parts of the content."""
BLOCK = 1024 * 1024


class BackupError(Exception):
    """A backup cannot be taken, read or restored. The message is one sentence that says what to do.

    Attributes:
        code: A stable name of the failure, such as `backup.digest`.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a backup says of itself.

    Attributes:
        cluster: The cluster's name, which Slurm's state and the accounting's tables have, too.
        created: When slurmctld stood still for it, in seconds since the epoch (UTC).
        slurm: The release that has written the state, as `slurmctld -V` prints it.
        accounting: Whether the accounting is in it.
        jobs: The number of jobs that had not ended.
        unpacked: The size of the unpacked content, in bytes.
        size: The size of the packed content, in bytes.
        sha256: The digest of the packed content, in hexadecimal.
    """

    cluster: str
    stack: str
    created: float
    slurm: str
    accounting: bool
    jobs: int
    unpacked: int
    size: int
    sha256: str

    @property
    def name(self) -> str:
        """The name of its file, which sorts by time: `lab-20261126T063000Z.backup.tar`."""
        return f"{self.cluster}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(self.created))}{SUFFIX}"

    def as_json(self) -> dict[str, Any]:
        """Return the manifest's content."""
        return {"apiVersion": API_VERSION, **asdict(self)}


def digest(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    found = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(BLOCK):
            found.update(block)
    return found.hexdigest()


def pack(folder: Path, into: Path) -> int:
    """Pack a folder's parts, and return the size of what was packed.

    Args:
        into: The packed file, which must not exist.
    """
    total = 0
    # Slurm links files that jobs share. Each name is packed as a file of its own.
    with (
        into.open("xb") as stream,
        tarfile.open(fileobj=stream, mode="w:gz", compresslevel=3, dereference=True) as packed,
    ):
        for path in _below(folder):
            packed.add(path, str(path.relative_to(folder)), recursive=False)
            status = path.lstat()
            total += status.st_size if stat.S_ISREG(status.st_mode) else 0
    return total


def _below(folder: Path) -> Iterator[Path]:
    """Yield what is below a folder, each folder before what is in it."""
    for path in sorted(folder.iterdir()):
        yield path
        if path.is_dir() and not path.is_symlink():
            yield from _below(path)


def write(output: BinaryIO, manifest: Manifest, content: Path) -> None:
    """Write a backup to a stream that cannot be rewound."""
    text = json.dumps(manifest.as_json(), indent=1).encode()
    with tarfile.open(fileobj=output, mode="w|") as archive, content.open("rb") as stream:
        for name, size, source in (
            (MANIFEST, len(text), io.BytesIO(text)),
            (CONTENT, manifest.size, stream),
        ):
            member = tarfile.TarInfo(name)
            member.size, member.mode, member.mtime = size, 0o600, int(manifest.created)
            archive.addfile(member, source)


def read(path: Path, content: Path | None = None) -> Manifest:
    """Check a whole backup, and return its manifest.

    Args:
        path: The backup's file.
        content: Where the packed content is to be written; it is only checked otherwise.

    Raises:
        BackupError: The file is no backup, is of another version, or is damaged or cut short.
    """
    try:
        with tarfile.open(path, mode="r:") as archive:
            manifest = _manifest(path, archive)
            stream = _member(path, archive, CONTENT)
            found, size = hashlib.sha256(), 0
            with (content or Path(os.devnull)).open("wb") as target:
                while block := stream.read(BLOCK):
                    found.update(block)
                    size += len(block)
                    target.write(block)
    except (tarfile.TarError, EOFError) as error:
        raise BackupError(
            "backup.damaged", f"{path} is no backup, or is damaged or cut short ({error}): use another one"
        ) from error
    if (size, found.hexdigest()) != (manifest.size, manifest.sha256):
        raise BackupError(
            "backup.digest",
            f"{path} is damaged: its content has {size} bytes with SHA-256 {found.hexdigest()}, and its "
            f"manifest says {manifest.size} bytes with {manifest.sha256}: use another backup",
        )
    return manifest


def _member(path: Path, archive: tarfile.TarFile, name: str) -> BinaryIO:
    try:
        stream = archive.extractfile(name)
    except KeyError:
        stream = None
    if stream is None:
        raise BackupError("backup.damaged", f"{path} is no backup: it has no {name}")
    return stream  # type: ignore[return-value]  # typeshed calls it IO[bytes]


def _manifest(path: Path, archive: tarfile.TarFile) -> Manifest:
    text = _member(path, archive, MANIFEST).read(MOST_MANIFEST)
    try:
        given = json.loads(text)
        version = given.pop("apiVersion")
    except (ValueError, KeyError, AttributeError, TypeError):
        raise BackupError("backup.damaged", f"{path} is no backup: its {MANIFEST} cannot be read") from None
    if version != API_VERSION:
        raise BackupError(
            "backup.version",
            f"{path} is of version {str(version)[:80]!r}, and this program reads {API_VERSION}: use the "
            "release of slurm-stacks that has made it",
        )
    kinds = {"str": str, "float": (int, float), "bool": bool, "int": int}
    try:
        for field in fields(Manifest):
            if not isinstance(given[field.name], kinds[str(field.type)]):  # type: ignore[arg-type]
                raise ValueError(field.name)
        return Manifest(**given)
    except (KeyError, TypeError, ValueError) as error:
        raise BackupError(
            "backup.damaged", f"{path} is no backup: its {MANIFEST} lacks or has a wrong {error}"
        ) from None


def unpack(content: Path, folder: Path) -> None:
    """Unpack a content whose digest was checked. Only folders and regular files are made, below the folder.

    Owners are not taken over: they are numbers of another machine.

    Raises:
        BackupError: Something else is in it.
    """
    try:
        with tarfile.open(content, mode="r:gz") as packed:
            for member in packed:
                _place(packed, member, folder)
    except (tarfile.TarError, EOFError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise BackupError("backup.damaged", f"the backup's content cannot be unpacked: {error}") from error


def _place(packed: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    name = PurePosixPath(member.name)
    if name.is_absolute() or ".." in name.parts or not (member.isreg() or member.isdir()):
        raise BackupError("backup.content", f"the backup has {member.name!r}, which is no file of a cluster")
    path = folder / name
    if member.isdir():
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        return
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    source = packed.extractfile(member)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "wb") as target:
        while source is not None and (block := source.read(BLOCK)):
            target.write(block)
        os.fchmod(target.fileno(), stat.S_IMODE(member.mode) & 0o755)
