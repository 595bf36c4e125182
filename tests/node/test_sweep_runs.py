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

from node import benchmark, command_line
from node.slurm.control import SlurmDown
from node.sweep import Sweep
from node.system import foreign, subprocesses
from node.system.codec import to_json
from node.system.subprocesses import Ran
from tests.support.doubles import FakeControl, job, settings

ME = foreign.name(os.geteuid())
FOLDERS = [f"0123/0123456789ab-1-0a1b2c3d-{number}" for number in (1, 2, 3, 4)]
"""Of one sweep; the tests submit the first three."""


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


def prepare(sweep: Sweep, tmp_path: Path, *folders: str) -> None:
    assert sweep.prepare(preparation(tmp_path, *folders)) == {"missing": []}


def preparation(tmp_path: Path, *folders: str) -> dict[str, Any]:
    runs = [{"folder": folder, "script": "a", "label": {"of": folder}} for folder in folders or FOLDERS[:3]]
    return {"needs": [str(tmp_path)], "scripts": {"a": "a script"}, "runs": runs}


def submit(sweep: Sweep, *folders: str, after: int | None = None) -> list[dict[str, Any]]:
    return sweep.submit({"after": after, "folders": folders or FOLDERS[:3]})


def test_each_job_waits_for_the_one_before_and_the_first_for_benchmarks_under_way(
    tmp_path: Path, sweep: Sweep, sbatch: Sbatch, control: FakeControl
) -> None:
    control.queue = {
        3: job(3, comment="slurm-stacks:another/run"),
        4: job(4, "COMPLETED", comment="slurm-stacks:an/ended-one"),
        5: job(5, comment="somebody's own"),
        6: job(6),
    }
    prepare(sweep, tmp_path, *FOLDERS)
    assert submit(sweep) == [{"job": number, "error": None} for number in (7, 8, 9)]
    assert sbatch.waits == {7: [3], 8: [7], 9: [8]}
    assert (tmp_path / "shared" / "bench" / FOLDERS[1] / "run_keras").read_text() == "a script"
    submit(sweep, FOLDERS[3], after=9)
    assert sbatch.waits[10] == [9], "behind the one that was named, and no other"


def test_the_same_wish_again_submits_nothing_whatever_became_of_the_jobs(
    tmp_path: Path, sweep: Sweep, sbatch: Sbatch, control: FakeControl
) -> None:
    prepare(sweep, tmp_path)
    first = submit(sweep, *FOLDERS[:2])
    control.queue = {
        2: job(2, "FAILED", comment=f"slurm-stacks:{FOLDERS[1]}", user=ME)
    }  # Slurm has forgotten job 1
    prepare(sweep, tmp_path)
    assert submit(sweep) == [*first, {"job": 3, "error": None}]
    assert sbatch.waits == {1: [], 2: [1], 3: [2]}


def test_a_refused_run_is_said_and_the_others_are_submitted(
    tmp_path: Path, sweep: Sweep, sbatch: Sbatch
) -> None:
    sbatch.refuse = {"-2": "Requested node configuration is not available"}
    prepare(sweep, tmp_path)
    one, two, three = submit(sweep)
    assert (one["job"], two["job"], three["job"]) == (1, None, 2)
    assert two["error"] == "sbatch: error: Requested node configuration is not available"
    assert sbatch.waits == {1: [], 2: [1]}


def test_a_controller_that_falls_silent_stops_the_submit_and_the_next_goes_on(
    tmp_path: Path, sweep: Sweep, sbatch: Sbatch
) -> None:
    sbatch.refuse = {"-2": "Unable to contact slurm controller (connect failure)"}
    prepare(sweep, tmp_path)
    with pytest.raises(SlurmDown):
        submit(sweep)
    sbatch.refuse = {}
    assert [run["job"] for run in submit(sweep)] == [1, 2, 3]
    assert sbatch.waits == {1: [], 2: [1], 3: [2]}


def test_nothing_is_submitted_where_something_is_missing(
    tmp_path: Path, sweep: Sweep, sbatch: Sbatch
) -> None:
    asked = preparation(tmp_path)
    asked["needs"].append(str(tmp_path / "no" / "python"))
    assert sweep.prepare(asked) == {"missing": [str(tmp_path / "no" / "python")]}
    assert sbatch.waits == {}
    assert not (tmp_path / "shared").exists()


def test_what_is_known_of_all_runs_is_one_question_to_slurm(
    tmp_path: Path, sweep: Sweep, sbatch: Sbatch, control: FakeControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(sweep, tmp_path)
    submit(sweep)
    asked: list[int] = []
    whole = control.jobs
    monkeypatch.setattr(control, "jobs", lambda: asked.append(1) or whole())  # type: ignore[func-returns-value]
    shown = sweep.show([*FOLDERS[:3], "0123/never"])
    assert [one["job"] and one["job"]["id"] for one in shown] == [1, 2, 3, None]
    assert [one["open"] for one in shown] == [True, True, True, False]
    assert asked == [1]
    assert not (tmp_path / "shared" / "bench" / "0123" / "never").exists(), "looking makes nothing"


def test_cancel_ends_what_is_not_over_the_last_first(
    tmp_path: Path, sweep: Sweep, sbatch: Sbatch, control: FakeControl
) -> None:
    prepare(sweep, tmp_path, *FOLDERS)
    submit(sweep)
    control.queue[1] = job(1, "COMPLETED", comment=f"slurm-stacks:{FOLDERS[0]}", user=ME)
    assert sweep.cancel([*FOLDERS, "0123/never"]) == [3, 2]
    assert control.calls[0] == ("cancel", 3, 2)
    assert sweep.open() == {"next": 2, "runs": []}
    (late,) = submit(sweep, FOLDERS[3])
    assert late["job"] is None, "what has no job yet gets none"
    assert "its sweep has ended" in late["error"]


def test_a_sweep_is_under_way_from_its_first_run_on_until_that_is_closed(
    tmp_path: Path, sweep: Sweep, sbatch: Sbatch
) -> None:
    assert sweep.open() == {"next": 1, "runs": []}
    prepare(sweep, tmp_path, *FOLDERS[1:])
    assert sweep.open() == {"next": 2, "runs": []}, "cut off before it was whole"
    prepare(sweep, tmp_path, *FOLDERS)
    later = [folder.replace("-1-0a1b", "-2-0000") for folder in FOLDERS]
    prepare(sweep, tmp_path, *later)
    submit(sweep, FOLDERS[0])
    there = sweep.open()
    assert there["next"] == 3
    assert [run["label"] for run in there["runs"]] == [{"of": folder} for folder in FOLDERS]
    assert [run["job"] and run["job"]["id"] for run in there["runs"]] == [1, None, None, None]
    bench = tmp_path / "shared" / "bench"
    (bench / FOLDERS[2] / "sweep.json").write_text("[" * 100000)
    assert sweep.open()["runs"][2]["label"] is None
    sweep.close(FOLDERS[:1])
    assert [run["label"]["of"] for run in sweep.open()["runs"]] == later, "the next one"
    sweep.close([*later, *FOLDERS, "0123/never"])
    assert sweep.open()["runs"] == []
    assert list(bench.glob("*/*/sweep.json")) == []


def test_what_others_have_prepared_is_no_sweep_of_ones_own(
    tmp_path: Path, sweep: Sweep, sbatch: Sbatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(sweep, tmp_path)
    monkeypatch.setattr(benchmark, "_owner", lambda path: None if not path.exists() else os.geteuid() + 1)
    assert sweep.open() == {"next": 2, "runs": []}, "but its number is taken"


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

    assert ask("prepare", preparation(tmp_path)) == {"missing": []}
    assert ask("submit", {"after": None, "folders": FOLDERS[:3]})[2] == {"job": 3, "error": None}
    assert [one["job"]["state"] for one in ask("show", FOLDERS[:3])] == ["PENDING"] * 3
    assert len(ask("open", None)["runs"]) == 3
    assert ask("cancel", FOLDERS[:3]) == [3, 2, 1]
    assert ask("close", FOLDERS[:3]) is None
    with pytest.raises(SystemExit) as caught:
        command_line.main(str(file), ["sweep", "nonsense"])
    assert caught.value.code == 2
