"""The form of a backup: what is in it comes back whole, and anything else is refused before it is used."""

from __future__ import annotations

import io
import json
import os
import stat
import tarfile
from pathlib import Path
from typing import Any

import pytest

from node.backup import archive
from node.backup.archive import BackupError, Manifest


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
