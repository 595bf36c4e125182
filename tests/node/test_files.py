"""Tests of files that root writes into folders where users can write."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from node.system import files
from tests.support.checkout import ROOT

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to act as another user")
ALICE = 4711


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A folder with a file that nobody may touch."""
    made = tmp_path / "victim"
    made.mkdir(mode=0o700)
    (made / "file").write_text("mine")
    (made / "file").chmod(0o600)
    return made


def unharmed(victim: Path) -> bool:
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (victim, victim / "file")]
    owners = {path.stat().st_uid for path in (victim, victim / "file")}
    return (
        modes == [0o700, 0o600]
        and owners == {os.geteuid()}
        and (victim / "file").read_text() == "mine"
        and list(victim.iterdir()) == [victim / "file"]
    )


@pytest.mark.parametrize("kind", ["link to a folder", "link to nothing", "link to a file", "file"])
def test_a_folder_is_not_made_where_a_link_leads(tmp_path: Path, victim: Path, kind: str) -> None:
    place = tmp_path / "bench"
    if kind == "file":
        place.touch()
    else:
        leads = {
            "link to a folder": victim,
            "link to nothing": victim / "new",
            "link to a file": victim / "file",
        }
        place.symlink_to(leads[kind])
    with pytest.raises(NotADirectoryError, match="is a link or a file of "):
        files.folder(place, 0o1777)
    assert unharmed(victim)


@needs_root
def test_root_takes_a_folder_that_another_user_has_made(tmp_path: Path) -> None:
    place = tmp_path / "bench"
    place.mkdir(mode=0o777)
    os.chown(place, ALICE, ALICE)
    files.folder(place, 0o1777)
    assert (place.stat().st_uid, stat.S_IMODE(place.stat().st_mode)) == (0, 0o1777)
    files.folder(place, 0o700, "nobody")
    assert (place.owner(), stat.S_IMODE(place.stat().st_mode)) == ("nobody", 0o700)


@needs_root
def test_root_removes_another_users_link_in_a_folders_place(tmp_path: Path, victim: Path) -> None:
    place = tmp_path / "bench"
    place.symlink_to(victim)
    os.chown(place, ALICE, ALICE, follow_symlinks=False)
    files.folder(place, 0o1777)
    there = place.lstat()
    assert (there.st_uid, there.st_mode) == (0, stat.S_IFDIR | 0o1777)
    assert unharmed(victim)


@pytest.mark.parametrize("content", ["mine", "new"])
def test_a_link_in_a_files_place_is_replaced(tmp_path: Path, victim: Path, content: str) -> None:
    place = tmp_path / "settings"
    place.symlink_to(victim / "file")
    assert files.write(place, content.encode(), 0o644)
    assert not place.is_symlink()
    assert (place.read_text(), stat.S_IMODE(place.stat().st_mode)) == (content, 0o644)
    assert not files.write(place, content.encode(), 0o600)
    assert stat.S_IMODE(place.stat().st_mode) == 0o600
    assert unharmed(victim)


def test_a_drafts_name_cannot_be_made_beforehand(
    tmp_path: Path, victim: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another user makes links of every name that a process can foresee."""
    for pid in range(os.getpid(), os.getpid() + 50):
        (tmp_path / f".settings.{pid}").symlink_to(victim / "file")
        (tmp_path / f".link.{pid}").symlink_to(victim / "file")
    files.write(tmp_path / "settings", b"new")
    files.link(tmp_path / "link", "settings")
    assert (tmp_path / "link").read_text() == "new"
    # Even the right name would be of no use: an existing draft is neither written nor removed.
    monkeypatch.setattr(os, "urandom", bytes)
    (tmp_path / f".settings.{bytes(8).hex()}").symlink_to(victim / "file")
    with pytest.raises(FileExistsError):
        files.write(tmp_path / "settings", b"newer")
    assert (tmp_path / f".settings.{bytes(8).hex()}").is_symlink()
    assert unharmed(victim)


def test_a_failed_write_leaves_no_draft(tmp_path: Path) -> None:
    (tmp_path / "settings").mkdir()
    with pytest.raises(IsADirectoryError):
        files.write(tmp_path / "settings", b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["settings"]


SPOIL = """
import os, sys
from pathlib import Path
from node.system import files
os.setgid(65534), os.setuid(65534)
root = Path(sys.argv[1])
for folder in (root / "cache" / "module", root / "closed"):
    folder.mkdir(parents=True)
    (folder / "file").touch()
(root / "link").symlink_to(sys.argv[2])
(root / "closed").chmod(0)
for folder in (root / "cache" / "module", root / "cache", root):
    folder.chmod(0o555)
files.remove(root)
print(root.exists())
"""


@needs_root
def test_folders_that_a_user_may_not_write_are_removed_and_links_not_followed(victim: Path) -> None:
    victim.chmod(0o755)
    with tempfile.TemporaryDirectory() as above:
        Path(above).chmod(0o777)
        victim = Path(shutil.move(victim, above))
        os.chown(victim, 65534, 65534)
        command = [sys.executable, "-c", SPOIL, f"{above}/own", str(victim)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
        assert (done.stdout, done.stderr) == ("False\n", "")
        assert stat.S_IMODE(victim.stat().st_mode) == 0o755
        assert (victim / "file").read_text() == "mine"


OTHERS = """
import os, sys
from pathlib import Path
from node.system import files
root = Path(sys.argv[1])
for folder in (root / "others", root / "own"):
    folder.mkdir(parents=True)
    (folder / "file").touch()
for path in (root, root / "own", root / "own" / "file"):
    os.chown(path, 65534, 65534)
os.setgid(65534), os.setuid(65534)
(root / "own").chmod(0o555)
files.remove(root)
print(sorted(str(path.relative_to(root)) for path in root.rglob("*")))
"""


@needs_root
def test_what_belongs_to_somebody_else_stays_and_all_else_goes() -> None:
    with tempfile.TemporaryDirectory() as above:
        Path(above).chmod(0o777)
        command = [sys.executable, "-c", OTHERS, f"{above}/run"]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
        assert (done.stdout, done.stderr) == ("['others', 'others/file']\n", "")


def test_a_folder_that_is_not_there_is_removed(tmp_path: Path) -> None:
    files.remove(tmp_path / "none")
