"""A task ends with one message, together with the others, and without delay after the result."""

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from workload import runtime, train
from workload.errors import WorkloadError
from workload.rendezvous import Rendezvous
from workload.slurm import Step

NODES = ("n0", "n1")


@pytest.fixture
def second(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of task 1 of 2."""
    values = {
        "SLURM_JOB_ID": "5",
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NODELIST": "n[0-1]",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
        "SLURM_PROCID": "1",
        "SLURMD_NODENAME": "n1",
    }
    for name, value in values.items():
        monkeypatch.setenv(name, value)


def chief(folder: Path) -> Rendezvous:
    return Rendezvous(folder, Step(0, NODES, "n0", "5.0.0"))


def fail(*_: Any) -> None:
    raise WorkloadError("a reason")


@pytest.mark.usefixtures("second")
def test_a_failure_is_told_to_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(train, "_run", fail)
    assert train.main(["--result", str(tmp_path / "result.json")]) == 1
    assert capsys.readouterr().err == "workload: n1: a reason\n"
    with pytest.raises(WorkloadError, match="task 1 on n1 failed: a reason"):
        chief(tmp_path).collect("left", range(1, 2), 30, "farewell")


@pytest.mark.usefixtures("second")
def test_a_failure_after_the_result_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The chief's server ends with the chief. This must not make the job fail."""
    monkeypatch.setattr(train, "_run", fail)
    chief(tmp_path).publish("done", {})
    assert train.main(["--result", str(tmp_path / "result.json")]) == 0
    assert "after the end of the training: a reason" in capsys.readouterr().err


def test_a_chiefs_failure_is_one_and_removes_no_more_than_its_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("unforeseen")

    monkeypatch.setattr(train, "_run", broken)
    for name in ("result.json", "other.json"):
        (tmp_path / name).write_text("{}", encoding="utf-8")
    assert train.main(["--result", str(tmp_path / "result.json")]) == 1
    output = capsys.readouterr().err
    assert "Traceback" in output  # unlike a reason that is known
    assert output.endswith("workload: localhost: RuntimeError: unforeseen\n")
    assert not (tmp_path / "result.json").exists()
    assert (tmp_path / "other.json").exists()
    assert json.loads((tmp_path / "progress.json").read_text(encoding="utf-8"))["state"] == "failed"


def test_started_without_srun(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "2")
    assert train.main([]) == 1
    assert capsys.readouterr().err == (
        "workload: localhost: this job has 2 nodes: start the training with srun\n"
    )


@pytest.mark.parametrize("chief_stays", [True, False])
def test_a_stalled_task_leaves_after_the_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chief_stays: bool
) -> None:
    monkeypatch.setattr(train, "FOLLOW_SECONDS", 0.05)
    monkeypatch.setattr(train, "STALL_SECONDS", 0.3)
    exits: list[int] = []
    monkeypatch.setattr(train, "_exit", exits.append)
    first, other = chief(tmp_path), Rendezvous(tmp_path, Step(1, NODES, "n1", "5.0.0"))
    thread = threading.Thread(target=train._follow, args=(other,))
    thread.start()
    time.sleep(0.6)
    assert thread.is_alive()  # a training takes its time
    first.publish("done", {})
    if not chief_stays:
        first.close()
    thread.join(60)
    assert exits == [0]
    if chief_stays:
        assert first.collect("left", range(1, 2), 1, "farewell") == [{}]


def test_the_chief_does_not_wait_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(train, "LEAVE_SECONDS", 0.3)
    first = chief(tmp_path)
    train._leave_last(first, first.step)
    assert "left without the others: no farewell from task 1 (n1)" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_tensorflows_own_lines_are_there_where_they_name_gpus() -> None:
    """Level 0 shows what TensorFlow says at INFO, "Created device … name: Tesla V100-SXM2-16GB" among it."""
    assert (runtime.log_level(0), runtime.log_level(1), runtime.log_level(8)) == ("1", "0", "0")
