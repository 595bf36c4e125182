"""Files that are written whole or not at all, and their locks."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from infra.program import folders
from infra.program.files import write_atomically


def test_a_file_is_replaced_as_a_whole_with_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "note"
    write_atomically(path, "one")
    other = tmp_path / "other"
    os.link(path, other)
    write_atomically(path, "zwölf", 0o640, durable=True)
    assert path.read_text(encoding="utf-8") == "zwölf"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert other.read_text() == "one", "who reads the file meanwhile reads its former content to the end"
    assert {file.name for file in tmp_path.iterdir()} == {"note", "other"}


def test_a_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    target, path = tmp_path / "target", tmp_path / "note"
    target.write_text("keep")
    path.symlink_to(target)
    write_atomically(path, b"new")
    assert (target.read_text(), path.read_text(), path.is_symlink()) == ("keep", "new", False)


def test_an_exclusive_file_is_made_once(tmp_path: Path) -> None:
    path = tmp_path / "owner"
    write_atomically(path, "first", exclusive=True)
    with pytest.raises(FileExistsError):
        write_atomically(path, "second", exclusive=True)
    assert [file.read_text() for file in tmp_path.iterdir()] == ["first"]


def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "note"
    path.write_text("one")

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_atomically(path, "two", durable=True)
    assert [file.read_text() for file in tmp_path.iterdir()] == ["one"]


@pytest.mark.parametrize(("mask", "user", "made"), [(0, 1, 0o755), (0o077, 1, 0o700), (0o077, 0, 0o755)])
def test_the_umask_of_what_machines_read(
    mask: int, user: int, made: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody else may write it, and what root makes is for the users of machines that boot, too."""
    monkeypatch.setattr(os, "geteuid", lambda: user)
    before = os.umask(mask)
    try:
        with folders.umask():
            (tmp_path / "made").mkdir()
        (tmp_path / "after").mkdir()
    finally:
        os.umask(before)
    assert (tmp_path / "made").stat().st_mode & 0o777 == made
    assert (tmp_path / "after").stat().st_mode & 0o777 == 0o777 & ~mask
