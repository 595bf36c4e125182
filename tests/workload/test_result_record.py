"""The result record is complete and checked, and no reader ever sees half of it."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from workload import result

RECORD: dict[str, Any] = {
    "apiVersion": "slurm-stacks/result/v1",
    "stack": "local",
    "job_id": "3",
    "partition": "compute",
    "machine": None,
    "nodes": 2,
    "workers": 2,
    "gpus_per_node": 0,
    "devices": ["/device:CPU:0"],
    "profile": "sync",
    "data": "digits-synthetic",
    "epochs": 2,
    "global_batch": 128,
    "seconds_total": 50.5,
    "seconds_train": 43,
    "images_per_second": 2786.0,
    "loss": 0.11,
    "accuracy": 0.96,
    "test_accuracy": 0.95,
    "history": [
        {"epoch": 1, "loss": 0.5, "accuracy": 0.8, "seconds": 22.0},
        {"epoch": 2, "loss": 0.11, "accuracy": 0.96, "seconds": 21.0},
    ],
    "start_latency_seconds": None,
    "restarts": 0,
    "digest": None,
    "versions": {"python": "3.11.7"},
    "cost_usd": None,
    "seed": 0,
    "learning_rate": 0.2,
    "average_every": None,
    "cores": 2,
    "cores_shared": False,
    "cores_others": None,
    "step_seconds": 0.04,
    "exchange_seconds": None,
    "phases": {"import": 5.5, "train": 43.0},
}


def test_the_keys_are_the_contracts() -> None:
    """The list is that of the contract, word for word."""
    contract = (
        "apiVersion stack job_id partition machine nodes workers gpus_per_node devices profile data epochs "
        "global_batch seconds_total seconds_train images_per_second loss accuracy test_accuracy history "
        "start_latency_seconds restarts digest versions cost_usd seed learning_rate average_every cores "
        "cores_shared cores_others step_seconds exchange_seconds phases"
    )
    assert list(result.KEYS) == contract.split()


def test_a_valid_record() -> None:
    assert result.mistakes(RECORD) == []


@pytest.mark.parametrize("key", list(RECORD))
def test_each_key_is_needed(key: str, tmp_path: Path) -> None:
    record = {k: v for k, v in RECORD.items() if k != key}
    assert result.mistakes(record) == [f"result.{key}: missing"]
    with pytest.raises(ValueError, match=f"{key}: missing"):
        result.write(tmp_path / "result.json", record)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"apiVersion": "slurm-stacks/result/v2"}, "result.apiVersion: 'slurm-stacks/result/v2' is none of"),
        ({"extra": 1}, "result.extra: unknown"),
        ({"nodes": "2"}, "result.nodes: '2' is no int"),
        ({"nodes": True}, "result.nodes: True is no int"),
        ({"nodes": 0}, "result.nodes: 0 is less than 1"),
        ({"average_every": 0}, "result.average_every: 0 is less than 1"),
        ({"step_seconds": -1.0}, "result.step_seconds: -1.0 is negative"),
        ({"phases": {"train": "long"}}, "result.phases.train: 'long' is no number of seconds"),
        ({"cores_shared": 1}, "result.cores_shared: 1 is no bool"),
        ({"cores_others": 1.5}, "result.cores_others: 1.5 is not between 0 and 1"),
        ({"loss": float("nan")}, "result.loss: nan is no finite number"),
        ({"cost_usd": float("inf")}, "result.cost_usd: inf is no finite number"),
        ({"cost_usd": -1.0}, "result.cost_usd: -1.0 is negative"),
        ({"data": "synthetic"}, "result.data: 'synthetic' is none of"),
        ({"accuracy": 96}, "result.accuracy: 96 is not between 0 and 1"),
        ({"devices": []}, "result.devices: the names"),
        ({"versions": {"python": 3}}, "result.versions: texts"),
        ({"history": []}, "result.history: 0 entries for 2 epochs"),
        ({"history": [1, 2]}, "result.history[0]: an object is expected"),
    ],
)
def test_mistakes_have_their_path(change: dict[str, Any], message: str) -> None:
    assert result.mistakes(RECORD | change)[0].startswith(message)


def test_epochs_count_from_one() -> None:
    record = copy.deepcopy(RECORD)
    record["history"][1]["epoch"] = 3
    assert result.mistakes(record) == ["result.history[1].epoch: 3 is not 2"]


def test_a_result_that_is_not_an_object_is_one_mistake() -> None:
    assert result.mistakes([]) == ["result: an object is expected"]


def test_written_whole_in_the_contracts_order(tmp_path: Path) -> None:
    path = tmp_path / "run" / "result.json"
    result.write(path, dict(reversed(RECORD.items())))
    read = json.loads(path.read_text(encoding="utf-8"))
    assert read == RECORD
    assert list(read) == list(result.KEYS)
    assert [p.name for p in path.parent.iterdir()] == ["result.json"]


def test_an_invalid_record_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"result\.nodes"):
        result.write(tmp_path / "result.json", RECORD | {"nodes": 0})
    assert list(tmp_path.iterdir()) == []


def test_the_time_of_training_is_that_of_the_epochs(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"seconds_train: 61.4 is not the sum of the epochs' seconds"):
        result.write(tmp_path / "result.json", {**RECORD, "seconds_train": 61.4})
    result.write(tmp_path / "result.json", {**RECORD, "seconds_train": 43.001})  # each number is rounded
