"""What `./cluster status` says of a user's jobs by their last lines of output."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from cli.console import status
from node.logs import find
from node.logs import remarks as remarks_module
from node.logs.find import Cluster
from node.logs.remarks import remarks
from node.slurm.control import SlurmDown
from node.slurm.fields import STARTED
from tests.support.checkout import ROOT
from tests.support.doubles import settings

SCHEMA = json.loads((ROOT / "infra" / "schema" / "status.json").read_text())
EMPTY: dict[str, Any] = {
    "partitions": [],
    "nodes": [],
    "machines": {"running": 0, "pending": 0},
    "jobs": [],
    "cost": {"node_hours": 0.0, "usd": 0.0, "by_partition": {}, "damaged": [], "budget": None},
}
LINE = "UnknownError: Could not start gRPC server"


class Slurm:
    """A fake Slurm with the jobs of this user."""

    def __init__(self) -> None:
        self.written: dict[int, dict[str, str]] = {}
        self.silent = False

    def outputs_of(self, user: int) -> dict[int, dict[str, str]]:
        assert user == os.getuid()
        if self.silent:
            raise SlurmDown(["squeue"], 1, "Unable to contact slurm controller")
        return self.written


def writes(out: Path, **changes: str) -> dict[str, str]:
    fields = dict.fromkeys(STARTED, "N/A") | {"batchflag": "1", "userid": str(os.getuid()), "name": "keras"}
    began = {"state": "RUNNING", "starttime": str(int(time.time()) - 60)}
    return fields | {"stdout": str(out), "stderr": str(out)} | began | changes


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> Slurm:
    made = Slurm()
    monkeypatch.setattr(find, "Control", lambda *_: made)
    return made


@pytest.fixture
def cluster(tmp_path: Path, slurm: Slurm) -> Cluster:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "slurm.conf").touch()
    return Cluster(settings(tmp_path))


def test_a_job_that_waits_for_a_worker_that_failed_is_named_while_it_runs(
    cluster: Cluster, slurm: Slurm, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out-keras.txt"
    out.write_text(f"debug-0\n{LINE}\nEpoch 1/8\n")
    fine = tmp_path / "fine"
    fine.write_text("Epoch 1/8\n")
    slurm.written = {
        7: writes(out),
        8: writes(fine),
        9: writes(out, state="COMPLETED", arrayjobid="6", arraytaskid="3"),
    }
    found = remarks(cluster)
    assert [(one["job"], one["name"], one["state"]) for one in found] == [
        ("7", "keras", "RUNNING"), ("6_3", "keras", "COMPLETED"),
    ]  # fmt: skip
    jsonschema.validate(json.loads(json.dumps(found)), SCHEMA["properties"]["remarks"])
    status.show_status({**EMPTY, "remarks": found})
    shown = " ".join(capsys.readouterr().out.split())
    assert f"job 7 (keras, running) has written: {LINE}: another process has the port" in shown


def test_a_job_that_waits_has_written_nothing_yet(cluster: Cluster, slurm: Slurm, tmp_path: Path) -> None:
    """What an earlier job has written to the same path is not its, whether it has begun or not."""
    out = tmp_path / "out"
    out.write_text(f"{LINE}\n")
    later = str(int(time.time()) + 600)
    slurm.written = {7: writes(out, state="PENDING", starttime=later)}
    assert remarks(cluster) == []
    slurm.written = {7: writes(out, state="PENDING", starttime="N/A")}
    assert remarks(cluster) == []
    slurm.written = {7: writes(out)}
    os.utime(out, (1.0, 1.0))
    assert remarks(cluster) == []


def test_a_silent_slurm_or_disk_costs_the_remarks_only(
    cluster: Cluster, slurm: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm.silent = True
    assert remarks(cluster) == []
    monkeypatch.setattr(remarks_module, "SECONDS", 0.05)
    monkeypatch.setattr(remarks_module, "_read", lambda *_: time.sleep(5))
    assert remarks(cluster) == []


def test_a_path_that_a_user_chose_is_read_only_if_it_is_theirs(
    cluster: Cluster, slurm: Slurm, tmp_path: Path
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    foreign = tmp_path / "foreign"
    foreign.write_text(f"{LINE}\n")
    slurm.written = {7: writes(pipe), 8: writes(foreign, userid=str(os.getuid() + 1))}
    assert remarks(cluster) == []
