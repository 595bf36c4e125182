"""The form of a backup: what is in it comes back whole, and anything else is refused before it is used."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import random
import stat
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from node.backup import archive
from node.backup.archive import BackupError, Manifest
from node.system import foreign


def parts(folder: Path) -> Path:
    """Make the parts of a backup."""
    made = folder / "parts"
    (made / "state" / "hash.1" / "job.11").mkdir(parents=True)
    (made / "state" / "job_state").write_bytes(os.urandom(300_000))
    (made / "state" / "hash.1" / "job.11" / "script").write_text("#!/bin/sh\n")
    (made / "state" / "hash.1" / "job.11" / "script").chmod(0o600)
    # Slurm links what jobs share.
    (made / "state" / "hash.2" / "job.12").mkdir(parents=True)
    (made / "state" / "hash.2" / "job.12" / "script").hardlink_to(
        made / "state" / "hash.1" / "job.11" / "script"
    )
    (made / "ssh").mkdir()
    (made / "ssh" / "ssh_host_ed25519_key").write_text("secret")
    return made


def backup(folder: Path, **changes: Any) -> tuple[Path, Manifest]:
    """Make a backup, with other values in its manifest."""
    folder.mkdir(exist_ok=True)
    content = folder / "content"
    unpacked = archive.pack(parts(folder), content)
    given = {
        "cluster": "lab", "stack": "lab", "created": 1_800_000_000.5, "slurm": "slurm-wlm 22.05.8",
        "accounting": False, "jobs": 3, "unpacked": unpacked, "size": content.stat().st_size,
        "sha256": archive.digest(content),
    }  # fmt: skip
    manifest = Manifest(**{**given, **changes})
    file = folder / "lab.backup.tar"
    with file.open("wb") as output:
        archive.write(output, manifest, content)
    return file, manifest


def refused(file: Path) -> str:
    with pytest.raises(BackupError) as error:
        archive.read(file)
    assert str(file) in str(error.value)
    return error.value.code


def test_what_is_saved_comes_back(tmp_path: Path) -> None:
    file, manifest = backup(tmp_path / "a")
    assert manifest.name == "lab-20270115T080000Z.backup.tar"
    content = tmp_path / "content"
    assert archive.read(file, content) == manifest
    archive.unpack(content, tmp_path / "new")
    source = tmp_path / "a" / "parts"
    for path in source.rglob("*"):
        found = tmp_path / "new" / path.relative_to(source)
        assert found.is_dir() if path.is_dir() else found.read_bytes() == path.read_bytes()
    script = tmp_path / "new" / "state" / "hash.1" / "job.11" / "script"
    assert stat.S_IMODE(script.stat().st_mode) == 0o600
    assert manifest.unpacked == sum(path.stat().st_size for path in source.rglob("*") if path.is_file())


def test_any_tar_shows_what_is_in_it(tmp_path: Path) -> None:
    file, manifest = backup(tmp_path / "a")
    with tarfile.open(file) as opened:
        assert opened.getnames() == ["manifest.json", "content.tar.gz"]
        text = opened.extractfile("manifest.json")
        assert text is not None
        assert json.load(text) == {"apiVersion": "slurm-stacks/backup/v1", **manifest.as_json()}


@pytest.mark.parametrize("part", [0.05, 0.3, 0.6, 0.95])
def test_a_changed_byte_is_found(tmp_path: Path, part: float) -> None:
    file, _ = backup(tmp_path / "a")
    text = bytearray(file.read_bytes())
    text[int(len(text) * part)] ^= 1
    file.write_bytes(text)
    assert refused(file) in ("backup.digest", "backup.damaged")


@pytest.mark.parametrize("left", [0, 1, 511, 600, 2000, 200_000])
def test_what_is_cut_short_is_found(tmp_path: Path, left: int) -> None:
    file, _ = backup(tmp_path / "a")
    file.write_bytes(file.read_bytes()[:left])
    assert refused(file) in ("backup.digest", "backup.damaged")


def test_other_files_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("no backup at all\n" * 100)
    assert refused(file) == "backup.damaged"
    with tarfile.open(file, "w") as made:
        made.addfile(tarfile.TarInfo("manifest.json"))
    assert refused(file) == "backup.damaged"


def with_manifest(file: Path, text: bytes) -> None:
    """Exchange a backup's manifest."""
    with tarfile.open(file) as opened:
        stream = opened.extractfile("content.tar.gz")
        assert stream is not None
        content = stream.read()
    with tarfile.open(file, "w") as made:
        for name, body in (("manifest.json", text), ("content.tar.gz", content)):
            member = tarfile.TarInfo(name)
            member.size = len(body)
            made.addfile(member, io.BytesIO(body))


def test_another_version_is_refused_by_its_name(tmp_path: Path) -> None:
    file, manifest = backup(tmp_path / "a")
    with_manifest(file, json.dumps({**manifest.as_json(), "apiVersion": "slurm-stacks/backup/v2"}).encode())
    with pytest.raises(BackupError, match=r"slurm-stacks/backup/v2.*reads slurm-stacks/backup/v1") as error:
        archive.read(file)
    assert error.value.code == "backup.version"


@pytest.mark.parametrize(
    "change", [{"cluster": 7}, {"size": "7"}, {"sha256": None}, {"accounting": "no"}, {"extra": 1}]
)
def test_a_manifest_with_other_values_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    file, manifest = backup(tmp_path / "a")
    with_manifest(file, json.dumps({**manifest.as_json(), **change}).encode())
    assert refused(file) == "backup.damaged"
    with_manifest(file, b"[]")
    assert refused(file) == "backup.damaged"


@pytest.mark.parametrize("name", ["/etc/passwd", "../outside", "state/../../outside"])
def test_nothing_is_written_outside_the_folder(tmp_path: Path, name: str) -> None:
    content = tmp_path / "content"
    with tarfile.open(content, "w:gz") as made:
        member = tarfile.TarInfo(name)
        member.size = 1
        made.addfile(member, io.BytesIO(b"x"))
    with pytest.raises(BackupError, match="no file of a cluster"):
        archive.unpack(content, tmp_path / "new" / "deep")
    assert not list(tmp_path.rglob("outside"))


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE])
def test_only_files_and_folders_are_made(tmp_path: Path, kind: bytes) -> None:
    content = tmp_path / "content"
    with tarfile.open(content, "w:gz") as made:
        member = tarfile.TarInfo("state/job_state")
        member.type, member.linkname = kind, "/etc/passwd"
        made.addfile(member)
    with pytest.raises(BackupError, match="no file of a cluster"):
        archive.unpack(content, tmp_path / "new")


@pytest.mark.parametrize(
    "names",
    [["state/a", "state/a"], ["state", "state/a"], ["state/", "state"], ["."], [""], ["x" * 300]],
    ids=["twice", "a folder below a file", "a file for a folder", "the folder", "no name", "too long"],
)
def test_a_name_that_has_no_place_is_a_fault_of_the_backup(tmp_path: Path, names: list[str]) -> None:
    content = tmp_path / "content"
    with tarfile.open(content, "w:gz") as made:
        for name in names:
            member = tarfile.TarInfo(name)
            member.type, member.size = (tarfile.DIRTYPE, 0) if name.endswith("/") else (tarfile.REGTYPE, 1)
            made.addfile(member, io.BytesIO(b"x" * member.size))
    with pytest.raises(BackupError, match="the backup has '") as error:
        archive.unpack(content, tmp_path / "new")
    assert error.value.code == "backup.content"


DIGEST = "0" * 64
LAWFUL: dict[str, str] = {
    "apiVersion": f'"{archive.API_VERSION}"', "cluster": '"lab"', "stack": '"lab"', "created": "1800000000",
    "slurm": '"slurm 22.05.8"', "accounting": "false", "jobs": "0", "unpacked": "1", "size": "1",
    "sha256": f'"{DIGEST}"',
}  # fmt: skip
"""Each field of a manifest, as JSON. The content is not that of the digest."""
NO_TEXT = ("7", "true", "null", "[]", "{}", '""', '"\\u001b[31m"', '"\\u202e"', f'"{"x" * 5000}"')
NO_COUNT = ("true", "-5", "1.0", "1e3", '"3"', "null", "NaN", "1e400", "1" + "0" * 30, "1" * 5000, "[]")
IMPOSSIBLE = {
    "apiVersion": ("7", "null", "[]", '"slurm-stacks/backup/v9"', '""'),
    "cluster": (*NO_TEXT, '"../x"', '"a/b"', '"-x"'),
    "stack": (*NO_TEXT, '"/etc"'),
    "slurm": NO_TEXT,
    "sha256": (*NO_TEXT, f'"{"0" * 63}"', f'"{"G" * 64}"'),
    "created": ("true", "NaN", "Infinity", "-Infinity", "1e400", "1e300", "-1e18", "-1", "253402300800",
                "1" * 400, "1" * 5000, '"0"', "null", "[]"),
    "accounting": ("0", "1", '"no"', "null"),
    "jobs": NO_COUNT,
    "unpacked": NO_COUNT,
    "size": NO_COUNT,
}  # fmt: skip


def manifest_text(changes: dict[str, str]) -> bytes:
    return ("{" + ", ".join(f'"{key}": {value}' for key, value in (LAWFUL | changes).items()) + "}").encode()


def of_manifest(folder: Path, text: bytes) -> Path:
    """Make a backup with this manifest, and a content of one byte."""
    file = folder / "made.tar"
    with tarfile.open(file, "w") as made:
        for name, body in (("manifest.json", text), ("content.tar.gz", b"x")):
            member = tarfile.TarInfo(name)
            member.size = len(body)
            made.addfile(member, io.BytesIO(body))
    return file


def test_every_value_of_a_manifest_is_checked(tmp_path: Path) -> None:
    assert refused(of_manifest(tmp_path, manifest_text({}))) == "backup.digest", "the manifest is good"
    assert IMPOSSIBLE.keys() == LAWFUL.keys()
    passed = [
        (field, value)
        for field, values in IMPOSSIBLE.items()
        for value in values
        if refused(of_manifest(tmp_path, manifest_text({field: value})))
        not in ("backup.damaged", "backup.version")
    ]
    assert passed == []
    for field in LAWFUL:
        missing = {key: value for key, value in LAWFUL.items() if key != field}
        text = ("{" + ", ".join(f'"{key}": {value}' for key, value in missing.items()) + "}").encode()
        file = of_manifest(tmp_path, text)
        assert refused(file) == "backup.damaged", field
        if field != "apiVersion":
            with pytest.raises(BackupError, match=f"missing fields {field}"):
                archive.read(file)


@pytest.mark.parametrize("created", [0.0, foreign.LAST_TIME])
def test_the_first_and_the_last_time_can_be_written(tmp_path: Path, created: float) -> None:
    _, manifest = backup(tmp_path / "a", created=created)
    assert manifest.name.startswith("lab-")
    assert archive.when(created).endswith(" UTC")
    assert archive.when(1e400) == "inf"
    assert archive.when("now") == "'now'"


@pytest.mark.parametrize(
    "text",
    [
        b"[" * 60000,
        b'{"a":' * 12000,
        b"[" * 30 + b"]" * 30,
        b"{}",
        b"\xff\xfe",
        b"7",
        manifest_text({})[:-1] + b', "jobs": 1}',
        manifest_text({})[:-1] + b', "further": 1}',
        manifest_text({"further": "[" * 40 + "]" * 40}),
        b" " * 70_000 + manifest_text({}),
    ],
)
def test_a_manifest_in_no_form_of_ours_is_refused(tmp_path: Path, text: bytes) -> None:
    assert refused(of_manifest(tmp_path, text)) == "backup.damaged"


def header(name: str, size: int = 0, kind: bytes = tarfile.REGTYPE) -> bytes:
    member = tarfile.TarInfo(name)
    member.size, member.type = size, kind
    return member.tobuf(tarfile.USTAR_FORMAT)


LONG_HEADERS = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)


@pytest.mark.parametrize("kind", LONG_HEADERS)
def test_a_header_of_gigabytes_is_not_read(
    tmp_path: Path, kind: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "long.tar"
    with file.open("wb") as stream:
        stream.write(header("manifest.json", 2 * 2**30, kind))
        stream.truncate(2 * 2**30 + 2**20)
    asked: list[int] = []
    really = archive._Forward.read

    def counted(self: Any, size: int | None = -1, /) -> bytes:
        found = really(self, size)
        asked.append(len(found))
        return found

    monkeypatch.setattr(archive._Forward, "read", counted)
    assert refused(file) == "backup.damaged"
    assert sum(asked) <= archive.MOST_HEADER


HOSTILE: dict[str, list[bytes]] = {
    "no end of extended headers": [header("x", 0, tarfile.XHDTYPE) * 100_000],
    "no end of members": [header("manifest.json") * 100_000],
    "a member with holes": [header("manifest.json", 512, tarfile.GNUTYPE_SPARSE), bytes(1024)],
    "three parts": [
        header("manifest.json", 2),
        b"{}".ljust(512, b"\0"),
        header("content.tar.gz"),
        header("x"),
    ],
    "two manifests": [header("manifest.json") * 2],
    "a manifest of gigabytes": [header("manifest.json", 8**11 - 1), bytes(2**20)],
}


@pytest.mark.parametrize("name", HOSTILE)
def test_an_archive_of_no_form_of_ours_is_refused(tmp_path: Path, name: str) -> None:
    file = tmp_path / "made.tar"
    file.write_bytes(b"".join(HOSTILE[name]))
    assert refused(file) == "backup.damaged"


def test_what_is_no_file_is_refused_without_waiting(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert [refused(path) for path in (pipe, tmp_path, Path("/dev/zero"))] == 3 * ["backup.damaged"]


def unpacked(folder: Path, parts: Iterable[bytes], most: int = 2**40) -> str:
    """Unpack a content of these bytes, and return the code with which it is refused."""
    content = folder / "content"
    with gzip.open(content, "wb", compresslevel=1) as packed:
        for part in parts:
            packed.write(part)
    with pytest.raises(BackupError) as error:
        archive.unpack(content, folder / "new", most)
    return error.value.code


def extended(text: bytes) -> bytes:
    return header("x", len(text), tarfile.XHDTYPE) + text.ljust(-len(text) % 512 + len(text), b"\0")


CONTENTS: dict[str, tuple[list[bytes], str]] = {
    "a header of gigabytes": ([header("x", 2**31, tarfile.XHDTYPE), bytes(2**20)], "backup.damaged"),
    "a name of gigabytes": ([header("x", 2**31, tarfile.GNUTYPE_LONGNAME), bytes(2**20)], "backup.damaged"),
    "extended headers": ([header("x", 0, tarfile.XHDTYPE) * 50_000], "backup.damaged"),
    "more than it says": ([header("state/x", 2001), bytes(2560)], "backup.content"),
    "a way of many folders": ([header("a/" * 40 + "x")], "backup.content"),
    "a long name": ([extended(b"3020 path=" + b"n" * 3009 + b"\n") + header("x")], "backup.content"),
    "a size below zero": ([extended(b"14 size=-1024\n") + header("state/x")], "backup.content"),
    "holes": ([header("state/x", 512, tarfile.GNUTYPE_SPARSE), bytes(512)], "backup.content"),
    "no end": ([header("state/x", 2000), bytes(100)], "backup.damaged"),
    "no archive": ([b"text" * 1000], "backup.damaged"),
}


@pytest.mark.parametrize("name", CONTENTS)
def test_a_content_that_would_fill_memory_or_disk_is_refused(tmp_path: Path, name: str) -> None:
    parts, code = CONTENTS[name]
    assert unpacked(tmp_path, parts, 2000) == code


def test_the_sum_and_the_number_of_files_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    three = [header(f"state/{n}", 800) + bytes(1024) for n in range(3)]
    assert unpacked(tmp_path, three, 2000) == "backup.content"
    assert not (tmp_path / "new" / "state" / "2").exists()
    monkeypatch.setattr(archive, "MOST_MEMBERS", 100)
    assert unpacked(tmp_path, [header(f"d{n}", 0, tarfile.DIRTYPE) for n in range(101)]) == "backup.content"


def test_a_damaged_content_is_refused_by_what_is_wrong(tmp_path: Path) -> None:
    content = tmp_path / "content"
    archive.pack(parts(tmp_path), content)
    whole = content.read_bytes()
    dice = random.Random(5)
    for trial in range(60):
        text = bytearray(whole)
        text[dice.randrange(len(text))] ^= 1 << dice.randrange(8)
        content.write_bytes(text if trial % 2 else text[: dice.randrange(len(text))])
        # Anything but a BackupError is one of Python's own.
        with contextlib.suppress(BackupError):
            archive.unpack(content, tmp_path / f"new{trial}", 2**20)


def test_headers_that_are_random_are_refused_by_what_is_wrong(tmp_path: Path) -> None:
    file, _ = backup(tmp_path / "a")
    whole = file.read_bytes()
    dice = random.Random(7)
    other = tmp_path / "other.tar"
    for _ in range(300):
        text = bytearray(whole[:4096])
        for _ in range(dice.randrange(1, 6)):
            text[dice.choice((dice.randrange(512), dice.randrange(1024, 2048)))] = dice.randrange(256)
        for start in (0, 1024):
            text[start + 148 : start + 156] = b" " * 8
            text[start + 148 : start + 156] = b"%06o\0 " % sum(text[start : start + 512])
        other.write_bytes(text)
        assert refused(other) in ("backup.damaged", "backup.digest", "backup.version")
