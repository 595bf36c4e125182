"""Tests of a series of runs: the chain of their jobs, repeated requests, and cancelling."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from node import command_line
from node.benchmark import Sweep
from node.slurm.control import SlurmDown
from node.system import foreign, subprocesses
from node.system.codec import to_json
from node.system.subprocesses import Ran
from tests.support.doubles import FakeControl, job, settings

ME = foreign.name(os.geteuid())
FOLDERS = [f"0123/abc-s-{number}" for number in (1, 2, 3)]


class Sbatch:
    """A fake sbatch that queues jobs. `refuse` has error messages for folders that end with a key."""

    def __init__(self, control: FakeControl) -> None:
        self.control = control
        self.refuse: dict[str, str] = {}
        self.waits: dict[int, list[int]] = {}

    def __call__(self, command: list[str], env: dict[str, str], **options: Any) -> Ran:
        for end, words in self.refuse.items():
            if str(options["folder"]).endswith(end):
                return Ran(1, "", f"sbatch: error: {words}\n")
        given = dict(item.lstrip("-").split("=", 1) for item in command if "=" in item)
        number = max(self.control.queue, default=0) + 1
        after = given.get("dependency", "").removeprefix("afterany:")
        self.waits[number] = [int(n) for n in after.split(":") if n]
        self.control.queue[number] = job(number, "PENDING", comment=given["comment"], user=ME)
        return Ran(0, f"{number}\n", "")


@pytest.fixture
def control() -> FakeControl:
    return FakeControl()


@pytest.fixture
def sbatch(control: FakeControl, monkeypatch: pytest.MonkeyPatch) -> Sbatch:
    made = Sbatch(control)
    monkeypatch.setattr(subprocesses, "run", made)
    return made


@pytest.fixture
def sweep(tmp_path: Path, control: FakeControl) -> Sweep:
    return Sweep(settings(tmp_path), control)


def wish(tmp_path: Path, *folders: str, after: int | None = None) -> dict[str, Any]:
    runs = [{"folder": folder, "script": f"script of {folder}"} for folder in folders or FOLDERS]
    return {"needs": [str(tmp_path)], "after": after, "runs": runs}


def test_each_job_waits_for_the_one_before_and_the_first_for_benchmarks_under_way(
    tmp_path: Path, sweep: Sweep, sbatch: Sbatch, control: FakeControl
) -> None:
    control.queue = {
        3: job(3, comment="slurm-stacks:another/run"),
        4: job(4, "COMPLETED", comment="slurm-stacks:an/ended-one"),
        5: job(5, comment="somebody's own"),
        6: job(6),
    }
    assert sweep.submit(wish(tmp_path)) == {
        "missing": [],
        "runs": [{"job": number, "error": None} for number in (7, 8, 9)],
    }
    assert sbatch.waits == {7: [3], 8: [7], 9: [8]}
    assert (tmp_path / "shared" / "bench" / FOLDERS[1] / "run_keras").read_text() == f"script of {FOLDERS[1]}"
    sweep.submit(wish(tmp_path, "0123/abc-s-4", after=9))
    assert sbatch.waits[10] == [9], "behind the one that was named, and no other"


def test_the_same_wish_again_submits_nothing_whatever_became_of_the_jobs(
    tmp_path: Path, sweep: Sweep, sbatch: Sbatch, control: FakeControl
) -> None:
    first = sweep.submit(wish(tmp_path, *FOLDERS[:2]))
    control.queue = {
        2: job(2, "FAILED", comment=f"slurm-stacks:{FOLDERS[1]}", user=ME)
    }  # Slurm has forgotten job 1
    again = sweep.submit(wish(tmp_path))
    assert again["runs"] == [*first["runs"], {"job": 3, "error": None}]
    assert sbatch.waits == {1: [], 2: [1], 3: [2]}


def test_a_refused_run_is_said_and_the_others_are_submitted(
    tmp_path: Path, sweep: Sweep, sbatch: Sbatch
) -> None:
    sbatch.refuse = {"-2": "Requested node configuration is not available"}
    one, two, three = sweep.submit(wish(tmp_path))["runs"]
    assert (one["job"], two["job"], three["job"]) == (1, None, 2)
    assert two["error"] == "sbatch: error: Requested node configuration is not available"
    assert sbatch.waits == {1: [], 2: [1]}


def test_a_controller_that_falls_silent_stops_the_submit_and_the_next_goes_on(
    tmp_path: Path, sweep: Sweep, sbatch: Sbatch
) -> None:
    sbatch.refuse = {"-2": "Unable to contact slurm controller (connect failure)"}
    with pytest.raises(SlurmDown):
        sweep.submit(wish(tmp_path))
    sbatch.refuse = {}
    assert [run["job"] for run in sweep.submit(wish(tmp_path))["runs"]] == [1, 2, 3]
    assert sbatch.waits == {1: [], 2: [1], 3: [2]}


def test_nothing_is_submitted_where_something_is_missing(
    tmp_path: Path, sweep: Sweep, sbatch: Sbatch
) -> None:
    asked = wish(tmp_path)
    asked["needs"].append(str(tmp_path / "no" / "python"))
    assert sweep.submit(asked) == {"missing": [str(tmp_path / "no" / "python")], "runs": []}
    assert sbatch.waits == {}
    assert not (tmp_path / "shared").exists()


def test_what_is_known_of_all_runs_is_one_question_to_slurm(
    tmp_path: Path, sweep: Sweep, sbatch: Sbatch, control: FakeControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep.submit(wish(tmp_path))
    asked: list[int] = []
    whole = control.jobs
    monkeypatch.setattr(control, "jobs", lambda: asked.append(1) or whole())  # type: ignore[func-returns-value]
    shown = sweep.show([*FOLDERS, "0123/never"])
    assert [one["job"] and one["job"]["id"] for one in shown] == [1, 2, 3, None]
    assert asked == [1]
    assert not (tmp_path / "shared" / "bench" / "0123" / "never").exists(), "looking makes nothing"


def test_cancel_ends_what_is_not_over_the_last_first(
    tmp_path: Path, sweep: Sweep, sbatch: Sbatch, control: FakeControl
) -> None:
    sweep.submit(wish(tmp_path))
    control.queue[1] = job(1, "COMPLETED", comment=f"slurm-stacks:{FOLDERS[0]}", user=ME)
    assert sweep.cancel([*FOLDERS, "0123/never"]) == [3, 2]
    assert control.calls == [("cancel", 3, 2)]


def test_the_clusters_command_reads_and_answers_json(
    tmp_path: Path, sbatch: Sbatch, control: FakeControl, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    file = tmp_path / "settings.json"
    file.write_text(json.dumps(to_json(settings(tmp_path))))
    monkeypatch.setattr(command_line, "Control", lambda _conf: control)
    monkeypatch.setattr(signal, "signal", lambda *_arguments: None)

    def ask(action: str, question: Any) -> Any:
        monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(question)))
        assert command_line.main(str(file), ["sweep", action]) == 0
        return json.loads(capsys.readouterr().out)

    assert ask("submit", wish(tmp_path))["runs"][2] == {"job": 3, "error": None}
    assert [one["job"]["state"] for one in ask("show", FOLDERS)] == ["PENDING"] * 3
    assert ask("cancel", FOLDERS) == [3, 2, 1]
    with pytest.raises(SystemExit) as caught:
        command_line.main(str(file), ["sweep", "nonsense"])
    assert caught.value.code == 2
