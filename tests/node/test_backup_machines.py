"""The record of machines in a backup and in the cluster that it is restored into."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from node.backup import machines
from node.design.folders import Folders
from node.elastic.driver import Machine, MachineState
from node.elastic.ledger import Ledger
from node.elastic.machine_record import MachineLife, MachineRecord, read
from node.system import rpc
from tests.support.doubles import design, settings

DAY = 86400.0
LIFE = MachineLife("m-1", "debug-0", "debug", 10.0, 3610.0, 3600.0, 0.5, 2, 1000)
DIGEST = "0a" * 32


def cluster(folder: Path) -> tuple[Folders, Path]:
    folders = Folders(settings(folder))
    elastic = Path(str(folders.elastic))
    elastic.mkdir(parents=True)
    return folders, elastic


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A backup's folder, of a cluster with a machine that has ended and one that runs."""
    folders, elastic = cluster(tmp_path / "old")
    MachineRecord(elastic).add([LIFE], 100.0)
    MachineRecord(elastic).add([replace(LIFE, id="m-2")], DAY)
    ledger = Ledger(elastic / "ledger.json", design())
    ledger.see([Machine("m-3", "debug-1", MachineState.RUNNING, DAY)], DAY, {"debug-1"})
    monkeypatch.setattr(rpc, "call", lambda *_: ledger.lives(DAY + 50.0))
    machines.copy(folders, tmp_path / "saved")
    assert machines.size(folders) > 300
    return tmp_path / "saved"


def test_a_restored_cluster_knows_the_machines_of_the_backup(tmp_path: Path, saved: Path) -> None:
    folders, elastic = cluster(tmp_path / "new")
    MachineRecord(elastic).add([replace(LIFE, id="m-9")], 2 * DAY)
    for _ in range(2):  # a boot repeats it
        machines.place(saved, folders, DIGEST, None)
    found = read(elastic)
    assert found.lives.keys() == {"m-1", "m-2", "m-3", "m-9"}
    assert found.restored == {"m-1", "m-2", "m-3"}
    assert (found.lives["m-3"].seconds, found.lives["m-3"].registered) == (50.0, True)
    assert found.began == 2 * DAY
    machines.remove(folders, DIGEST)
    assert read(elastic).lives.keys() == {"m-9"}


def test_a_machine_that_both_have_is_the_clusters_own(tmp_path: Path, saved: Path) -> None:
    folders, elastic = cluster(tmp_path / "new")
    MachineRecord(elastic).add([replace(LIFE, id="m-3", seconds=7.0)], 2 * DAY)
    machines.place(saved, folders, DIGEST, None)
    found = read(elastic)
    assert (found.lives["m-3"].seconds, "m-3" in found.restored) == (7.0, False)


def test_a_backup_of_a_restored_cluster_has_all_of_it(
    tmp_path: Path, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(*_: object) -> Any:
        raise rpc.RpcUnavailableError("no daemon")

    monkeypatch.setattr(rpc, "call", silent)
    folders, elastic = cluster(tmp_path / "new")
    machines.place(saved, folders, DIGEST, None)
    machines.copy(folders, tmp_path / "again")
    third, its = cluster(tmp_path / "third")
    machines.place(tmp_path / "again", third, "1b" * 32, None)
    assert read(its).lives == read(elastic).lives


def test_a_backup_of_an_earlier_release_has_none(tmp_path: Path) -> None:
    folders, elastic = cluster(tmp_path / "new")
    machines.place(tmp_path / "nothing", folders, DIGEST, None)
    assert read(elastic).lives == {}


def test_a_day_that_is_packed_during_the_copy_is_in_it(
    tmp_path: Path, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = Folders(settings(tmp_path / "old"))
    copy, calls = shutil.copy, []

    def packed(source: Path, target: Path) -> None:
        calls.append(source)
        if len(calls) == 1:
            raise FileNotFoundError(source)
        copy(source, target)

    monkeypatch.setattr(shutil, "copy", packed)
    machines.copy(folders, tmp_path / "again")
    assert {file.name for file in (tmp_path / "again").iterdir()} == {file.name for file in saved.iterdir()}
