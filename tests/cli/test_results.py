"""Kept results: each once, complete and in order; invalid files are named."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from cli import results
from infra.program import locations
from tests.support.sweep_cluster import record


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return locations.state_root()


def test_a_result_is_kept_once_however_often_it_is_found(state: Path) -> None:
    path = results.keep("test", record(2, 7))
    assert path.parent == state / "results" / "test" == results.folder("test")
    assert "-job-7-" in path.name
    assert json.loads(path.read_text()) == record(2, 7)
    assert results.keep("test", record(2, 7)) == path
    assert [p.name for p in path.parent.iterdir()] == [path.name], "no draft is left"


def test_jobs_of_the_same_number_on_other_clusters_are_other_results() -> None:
    one = results.keep("test", record(2, 7))
    assert results.keep("test", record(2, 7, seconds_train=3.0)) != one
    assert results.keep("other", record(2, 7)).parent.name == "other"
    assert len(results.load("test")[0]) == 2


def test_results_are_read_oldest_first_and_what_is_none_is_named(state: Path) -> None:
    assert results.load("test") == ([], [])
    for when, job in (("20261122T000000Z", 2), ("20261121T235959Z", 1)):
        path = results.keep("test", record(1, job))
        path.rename(path.with_name(f"{when}-job-{job}-0.json"))
    (results.folder("test") / "broken.json").write_text("{")
    (results.folder("test") / "other.json").write_text(json.dumps({**record(1, 3), "loss": None}))
    (results.folder("test") / "notes.txt").write_text("mine")
    kept, wrong = results.load("test")
    assert [(one.record["job_id"], one.kept_at) for one in kept] == [
        ("1", "20261121T235959Z"),
        ("2", "20261122T000000Z"),
    ]
    broken, other = wrong
    assert broken.startswith(f"{results.folder('test')}/broken.json: ")
    assert other.startswith(f"{results.folder('test')}/other.json: result.loss: None is no")


def checkout(path: Path) -> Path:
    path.mkdir(parents=True)
    (path / "Pulumi.yaml").touch()
    return path


def test_a_result_says_from_which_checkout_it_was_kept(tmp_path: Path) -> None:
    mine, other = checkout(tmp_path / "a" / "stacks"), checkout(tmp_path / "b" / "stacks")
    paths = {results.keep("test", record(n, n), where): where for n, where in ((1, mine), (2, other))}
    old = results.keep("test", record(3, 3))
    kept, wrong = results.load("test", mine)
    assert wrong == []
    assert {one.path: one.checkout for one in kept} == {**paths, old: None}
    assert results.keep("test", record(1, 1), mine) in paths, "kept once"
    assert results.keep("test", record(3, 3), mine) == old, "nor again what an older version has kept"
    names = results.short_names(one.checkout for one in kept)
    assert names == {None: None, mine: "a/stacks", other: "b/stacks"}
    assert results.short_names([mine]) == {None: None, mine: "stacks"}


def test_a_checkout_that_was_renamed_finds_its_own_results(tmp_path: Path) -> None:
    before = checkout(tmp_path / "before")
    results.keep("test", record(1, 1), before)
    after = before.rename(tmp_path / "after")
    assert [one.checkout for one in results.load("test", after)[0]] == [after]
    stranger = checkout(tmp_path / "stranger")
    assert [one.checkout for one in results.load("test", stranger)[0]] == [before]


def test_a_note_that_is_lost_is_an_unknown_checkout(tmp_path: Path, state: Path) -> None:
    results.keep("test", record(1, 1), checkout(tmp_path / "here"))
    (note,) = (state / "checkouts").iterdir()
    note.write_text("{")
    assert [one.checkout for one in results.load("test")[0]] == [None]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_cannot_be_read_is_named() -> None:
    path = results.keep("test", record(1, 1))
    path.chmod(0)
    assert results.load("test") == ([], [f"{path}: [Errno 13] Permission denied: '{path}'"])
