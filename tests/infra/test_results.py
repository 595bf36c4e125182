"""Kept results: once each, whole, in order, and what is none is named."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from infra import results
from infra.runner import locations
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


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_cannot_be_read_is_named() -> None:
    path = results.keep("test", record(1, 1))
    path.chmod(0)
    assert results.load("test") == ([], [f"{path}: [Errno 13] Permission denied: '{path}'"])
