"""The form of a backup: one file with a manifest, and the content that the manifest's digest covers.

The file is a tar of two members, so that it can be looked into without this program:

    manifest.json    which cluster, when, by which release of Slurm, and the content's size and digest
    content.tar.gz   `state/` (slurmctld's StateSaveLocation), `accounting.sql`, `ssh/` (the controller's host
                     keys), `machines/` (the record of machines, which prices the accounting's jobs) and
                     `config/` (Slurm's configuration and the settings, for people who look)

It has secrets: the scripts and environments of jobs, and the private host keys. munge's key is not in it.
"""

from __future__ import annotations

import errno
import gzip
import hashlib
import io
import json
import os
import re
import stat
import tarfile
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from node.system import foreign
from node.system.codec import from_json, shown

API_VERSION = "slurm-stacks/backup/v1"
MANIFEST, CONTENT = "manifest.json", "content.tar.gz"
MOST_MANIFEST = 64 * 1024
"""The greatest size of a manifest, in bytes."""
SUFFIX = ".backup.tar"
STATE, ACCOUNTING, HOST_KEYS, CONFIG, MACHINES = "state", "accounting.sql", "ssh", "config", "machines"
"""The parts of the content."""
BLOCK = 1024 * 1024
TIME = "%F %T UTC"
MOST_HEADER = 8 * 1024
"""The most bytes of a member's headers, those of long names among them. A plain one has 512."""
MOST_MEMBERS = 1_000_000
"""The most files and folders of a content. Slurm has three for a job."""
MOST_BYTES = 2**50
MOST_JOBS = 2**32
LONGEST_NAME, DEEPEST_NAME = 1024, 16
"""The most characters of a member's name, and the most folders in it."""
UNREADABLE = (tarfile.TarError, EOFError, zlib.error, ValueError, OverflowError, RecursionError)
"""What Python's readers raise for a file that is no archive, or a damaged one."""


_NO_PLACE = (errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG)
"""The errors of a name that is there twice, is a file's and a folder's, or is too long for the disk."""


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

    def __post_init__(self) -> None:
        """Check each value: nothing that is done with them later fails.

        Raises:
            ValueError: A value is impossible; the message has its field.
        """
        for field, form in FORMS.items():
            if not re.fullmatch(form, getattr(self, field)):
                raise ValueError(f"{field}: {form} is expected, not {shown(getattr(self, field))}")
        check_time("created", self.created)
        for field, most in (("jobs", MOST_JOBS), ("unpacked", MOST_BYTES), ("size", MOST_BYTES)):
            if not 0 <= getattr(self, field) <= most:
                raise ValueError(f"{field}: 0 to {most} is expected, not {shown(getattr(self, field))}")

    @property
    def name(self) -> str:
        """The name of its file, which sorts by time: `lab-20261126T063000Z.backup.tar`."""
        return f"{self.cluster}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(self.created))}{SUFFIX}"

    def as_json(self) -> dict[str, Any]:
        """Return the manifest's content."""
        return {"apiVersion": API_VERSION, **asdict(self)}


FORMS: Mapping[str, str] = {
    "cluster": r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}",
    "stack": r"[A-Za-z0-9][A-Za-z0-9_./-]{0,299}",
    "slurm": r"[ -~]{1,100}",
    "sha256": r"[0-9a-f]{64}",
}
"""The form of each text of a manifest."""


def check_time(field: str, seconds: float) -> None:
    """Check a time in seconds since the epoch.

    Raises:
        ValueError: It is none of the years 1970 to 9999; the message has the field.
    """
    if not foreign.is_time(seconds):
        raise ValueError(f"{field}: a time from 1970 to 9999 is expected, not {shown(seconds)}")


def when(seconds: object) -> str:
    """Return a time in seconds since the epoch, for a person; one that is none is shown as it is."""
    if foreign.is_time(seconds):
        return time.strftime(TIME, time.gmtime(seconds))
    return shown(seconds)


def digest(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    sha256 = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(BLOCK):
            sha256.update(block)
    return sha256.hexdigest()


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


class _Forward(io.RawIOBase):
    """A stream for `tarfile`, which trusts what headers say: it reads no more of headers than is allowed.

    Damaged or made up headers have `tarfile` read gigabytes at once, or go back for ever. What a member has
    is read here, not by `tarfile`.

    Args:
        source: The archive.
        allowed: The most bytes of headers until `allow` is called.
    """

    def __init__(self, source: BinaryIO | gzip.GzipFile, allowed: int) -> None:
        self._source = source
        self._left = allowed

    def allow(self, more: int) -> None:
        self._left += more

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or not 0 <= size <= min(self._left, MOST_HEADER):
            raise tarfile.ReadError(f"its headers are longer than {MOST_HEADER} bytes")
        self._left -= size
        return self._source.read(size)

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        if whence != os.SEEK_SET or not self.tell() <= offset <= MOST_BYTES:
            raise tarfile.ReadError("its members are not one after another")
        return self._source.seek(offset)

    def tell(self) -> int:
        return self._source.tell()

    def seekable(self) -> bool:
        return True

    def blocks(self, member: tarfile.TarInfo) -> Iterator[bytes]:
        """Yield what a member has.

        Raises:
            EOFError: The archive ends before it.
        """
        self.seek(member.offset_data)
        left = member.size
        while left:
            block = self._source.read(min(BLOCK, left))
            if not block:
                raise EOFError("it ends too soon")
            left -= len(block)
            yield block


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """Open a file for reading, without waiting for the other end of a pipe."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise BackupError("backup.damaged", f"{path} is no backup, and no file at all: name a file")
    with os.fdopen(handle, "rb") as stream:
        yield stream


def read(path: Path, content: Path | None = None) -> Manifest:
    """Check a whole backup, and return its manifest.

    Args:
        path: The backup's file.
        content: Where the packed content is to be written; it is only checked otherwise.

    Raises:
        BackupError: The file is no backup, is of another version, or is damaged or cut short.
    """
    try:
        with _opened(path) as stream:
            return _checked(path, _Forward(stream, MOST_HEADER), content)
    except UNREADABLE as error:
        raise BackupError(
            "backup.damaged", f"{path} is no backup, or is damaged or cut short ({error}): use another one"
        ) from error


def _checked(path: Path, stream: _Forward, content: Path | None) -> Manifest:
    with tarfile.open(fileobj=stream, mode="r:") as archive:
        member = _next(path, archive, MANIFEST)
        if member.size > MOST_MANIFEST:
            raise BackupError(
                "backup.damaged",
                f"{path} is no backup: its {MANIFEST} has {member.size} bytes, and the most are "
                f"{MOST_MANIFEST}",
            )
        manifest = _manifest(path, b"".join(stream.blocks(member)))
        stream.allow(MOST_HEADER)
        member = _next(path, archive, CONTENT)
        sha256 = hashlib.sha256()
        if member.size == manifest.size:
            with (content or Path(os.devnull)).open("wb") as target:
                for block in stream.blocks(member):
                    sha256.update(block)
                    target.write(block)
        if (member.size, sha256.hexdigest()) != (manifest.size, manifest.sha256):
            raise BackupError(
                "backup.digest",
                f"{path} is damaged: its content has {member.size} bytes with SHA-256 {sha256.hexdigest()}, "
                f"and its manifest says {manifest.size} bytes with {manifest.sha256}: use another backup",
            )
        stream.allow(MOST_HEADER)
        if archive.next() is not None:
            raise BackupError("backup.damaged", f"{path} is no backup: it has more than its two parts")
    return manifest


def _next(path: Path, archive: tarfile.TarFile, name: str) -> tarfile.TarInfo:
    member = archive.next()
    if member is None or member.name != name or not _is_plain(member):
        raise BackupError("backup.damaged", f"{path} is no backup: it has no {name} in its place")
    return member


def _is_plain(member: tarfile.TarInfo) -> bool:
    return member.isreg() and not member.issparse() and member.size >= 0


def _manifest(path: Path, text: bytes) -> Manifest:
    try:
        given = foreign.parse_strictly(text)
        version = given.pop("apiVersion")
    except (ValueError, KeyError, AttributeError, TypeError):
        raise BackupError("backup.damaged", f"{path} is no backup: its {MANIFEST} cannot be read") from None
    if version != API_VERSION:
        raise BackupError(
            "backup.version",
            f"{path} is of version {shown(version)}, and this program reads {API_VERSION}: use the "
            "release of slurm-stacks that has made it",
        )
    try:
        return from_json(Manifest, given)
    except ValueError as error:
        raise BackupError(
            "backup.damaged", f"{path} is no backup: its {MANIFEST} lacks or has a wrong value ({error})"
        ) from None


def unpack(content: Path, folder: Path, most: int = MOST_BYTES) -> None:
    """Unpack a content whose digest was checked. Only folders and regular files are made, below the folder.

    Owners are not taken over: they are numbers of another machine.

    Args:
        most: The most bytes that it has, by its manifest.

    Raises:
        BackupError: Something else is in it, or more.
    """
    try:
        with gzip.open(content, "rb") as source:
            _unpack(_Forward(source, MOST_HEADER), folder, most)
    except (*UNREADABLE, gzip.BadGzipFile) as error:
        raise BackupError("backup.damaged", f"the backup's content cannot be unpacked: {error}") from error


def _unpack(stream: _Forward, folder: Path, most: int) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    left, count, files = most, 0, _most_files(folder)
    with tarfile.open(fileobj=stream, mode="r:") as packed:
        while (member := packed.next()) is not None:
            count, left = count + 1, left - (member.size if member.isreg() else 0)
            if left < 0 or count > files:
                raise BackupError(
                    "backup.content",
                    f"the backup unpacks to more than the {most} bytes that its manifest says, or to more "
                    f"than {files} files, which are the most here",
                )
            try:
                _place(stream, member, folder)
            except OSError as error:
                if error.errno in _NO_PLACE:
                    raise BackupError(
                        "backup.content", f"the backup has {shown(member.name)}: {error.strerror}"
                    ) from error
                raise
            stream.allow(MOST_HEADER)
            # TarFile keeps what it has read, for names that are asked for later.
            packed.members.clear()  # type: ignore[attr-defined]  # typeshed leaves it out


def _most_files(folder: Path) -> int:
    """Return how many files may be unpacked: what is in use on the same disk needs some, too."""
    system = os.statvfs(folder)
    return min(MOST_MEMBERS, system.f_favail // 2) if system.f_files else MOST_MEMBERS


def _place(stream: _Forward, member: tarfile.TarInfo, folder: Path) -> None:
    name = PurePosixPath(member.name)
    if (
        name.is_absolute()
        or ".." in name.parts
        or not (_is_plain(member) or member.isdir())
        or len(member.name) > LONGEST_NAME
        or len(name.parts) > DEEPEST_NAME
        or "\0" in member.name
    ):
        raise BackupError(
            "backup.content", f"the backup has {shown(member.name)}, which is no file of a cluster"
        )
    path = folder / name
    if member.isdir():
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        return
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "wb") as target:
        for block in stream.blocks(member):
            target.write(block)
        os.fchmod(target.fileno(), stat.S_IMODE(member.mode) & 0o755)
