"""`./cluster cp` and `ssh-config` against a real sshd, with the real scp, ssh and sftp of OpenSSH."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.commands import cp
from cli.providers import provider
from cli.providers.local.provider import LocalProvider
from infra.errors import EXIT_USAGE
from infra.program.stack import Stack
from infra.ssh import Target
from operations.access import Inside, StackUp
from tests.support import sentences
from tests.support.fake_cloud import FakeProvider
from tests.support.login_machine import LoginMachine
from tests.support.private_mounts import PrivateMounts
from tests.support.sshd import make_key, public


def far_stack(project: Path) -> StackUp:
    return StackUp(Stack(project, "far"), "aws")


class Far(FakeProvider):
    """A provider with the test's login machine."""

    def __init__(self, target: Target) -> None:
        super().__init__()
        self.target = target

    def ssh(self, *_: Any) -> Target:
        return self.target


@pytest.fixture
def far(machine: LoginMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Far:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "a state 100%"))
    made = Far(Target(**{**machine.endpoint, "host_keys": (machine.sshd.host_key,)}, connect_seconds=60))
    monkeypatch.setattr(provider, "load", lambda *_: made)
    return made


@pytest.fixture
def remote(tmp_path: Path) -> Path:
    """A folder of the login machine, which is this machine."""
    made = tmp_path / "there, on 'it'"
    made.mkdir()
    return made


def copy(tmp_path: Path, *paths: str) -> None:
    cp.copy(far_stack(tmp_path), paths[:-1], paths[-1])


def test_files_and_folders_go_there_and_come_back(far: Far, remote: Path, tmp_path: Path) -> None:
    here = tmp_path / "some data"
    (here / "deep").mkdir(parents=True)
    (here / "deep" / "a: file").write_text("content\n")
    copy(tmp_path, str(here), f":{remote}")
    assert (remote / "some data" / "deep" / "a: file").read_text() == "content\n"
    copy(tmp_path, str(here / "deep" / "a: file"), f"login:{remote}/renamed")
    (remote / "other").write_text("more\n")
    back = tmp_path / "back"
    back.mkdir()
    copy(tmp_path, f":{remote}/renamed", f":{remote}/other", f":{remote}/some data", str(back))
    assert sorted(path.name for path in back.iterdir()) == ["other", "renamed", "some data"]
    assert (back / "some data" / "deep" / "a: file").read_text() == "content\n"


def test_a_file_that_is_not_there_is_named(far: Far, remote: Path, tmp_path: Path) -> None:
    with sentences.raises("cp.no-local-file"):
        copy(tmp_path, str(tmp_path / "nowhere"), f":{remote}")
    with sentences.raises("cp.failed", "nothing", compared=False) as caught:
        copy(tmp_path, f":{remote}/nothing", str(tmp_path))
    assert caught.value.exit_code == 1
    with sentences.raises("cp.no-local-folder", "/not-made"):
        copy(tmp_path, f":{remote}/x", str(tmp_path / "not-made" / "x"))


def test_another_host_key_sends_nothing(far: Far, remote: Path, tmp_path: Path) -> None:
    other = make_key(tmp_path / "other")
    far.target = Target(**{**_fields(far.target), "host_keys": (public(other),)})
    (tmp_path / "file").write_text("secret")
    with sentences.raises("ssh.host-key"):
        copy(tmp_path, str(tmp_path / "file"), f":{remote}/file")
    assert list(remote.iterdir()) == []


def test_a_machine_that_cannot_be_reached_is_told_from_a_file_that_is_not_there(
    far: Far, machine: LoginMachine, tmp_path: Path
) -> None:
    machine.sshd.stop()
    with sentences.raises("ssh.unreachable", "127.0.0.1", compared=False):
        copy(tmp_path, ":x", str(tmp_path))


@pytest.mark.parametrize(
    ("paths", "code"),
    [
        (("a", "b"), "cp.directions"),
        ((":a", "b", "c"), "cp.directions"),
        ((":a", ":b"), "cp.both-remote"),
        (("node-1:a", "b"), "cp.machine"),
        (("a", "b", ":c", ":d"), "cp.both-remote"),
    ],
)
def test_impossible_copies_are_refused_before_anything_is_done(
    paths: tuple[str, ...], code: str, tmp_path: Path
) -> None:
    with sentences.raises(code) as caught:
        copy(tmp_path, *paths)
    assert caught.value.exit_code == EXIT_USAGE


def test_the_stanza_works_with_opensshs_own_programs(far: Far, remote: Path, tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text(cp.stanza(far_stack(tmp_path)))
    assert config.read_text().startswith("Host slurm-stacks-far\n")
    alias = "slurm-stacks-far"

    def works(*words: str, text: str = "") -> str:
        return subprocess.run(
            words, input=text, capture_output=True, text=True, check=True, timeout=300
        ).stdout

    assert works("ssh", "-F", str(config), alias, "echo in") == "in\n"
    (tmp_path / "file").write_text("content\n")
    works("scp", "-F", str(config), str(tmp_path / "file"), f"{alias}:{remote}/copied")
    assert (remote / "copied").read_text() == "content\n"
    works("sftp", "-F", str(config), "-b", "-", alias, text=f'rename "{remote}/copied" "{remote}/moved"\n')
    assert (remote / "moved").exists()

    far.target = Target(**{**_fields(far.target), "host_keys": (public(make_key(tmp_path / "other")),)})
    cp.stanza(far_stack(tmp_path))
    words = ["ssh", "-F", str(config), alias, "true"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 255, "the machine is another than the one that was published"


def _fields(target: Target) -> dict[str, Any]:
    return {name: getattr(target, name) for name in Target.__slots__}


# --- where the login machine's files lie here ------------------------------------------------------------


@pytest.fixture
def near(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The shared folder of a stack whose machines are processes."""
    shared = tmp_path / "shared"
    shared.mkdir()
    files: Callable[..., Callable[[str], Path]] = lambda *_: lambda path: shared / path  # noqa: E731
    monkeypatch.setattr(LocalProvider, "files_here", files)
    monkeypatch.setattr(provider, "load", lambda *_: LocalProvider())
    return shared


def test_machines_of_this_host_get_plain_copies(
    near: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "data" / "deep").mkdir(parents=True)
    (tmp_path / "data" / "deep" / "file").write_text("content\n")
    copy(tmp_path, str(tmp_path / "data"), ":")
    assert (near / "data" / "deep" / "file").read_text() == "content\n"
    assert capsys.readouterr().err == f"copied to {near}\n", "which is no job's home folder"
    copy(tmp_path, str(tmp_path / "data" / "deep" / "file"), ":~/a b")
    copy(tmp_path, str(tmp_path / "data" / "deep" / "file"), f":{near}/c d")
    assert capsys.readouterr().err == f"copied to {near}/a b\n", "an absolute path needs no telling"
    back = tmp_path / "back"
    back.mkdir()
    copy(tmp_path, ":? ?", str(back))
    assert sorted(path.name for path in back.iterdir()) == ["a b", "c d"]
    with sentences.raises("cp.no-remote-file"):
        copy(tmp_path, ":no*", str(back))
    with sentences.raises("cp.no-local-folder"):
        copy(tmp_path, ":a b", ":c d", str(tmp_path / "nowhere"))
    with sentences.raises("cp.no-remote-folder", "no/where/"):
        copy(tmp_path, str(tmp_path / "data"), ":no/where/")


# --- a login machine on this host with a root folder of its own ------------------------------------------


@pytest.fixture
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, Path]]:
    """A machine whose folder `place` is another than this host's, and that folder of both."""
    host, machine = tmp_path / "place", tmp_path / "machine's place"
    for folder in (host / "etc", machine / "etc", machine / "home"):
        folder.mkdir(parents=True)
    mounts = PrivateMounts()
    mounts.run("mount", "--bind", str(machine), str(host))
    words = mounts("env", "-i", "-C", str(host / "home"), "PATH=/usr/bin:/bin", "LC_ALL=C.UTF-8")
    files: Callable[..., Inside] = lambda *_: Inside(tuple(words))  # noqa: E731
    monkeypatch.setattr(LocalProvider, "files_here", files)
    monkeypatch.setattr(provider, "load", lambda *_: LocalProvider())
    yield host, machine
    mounts.close()


def test_a_machines_own_root_gets_copies_with_the_rules_of_scp(
    inside: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = inside[1] / "home"
    data = tmp_path / "data"
    (data / "deep").mkdir(parents=True)
    (data / "deep" / "file").write_text("content\n")
    (data / "-n").write_text("a strange name\n")
    copy(tmp_path, str(data), ":")
    assert (home / "data" / "deep" / "file").read_text() == "content\n"
    copy(tmp_path, str(data / "deep" / "file"), ":~/a b")
    copy(tmp_path, str(data / "deep" / "file"), str(data / "-n"), ":data/deep")
    monkeypatch.chdir(data)
    copy(tmp_path, ".", ":contents")
    assert (home / "contents" / "-n").read_text() == "a strange name\n"
    back = tmp_path / "back"
    back.mkdir()
    copy(tmp_path, ":? ?", ":data/deep/*", str(back))
    assert sorted(path.name for path in back.iterdir()) == ["-n", "a b", "file"]
    copy(tmp_path, ":data", str(tmp_path / "renamed"))
    assert (tmp_path / "renamed" / "deep" / "file").read_text() == "content\n"
    (home / "[x]").write_text("no pattern")
    copy(tmp_path, ":[x]", ".")
    assert (data / "[x]").read_text() == "no pattern"
    with sentences.raises("cp.no-remote-file"):
        copy(tmp_path, ":no*", str(back))
    with sentences.raises("cp.no-local-folder"):
        copy(tmp_path, ":a b", ":data", str(tmp_path / "nowhere"))
    with sentences.raises("cp.no-remote-folder", "no/where/"):
        copy(tmp_path, str(data), ":no/where/")
    with sentences.raises("cp.failed", "/back/file", compared=False):
        copy(tmp_path, ":data", str(back / "file"))


def test_a_machines_links_lead_to_its_own_files_and_never_to_this_hosts(
    inside: tuple[Path, Path], tmp_path: Path
) -> None:
    host, machine = inside
    home = machine / "home"
    (host / "etc" / "secret").write_text("this host's")
    (machine / "etc" / "secret").write_text("the machine's")
    (home / "there").symlink_to(host / "etc")
    (home / "one").symlink_to(host / "etc" / "secret")
    mine, back = tmp_path / "mine", tmp_path / "back"
    mine.write_text("new")
    back.mkdir()
    copy(tmp_path, str(mine), ":there")
    copy(tmp_path, str(mine), ":there/other")
    copy(tmp_path, str(mine), ":one")
    assert sorted(path.name for path in (host / "etc").iterdir()) == ["secret"]
    assert (machine / "etc" / "mine").read_text() == (machine / "etc" / "other").read_text() == "new"
    assert (machine / "etc" / "secret").read_text() == "the machine's", "a link is replaced, not followed"
    assert (home / "one").read_text() == "new"
    copy(tmp_path, ":there/secret", str(back))
    assert (back / "secret").read_text() == "the machine's"
    copy(tmp_path, ":there/s*", str(tmp_path / "matched"))
    assert (tmp_path / "matched").read_text() == "the machine's"


def test_a_link_that_came_from_the_machine_is_not_written_through(
    inside: tuple[Path, Path], tmp_path: Path
) -> None:
    """A user exchanges what is copied between two copies."""
    home, victim, back = inside[1] / "home", tmp_path / "victim", tmp_path / "back"
    (victim / "folder").mkdir(parents=True)
    (victim / "file").write_text("mine")
    (home / "data").mkdir()
    (home / "data" / "file").symlink_to(victim / "file")
    (home / "data" / "folder").symlink_to(victim / "folder")
    back.mkdir()
    copy(tmp_path, ":data", str(back))
    for name in ("file", "folder"):
        (home / "data" / name).unlink()
    (home / "data" / "file").write_text("theirs")
    (home / "data" / "folder").mkdir()
    (home / "data" / "folder" / "new").touch()
    with sentences.raises("cp.failed", "cannot overwrite non-directory", compared=False):
        copy(tmp_path, ":data", str(back))
    assert (victim / "file").read_text() == "mine"
    assert list((victim / "folder").iterdir()) == []


def test_a_folder_here_may_be_a_link_of_this_host(inside: tuple[Path, Path], tmp_path: Path) -> None:
    (inside[1] / "home" / "file").write_text("content\n")
    real = tmp_path / "real"
    real.mkdir()
    (tmp_path / "way").symlink_to(real)
    copy(tmp_path, ":file", str(tmp_path / "way"))
    assert (real / "file").read_text() == "content\n"
