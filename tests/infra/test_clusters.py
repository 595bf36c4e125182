"""The record of a user's clusters, and what becomes of it when a checkout moves, is copied or is deleted."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from infra.errors import EXIT_REFUSED, UserError
from infra.program import clusters, folders, locations, owner
from infra.program.stack import Stack
from tests.support import sentences


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(locations, "run_root", lambda: tmp_path / "run")


@pytest.fixture
def stack(tmp_path: Path) -> Stack:
    return checkout(tmp_path / "one")


def checkout(path: Path) -> Stack:
    path.mkdir()
    return Stack(path, "test")


def claim(stack: Stack) -> Path:
    owner.claim(stack, owner.EMBEDDED)
    return locations.run_dir(stack)


def test_a_cluster_is_recorded_from_its_claim_to_its_release(stack: Stack) -> None:
    assert clusters.recorded() == []
    run = claim(stack)
    (record,) = clusters.recorded()
    assert (record.id, record.run_dir, record.home, record.provider) == (run.name, run, stack, "local")
    assert not record.gone
    claim(stack)
    assert clusters.recorded() == [record], "an `up` of a cluster that is up changes nothing"
    owner.release(stack)
    assert clusters.recorded() == []
    assert not (stack.project / locations.STATE_FOLDER).exists()
    assert not locations.state_root().exists() or not list(locations.state_root().iterdir())


def test_two_checkouts_and_two_stacks_have_clusters_of_their_own(tmp_path: Path, stack: Stack) -> None:
    others = [checkout(tmp_path / "two"), Stack(stack.project, "other")]
    assert len({claim(each) for each in (stack, *others)}) == 3
    (tmp_path / "link").symlink_to(stack.project)
    assert claim(Stack(tmp_path / "link", "test")) == locations.run_dir(stack)
    assert len(clusters.recorded()) == 3


@pytest.mark.parametrize("to", ["beside", "over a link"])
def test_a_checkout_that_moves_takes_its_cluster_along(tmp_path: Path, stack: Stack, to: str) -> None:
    run = claim(stack)
    moved = Stack(stack.project.rename(tmp_path / "moved"), "test")
    if to == "over a link":  # the user's old path goes on to work
        stack.project.symlink_to(moved.project)
    assert clusters.recorded()[0].gone == (to == "beside"), "nobody has used it there yet"
    assert folders.check_run_dir(moved) == run
    assert owner.read(moved) == owner.EMBEDDED
    (record,) = clusters.recorded()
    assert not record.gone
    assert record.home == (moved if to == "beside" else stack)
    owner.release(moved)
    assert clusters.recorded() == []


def test_a_new_checkout_at_the_old_path_has_a_cluster_of_its_own(tmp_path: Path, stack: Stack) -> None:
    run = claim(stack)
    moved = Stack(stack.project.rename(tmp_path / "moved"), "test")
    folders.check_run_dir(moved)
    stack.project.mkdir()
    assert claim(stack) != run
    assert locations.run_dir(moved) == run
    assert {record.home for record in clusters.recorded()} == {stack, moved}


def test_a_copy_is_refused_until_it_has_no_state_of_the_original(tmp_path: Path, stack: Stack) -> None:
    run = claim(stack)
    copy = Stack(tmp_path / "it's a copy", "test")
    shutil.copytree(stack.project, copy.project)
    for use in (folders.check_run_dir, folders.make_state_dir, claim):
        with pytest.raises(UserError) as caught:
            use(copy)
        assert caught.value.exit_code == EXIT_REFUSED
        assert str(caught.value).startswith(
            f"{copy.project} is a copy of {stack.project}, and has the state of"
        )
    command = str(caught.value).partition("(")[2].partition(")")[0]
    assert os.system(command) == 0, command
    assert claim(copy) != run
    assert claim(stack) == run


def test_a_copy_goes_on_when_the_original_is_gone_or_down(tmp_path: Path, stack: Stack) -> None:
    run = claim(stack)
    copy = Stack(tmp_path / "copy", "test")
    shutil.copytree(stack.project, copy.project)
    owner.release(stack)
    assert folders.check_run_dir(copy) == run
    claim(copy)
    assert claim(stack) != run, "the copy has the id by now"


def test_a_state_that_was_removed_is_named_with_the_way_out(stack: Stack) -> None:
    run = claim(stack)
    shutil.rmtree(stack.project / locations.STATE_FOLDER)  # git clean -xdf
    (record,) = clusters.recorded()
    assert record.gone
    with sentences.raises("state.missing", varies=[f"`./cluster down --cluster {run.name}`"]) as caught:
        claim(stack)
    assert caught.value.exit_code == EXIT_REFUSED
    assert locations.recorded_id(stack) is None
    shutil.rmtree(run)
    assert claim(stack) == run, "after a reboot nothing of it runs"


def test_a_state_in_the_users_own_backend_is_not_lost_with_the_folder(stack: Stack) -> None:
    backend = "https://api.example.com"
    owner.claim(stack, backend)
    run = locations.run_dir(stack)
    shutil.rmtree(stack.project / locations.STATE_FOLDER)
    owner.claim(stack, backend)
    assert locations.run_dir(stack) == run


def test_the_backend_in_the_checkout_moves_along(tmp_path: Path, stack: Stack) -> None:
    owner.claim(stack, owner.fallback_url(stack))
    moved = Stack(stack.project.rename(tmp_path / "moved"), "test")
    owner.check(moved, owner.fallback_url(moved))
    with sentences.raises("runner.other-owner", f"file://{moved.project}"):
        owner.check(moved, owner.EMBEDDED)


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"stack": 1}', '{"stack": "t", "strange": 1}', "[" * 99_999]
)
def test_a_damaged_record_is_left_out_and_written_anew(stack: Stack, text: str) -> None:
    claim(stack)
    (file,) = (locations.state_root() / "clusters").iterdir()
    file.write_text(text)
    assert clusters.recorded() == []
    claim(stack)
    assert [record.home for record in clusters.recorded()] == [stack]


def test_a_record_of_another_type_is_left_out(stack: Stack) -> None:
    claim(stack)
    (file,) = (locations.state_root() / "clusters").iterdir()
    content = json.loads(file.read_text())
    for key, value in {"since": "now", "places": {}, "checkout": 7}.items():
        file.write_text(json.dumps({**content, key: value}))
        assert clusters.recorded() == []


@pytest.mark.parametrize("text", ["", "../../../x", "0123456789ab", "012345678G", "é"])
def test_an_id_that_is_none_names_no_folder(stack: Stack, text: str) -> None:
    claim(stack)
    (locations.state_dir(stack) / locations.ID).write_text(text)
    assert locations.recorded_id(stack) is None


def test_the_record_is_its_owners_alone(stack: Stack) -> None:
    before = os.umask(0)
    try:
        claim(stack)
    finally:
        os.umask(before)
    (file,) = (locations.state_root() / "clusters").iterdir()
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    state = locations.state_dir(stack)
    assert [path.stat().st_mode & 0o777 for path in (state.parent, state, state / locations.ID)] == [
        0o700,
        0o700,
        0o600,
    ]


def test_the_state_of_another_user_is_refused(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    claim(stack)
    mine = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: mine + 1)
    with sentences.raises("folder.foreign", locations.STATE_FOLDER) as caught:
        folders.make_state_dir(stack)
    assert caught.value.exit_code == EXIT_REFUSED


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_state_that_cannot_be_read_is_one_message(stack: Stack) -> None:
    claim(stack)
    folder = stack.project / locations.STATE_FOLDER
    folder.chmod(0)
    try:
        with pytest.raises(UserError, match="permission denied"):
            folders.check_run_dir(stack)
        assert not clusters.recorded()[0].gone, "that is not known"
    finally:
        folder.chmod(0o700)


def test_a_checkout_where_no_state_can_be_made(stack: Stack) -> None:
    (stack.project / locations.STATE_FOLDER).write_text("")
    with sentences.raises("system.unusable") as caught:
        folders.make_state_dir(stack)
    assert caught.value.exit_code == EXIT_REFUSED


def test_git_ignores_the_state() -> None:
    root = Path(__file__).resolve().parents[2]
    assert f"{locations.STATE_FOLDER}/" in (root / ".gitignore").read_text().splitlines()
