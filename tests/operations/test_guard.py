"""The guard of a component's cluster: what it says of jobs, and when it lets the engine go on."""

from __future__ import annotations

import json
from typing import Any

import pytest

from infra.errors import EXIT_REFUSED, UserError
from operations import guard
from tests.support import sentences


def answer(*jobs: dict[str, Any]) -> str:
    return json.dumps({"jobs": [{"partition": "cpu", **job} for job in jobs], "nodes": []})


def job(number: int, name: str = "train", state: str = "RUNNING") -> dict[str, Any]:
    return {"slurm_id": str(number), "name": name, "user": "ann", "state": state}


@pytest.fixture(autouse=True)
def nothing_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(guard.VARIABLE, raising=False)


def test_without_jobs_the_engine_goes_on() -> None:
    guard.check(answer)


def test_jobs_that_run_or_wait_are_named() -> None:
    found = answer(job(3), job(4, "\x1b[2J\nx", "PENDING"))
    with sentences.raises("guard.ends-jobs", "job 3 train (ann, RUNNING)", guard.VARIABLE) as caught:
        guard.check(lambda: found)
    assert caught.value.exit_code == EXIT_REFUSED
    assert all(line.isprintable() for line in str(caught.value).splitlines())
    many = answer(*map(job, range(guard.MOST_LISTED + 2)))
    with sentences.raises("guard.ends-jobs", "22 jobs", "and 2 more"):
        guard.check(lambda: many)


@pytest.mark.parametrize("text", ["", "[]", "7", '{"jobs": 7}', '{"jobs": [{"name": "x"}]}', "{}"])
def test_an_answer_that_is_no_status_is_not_taken_for_no_jobs(text: str) -> None:
    with sentences.raises("guard.jobs-unknown", "no status"):
        guard.check(lambda: text)


def test_a_cluster_that_does_not_answer_may_have_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    def silent() -> str:
        raise UserError("cannot reach ubuntu@198.51.100.7 port 22: timed out", code="ssh.unreachable")

    with sentences.raises("guard.jobs-unknown", "198.51.100.7", guard.VARIABLE) as caught:
        guard.check(silent)
    assert caught.value.exit_code == EXIT_REFUSED
    monkeypatch.setenv(guard.VARIABLE, "0")
    with sentences.raises("guard.jobs-unknown"):
        guard.check(silent)
    monkeypatch.setenv(guard.VARIABLE, "1")
    guard.check(silent)
