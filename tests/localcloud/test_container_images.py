"""The image of container machines: made completely or not at all, by one process at a time."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
import time
from pathlib import Path

import pytest

from localcloud import images

TARGETS = """\
http://archive.example/debian/|bookworm|main|
http://archive.example/debian/|bookworm|contrib|
http://archive.example/debian/|bookworm-updates|main|/usr/share/keyrings/a.gpg
http://security.example/|bookworm-security|main|$(SIGNED_BY)
http://apt.example/|cloud-sdk-bookworm|main|
http://node.example/|nodistro|main|
http://ubuntu.example/|noble-updates|main|/usr/share/keyrings/u.gpg
http://ubuntu.example/|noble|main|/usr/share/keyrings/u.gpg
http://ubuntu.example/|noble|universe|/usr/share/keyrings/u.gpg
"""
SETTINGS = """\
Acquire "";
Acquire::http::Proxy "http://proxy.example:3128";
Acquire::IndexTargets::deb::Packages::flatMetaKey "Packages";
Acquire::Check-Valid-Until "false";
"""


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host with Debian 12 that also has sources of other suites."""
    monkeypatch.setattr(images, "_own_suite", lambda: "bookworm")
    monkeypatch.setattr(images, "_ask", lambda *words: TARGETS if words[0] == "apt-get" else SETTINGS)


@pytest.mark.usefixtures("host")
def test_the_distributions_own_sources_and_settings_are_taken() -> None:
    recipe = images.recipe()
    assert recipe.sources == (
        images.Source("http://archive.example/debian", "bookworm", ("main", "contrib")),
        images.Source(
            "http://archive.example/debian", "bookworm-updates", ("main",), "/usr/share/keyrings/a.gpg"
        ),
        images.Source("http://security.example", "bookworm-security", ("main",)),
    )
    assert recipe.settings.splitlines() == [
        'Acquire::http::Proxy "http://proxy.example:3128";', 'Acquire::Check-Valid-Until "false";'
    ]  # fmt: skip


@pytest.mark.usefixtures("host")
def test_another_release_comes_from_the_same_archive_and_is_another_image() -> None:
    own, other = images.recipe(), images.recipe("trixie")
    assert [source.suite for source in other.sources] == ["trixie", "trixie-updates", "trixie-security"]
    assert own.name == images.recipe().name
    assert own.name != other.name
    assert other.name.startswith("trixie-")


@pytest.mark.usefixtures("host")
def test_a_suite_of_another_distribution_comes_from_the_sources_that_apt_has_for_it() -> None:
    recipe = images.recipe("noble")
    assert recipe.sources == (
        images.Source("http://ubuntu.example", "noble", ("main", "universe"), "/usr/share/keyrings/u.gpg"),
        images.Source("http://ubuntu.example", "noble-updates", ("main",), "/usr/share/keyrings/u.gpg"),
    )
    assert recipe.name.startswith("noble-")


@pytest.mark.usefixtures("host")
def test_a_host_without_a_source_of_its_distribution_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "_ask", lambda *_words: "")
    with pytest.raises(images.ImageError, match=r"no source of bookworm.*sources\.list\.d"):
        images.recipe()


def test_what_fails_leaves_nothing_and_what_was_left_is_removed(tmp_path: Path) -> None:
    def fails(draft: Path) -> None:
        (draft / "half").touch()
        raise images.ImageError("no mirror")

    with pytest.raises(images.ImageError, match="no mirror"):
        images.cached(tmp_path, "an-image", fails, print)
    assert [path.name for path in tmp_path.iterdir()] == [".an-image.lock"]

    # A process that was killed at it.
    (tmp_path / ".an-image.draft").mkdir()
    (tmp_path / ".an-image.draft" / "half").touch()
    found = images.cached(tmp_path, "an-image", lambda draft: (draft / "whole").touch(), print)
    assert [path.name for path in found.iterdir()] == ["whole"]
    assert {path.name for path in tmp_path.iterdir()} == {".an-image.lock", "an-image"}
    assert images.cached(tmp_path, "an-image", fails, print) == found, "it is there"


def test_who_comes_meanwhile_waits_and_finds_it(tmp_path: Path) -> None:
    begun, go_on, said = threading.Event(), threading.Event(), threading.Event()
    makers: list[str] = []

    def make(draft: Path) -> None:
        makers.append(draft.name)
        begun.set()
        assert go_on.wait(60)

    first = threading.Thread(target=images.cached, args=(tmp_path, "i", make, lambda _text: None))
    first.start()
    assert begun.wait(60)
    second = threading.Thread(target=images.cached, args=(tmp_path, "i", make, lambda _text: said.set()))
    second.start()
    assert said.wait(60), "it says that it waits"
    go_on.set()
    first.join()
    second.join()
    assert len(makers) == 1


def test_no_room_is_said_before_minutes_of_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        free = 50 << 20

    monkeypatch.setattr(shutil, "disk_usage", lambda _path: Full())
    with pytest.raises(images.ImageError, match="50 MiB are free there: make room"):
        images.cached(tmp_path, "an-image", lambda _draft: None, print)


def layer(folder: Path, name: str, unused: float) -> Path:
    """Make a layer that was made and used that many seconds ago."""
    made = folder / name
    (made / "root" / "etc").mkdir(parents=True)
    (folder / f".{name}.lock").touch()
    moment = time.time() - unused
    for path in (made, folder / f".{name}.lock"):
        os.utime(path, (moment, moment))
    return made


def there(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if not path.name.endswith(".lock")}


def test_layers_that_nobody_has_used_for_a_week_go(tmp_path: Path) -> None:
    week = images.KEPT_SECONDS
    folder = tmp_path / "images"
    for name in ("old-1", "old-1-a", "mine-1", "mine-1-a", "used-1", "used-1-a"):
        layer(folder, name, week + 60)
    layer(folder, "new-1", week + 60)
    layer(folder, "new-1-a", week - 600)
    # A use counts as much as the making.
    layer(folder, "again-1", week + 60)
    images.cached(folder, "again-1", lambda _draft: None, print)
    # One folder was left by a process that was killed, and one is just being made.
    (folder / ".dead-1.draft").mkdir()
    (folder / ".making-1.draft").mkdir()
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"layers": [f"{folder}/used-1-a/disk", f"{folder}/used-1/root"]}))
    with subprocess.Popen(
        ["flock", str(folder / ".making-1.lock"), "sh", "-c", "echo; exec cat"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as maker:  # fmt: skip
        assert maker.stdout
        maker.stdout.readline()
        gone = images.prune(folder, ("mine-1", "mine-1-a"), [plan, tmp_path / "no such plan"])
        maker.communicate()
    assert sorted(gone) == ["old-1", "old-1-a"]
    assert there(folder) == {
        *("mine-1", "mine-1-a", "used-1", "used-1-a", "new-1", "new-1-a", "again-1", ".making-1.draft")
    }
    assert images.prune(folder, (), [plan]) == ["mine-1-a", "mine-1"]
    assert images.prune(tmp_path / "none", (), []) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
def test_a_layer_that_a_machine_runs_on_stays_whoever_has_started_it(tmp_path: Path) -> None:
    """The machine's mounts are in its own namespace, and the kernel lists them."""
    folder = tmp_path / "the images"
    for name in ("run-1", "run-1-a", "old-1"):
        layer(folder, name, images.KEPT_SECONDS + 60)
    for name in ("upper", "work", "root"):
        (tmp_path / name).mkdir()
    below = f"lowerdir={folder}/run-1-a/root:{folder}/run-1/root"
    above = f"upperdir={tmp_path}/upper,workdir={tmp_path}/work"
    script = 'mount -t overlay -o "$0" overlay "$1" && echo mounted && exec cat'
    with subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", script, f"{below},{above}", str(tmp_path / "root")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as machine:  # fmt: skip
        assert machine.stdout
        assert machine.stderr
        if machine.stdout.readline() != "mounted\n":
            pytest.skip(f"this root may not mount: {machine.stderr.read()}")
        assert images.prune(folder, (), []) == ["old-1"]
        machine.communicate()
    assert sorted(images.prune(folder, (), [])) == ["run-1", "run-1-a"]


def test_the_size_is_what_the_files_take_on_the_disk(tmp_path: Path) -> None:
    assert images.size_mib(tmp_path / "none") == 0
    (tmp_path / "in it").mkdir()
    (tmp_path / "in it" / "file").write_bytes(os.urandom(3 << 20))
    (tmp_path / "in it" / "the same").hardlink_to(tmp_path / "in it" / "file")
    (tmp_path / "goes nowhere").symlink_to("nothing")
    with (tmp_path / "has holes").open("wb") as file:
        file.truncate(1 << 30)
    assert images.size_mib(tmp_path) == 3
