"""The image that machines boot from: made whole or not at all, by one process at a time."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest

from infra.local.cloud import images

TARGETS = """\
http://archive.example/debian/|bookworm|main|
http://archive.example/debian/|bookworm|contrib|
http://archive.example/debian/|bookworm-updates|main|/usr/share/keyrings/a.gpg
http://security.example/|bookworm-security|main|$(SIGNED_BY)
http://apt.example/|cloud-sdk-bookworm|main|
http://node.example/|nodistro|main|
"""
SETTINGS = """\
Acquire "";
Acquire::http::Proxy "http://proxy.example:3128";
Acquire::IndexTargets::deb::Packages::flatMetaKey "Packages";
Acquire::Check-Valid-Until "false";
"""


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host with Debian 12, and sources of others beside it."""
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
def test_a_host_without_a_source_of_its_distribution_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "_ask", lambda *_words: "")
    with pytest.raises(images.ImageError, match=r"no source of bookworm.*sources\.list\.d"):
        images.recipe()


def test_what_fails_leaves_nothing_and_what_was_left_is_removed(tmp_path: Path) -> None:
    def fails(draft: Path) -> None:
        (draft / "half").touch()
        raise images.ImageError("no mirror")

    with pytest.raises(images.ImageError, match="no mirror"):
        images.made(tmp_path, "an-image", fails, print)
    assert [path.name for path in tmp_path.iterdir()] == [".an-image.lock"]

    # A process that was killed at it.
    (tmp_path / ".an-image.draft").mkdir()
    (tmp_path / ".an-image.draft" / "half").touch()
    found = images.made(tmp_path, "an-image", lambda draft: (draft / "whole").touch(), print)
    assert [path.name for path in found.iterdir()] == ["whole"]
    assert {path.name for path in tmp_path.iterdir()} == {".an-image.lock", "an-image"}
    assert images.made(tmp_path, "an-image", fails, print) == found, "it is there"


def test_who_comes_meanwhile_waits_and_finds_it(tmp_path: Path) -> None:
    begun, go_on, said = threading.Event(), threading.Event(), threading.Event()
    makers: list[str] = []

    def make(draft: Path) -> None:
        makers.append(draft.name)
        begun.set()
        assert go_on.wait(60)

    first = threading.Thread(target=images.made, args=(tmp_path, "i", make, lambda _text: None))
    first.start()
    assert begun.wait(60)
    second = threading.Thread(target=images.made, args=(tmp_path, "i", make, lambda _text: said.set()))
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
        images.made(tmp_path, "an-image", lambda _draft: None, print)
