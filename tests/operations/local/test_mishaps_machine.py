"""Reasons why a machine cannot run a cluster: found before anything is made, with a cure."""

from __future__ import annotations

import errno
import os
import pwd
from pathlib import Path

import pytest

from cli.providers.local import host_checks
from infra import os_errors
from infra.errors import EXIT_REFUSED, UserError
from infra.program import folders, locations
from infra.program.stack import Stack
from operations.local import run_directory
from tests.support import sentences


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine on which a cluster could come up."""
    monkeypatch.setattr(locations, "run_root", lambda: tmp_path / "slurm-stacks-0")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def nameless(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(uid: int) -> pwd.struct_passwd:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.setattr(pwd, "getpwuid", unknown)


def somebody_else(monkeypatch: pytest.MonkeyPatch) -> int:
    """All files belong to another user, and this user is not root."""
    mine = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    monkeypatch.setattr(os, "access", lambda *_: False)
    return mine


# --- the user --------------------------------------------------------------------------------------------


def test_a_machine_without_a_problem(home: Path) -> None:
    assert host_checks.problems() == []
    host_checks.check()
    assert not home.exists(), "looking makes nothing"


def test_the_user_is_whom_the_system_knows(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("USER", "LOGNAME", "USERNAME"):
        monkeypatch.setenv(variable, "alice")
    assert run_directory.user() == pwd.getpwuid(os.getuid()).pw_name


def test_a_user_without_a_name_is_told_how_to_get_one(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nameless(monkeypatch)
    with sentences.raises(
        "host.not-ready", varies=[f"user {os.getuid()}", f"me:x:{os.getuid()}:{os.getgid()}"]
    ) as caught:
        host_checks.check()
    assert caught.value.exit_code == EXIT_REFUSED


@pytest.mark.parametrize("value", [None, "", "relative"])
def test_without_a_home_the_database_is_asked(
    home: Path, monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    for variable in ("XDG_STATE_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable)
    monkeypatch.delenv("HOME")
    if value is not None:
        monkeypatch.setenv("HOME", value)
    known = Path(pwd.getpwuid(os.getuid()).pw_dir)
    assert locations.state_root() == known / ".local" / "state" / "slurm-stacks"
    assert locations.cache_root() == known / ".cache" / "slurm-stacks"
    nameless(monkeypatch)
    with sentences.raises("user.no-home", varies=[f"user {os.getuid()}"]) as caught:
        locations.state_root()
    assert caught.value.exit_code == EXIT_REFUSED
    assert len(host_checks.problems()) == 1, "one thing is missing, whatever needs it"


# --- folders ---------------------------------------------------------------------------------------------


def test_all_problems_at_once_with_their_folders_and_cures(
    home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(os_errors, "free_mib", lambda _path: 7)
    somebody_else(monkeypatch)
    with pytest.raises(UserError) as caught:
        host_checks.check()
    run, state, cache = [line for line in str(caught.value).splitlines() if str(tmp_path) in line]
    assert "slurm-stacks-0: 7 MiB are free, and a running cluster needs 64 MiB. Make room there." in run
    assert f"{tmp_path}/state/slurm-stacks: permission denied; {tmp_path} belongs to" in state
    assert state.endswith("and you are user 12345. Set XDG_STATE_HOME to a folder that you can write.")
    assert cache.endswith("Set XDG_CACHE_HOME to a folder that you can write.")


def test_a_folder_that_is_mounted_noexec(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os_errors, "noexec", lambda _path: True)
    text = host_checks.run_folder()
    assert text is not None
    assert "mounted noexec" in text
    assert "as root: mount -o remount,exec /" in text


def test_a_file_where_a_folder_should_be(home: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").touch()
    assert host_checks.cache_folder() == (
        f"{tmp_path}/cache/slurm-stacks cannot be made: {tmp_path}/cache is not a folder. "
        "Set XDG_CACHE_HOME to a folder that you can write."
    )


def test_what_sudo_has_left_is_taken_back(
    home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folders.make_state_dir(Stack(tmp_path, "local"))
    owner = os_errors.user_name(somebody_else(monkeypatch))
    root = tmp_path / locations.STATE_FOLDER
    take_back = f"sudo chown -R 12345 '{root}'"
    with sentences.raises("folder.foreign", "user 12345", take_back, varies=[owner]) as caught:
        folders.make_state_dir(Stack(tmp_path, "local"))
    assert caught.value.exit_code == EXIT_REFUSED
    monkeypatch.setattr(os, "getuid", lambda: 0)
    if owner != "root":
        with sentences.raises("folder.foreign", "you are root", "without sudo", varies=[owner]):
            folders.make_state_dir(Stack(tmp_path, "local"))


def test_nobody_is_told_to_take_a_folder_of_the_systems(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    somebody_else(monkeypatch)
    for folder in ("/", "/usr", "/tmp"):
        assert "chown" not in os_errors.denied(Path(folder) / "no" / "such")


# --- the operating system's own words --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "status", "code"),
    [
        (errno.ENOSPC, 1, "system.no-space"),
        (errno.EDQUOT, 1, "system.no-space"),
        (errno.EROFS, 3, "system.unusable"),
        (errno.EIO, 1, "system.error"),
        (errno.EACCES, 3, "system.denied"),
    ],
    ids=lambda value: errno.errorcode.get(value, "") if isinstance(value, int) else "",
)
def test_an_error_is_one_sentence_with_its_path(
    home: Path, tmp_path: Path, number: int, status: int, code: str
) -> None:
    path = tmp_path / "folder" / "file"
    explained = os_errors.explain(OSError(number, os.strerror(number), str(path)))
    with sentences.raises(code, path):
        raise explained
    assert explained.exit_code == status
    assert str(os_errors.explain(OSError(number, os.strerror(number)), path)) == str(explained)


def test_a_full_disk_without_a_name_names_all_that_it_may_be(home: Path) -> None:
    text = str(os_errors.explain(OSError(errno.ENOSPC, "No space left on device")))
    for folder in (locations.run_root(), locations.state_root(), locations.cache_root()):
        assert f"{folder} (" in text


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give folders away")
@pytest.mark.parametrize("variable", ["XDG_STATE_HOME", "XDG_CACHE_HOME"])
def test_root_does_not_write_into_another_users_folders(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    theirs = tmp_path / "theirs" / "slurm-stacks"
    theirs.mkdir(parents=True)
    os.chown(theirs, 4711, 4711)
    monkeypatch.setenv(variable, str(tmp_path / "theirs"))
    (problem,) = host_checks.problems()
    assert problem == (
        f"{theirs} belongs to user 4711, and you are root. Run ./cluster without sudo, or with `sudo -H`."
    )
