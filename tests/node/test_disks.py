"""The controller's disks in the status: nearly full, full, read-only, hanging; a state that is not saved."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from cli.console.status import show_status
from cli.disks import troubles
from cli.providers import condition
from node import cluster_status
from node.design.folders import Folders
from node.design.model import SlurmSettings
from node.design.storage import Mount
from node.elastic import disks
from node.elastic.disks import Disks, failed_write, reading
from tests.support.checkout import ROOT
from tests.support.doubles import HEAD, design, settings

SCHEMA = json.loads((ROOT / "infra" / "schema" / "status.json").read_text())["properties"]
STATE = Mount("/state", "disk", ("controller",), "controller", name="state")
ALL = 100_000


def system(
    free: float, size: float = 2048, files: int = ALL, free_files: int = ALL, flags: int = 0, fsid: int = 1
) -> os.statvfs_result:
    """Return what the kernel says of a file system, in MiB; root has 5 % more."""
    blocks, left = int(size * 256), int(free * 256)
    root = left + blocks // 20
    return os.statvfs_result(
        (4096, 4096, blocks, root, left, files, free_files, free_files, flags, 255, fsid)
    )


@pytest.mark.parametrize(
    ("answer", "found", "short_of"),
    [
        (system(1500), "ok", None),
        (system(190), "low", "space"),
        (system(3), "full", "space"),
        (system(0), "full", "space"),
        (system(2000, 20 * 1024), "ok", None),
        (system(1000, 20 * 1024), "low", "space"),
        (system(1500, 500_000), "ok", None),
        (system(1500, free_files=9_000), "low", "inodes"),
        (system(1500, files=10_000_000, free_files=9_999), "low", "inodes"),
        (system(1500, free_files=3), "full", "inodes"),
        (system(190, free_files=3), "full", "inodes"),
        (system(1500, files=0, free_files=0), "ok", None),
        (system(1500, flags=os.ST_RDONLY), "read-only", None),
        (None, "silent", None),
    ],
)
def test_a_disk_is_full_by_space_or_by_files(
    answer: os.statvfs_result | None, found: str, short_of: str | None
) -> None:
    disk = reading("/state", answer)
    assert (disk["condition"], disk["short_of"]) == (found, short_of)
    jsonschema.validate([{**disk, "holds": ["state"], "setting": None}], SCHEMA["disks"])


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    """The folders of a cloud's controller, whose state is kept."""
    its = design(
        provider="aws", isolation="vm", hosts=(HEAD,), mounts=(STATE,), slurm=SlurmSettings(accounting=True)
    )
    found = Folders(settings(tmp_path, its))
    for folder in (found.state, found.elastic, found.log, found.database):
        Path(str(folder)).mkdir(parents=True)
    return found


Answers = Callable[[dict[str, Any]], None]


@pytest.fixture
def answers(folders: Folders, monkeypatch: pytest.MonkeyPatch) -> Answers:
    """Sets what the kernel says of some folders, or a function that is called in its place."""

    def answer(given: dict[str, Any]) -> None:
        def statvfs(path: str) -> Any:
            for name, value in given.items():
                if path == str(getattr(folders, name)):
                    return value() if callable(value) else value
            return system(1500, fsid=2)

        monkeypatch.setattr(os, "statvfs", statvfs)

    return answer


def test_folders_of_one_disk_are_one(folders: Folders, answers: Answers) -> None:
    answers({"state": system(190), "elastic": system(190), "database": system(190)})
    found = Disks(folders).status()
    assert [(disk["holds"], disk["condition"], disk["setting"]) for disk in found["disks"]] == [
        (["state", "ledger", "database"], "low", "storage.state.size_gib"),
        (["logs"], "ok", "controller.disk_gib"),
    ]
    assert found["unsaved"] is None
    jsonschema.validate(found["disks"], SCHEMA["disks"])
    (trouble,) = troubles(found, "lab")
    assert trouble[0] == (
        f"{folders.state}, the disk with Slurm's state and the record of node-hours and the accounting, "
        "is nearly full: 190 of 2048 MiB are free"
    )
    assert "raise storage.state.size_gib in Pulumi.lab.yaml" in trouble[1]
    (warning,) = condition.disks(found, "lab")
    assert (warning.check, warning.found) == ("cluster.disk", trouble[0])


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (system(0), "its disk is full"),
        (system(900, free_files=0), "its disk is full"),
        (system(1500, flags=os.ST_RDONLY), "its disk is read-only, as the kernel makes a disk with errors"),
    ],
)
def test_a_state_that_cannot_be_saved_is_said_first(
    folders: Folders, answers: Answers, answer: Any, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    answers({"state": answer})
    found = Disks(folders).status()
    assert found["unsaved"] == why
    rest = {"partitions": [], "nodes": [], "jobs": [], "cost": COST}
    show_status({**rest, **found}, "lab")
    first = " ".join(capsys.readouterr().out.split())
    assert first.startswith(f"warning: Slurm cannot save its state: {why}. Jobs go on")
    warnings = list(condition.disks(found, "lab"))
    assert [why in warnings[0].found, len(warnings)] == [True, 2]


COST = {"node_hours": 0.0, "usd": 0.0, "damaged": [], "budget": None}


def test_a_disk_that_hangs_keeps_nobody_waiting_and_is_asked_once(
    folders: Folders, answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    end, asked = threading.Event(), []

    def hang() -> os.statvfs_result:
        asked.append(1)
        end.wait(60)
        return system(1500)

    answers({"state": hang})
    monkeypatch.setattr(disks, "ANSWER_SECONDS", 0.1)
    read = Disks(folders)
    found = [read.status() for _ in range(5)]
    assert len(asked) == 1, "threads that hang do not pile up"
    assert {each["unsaved"] for each in found} == {"its disk does not answer"}
    assert [disk["condition"] for disk in found[0]["disks"]] == ["silent", "ok"]
    jsonschema.validate(found[0]["disks"], SCHEMA["disks"])
    assert "does not answer" in next(iter(troubles({**found[0], "unsaved": None}, "lab")))[0]
    end.set()
    monkeypatch.setattr(disks, "ANSWER_SECONDS", 60)
    assert read.status()["unsaved"] is None
    assert read.status()["unsaved"] is None


def test_a_disk_that_fails_does_not_answer(folders: Folders, answers: Answers) -> None:
    def fail() -> os.statvfs_result:
        raise OSError(5, "Input/output error")

    answers({"state": fail})
    assert Disks(folders).status()["unsaved"] == "its disk does not answer"


LINES = [
    "error: Error writing file /var/spool/slurmctld/job_state.new, No space left on device",
    "error: Can't save state, error creating file /var/spool/slurmctld/node_state.new: Disk quota exceeded",
    "error: Error writing file /var/spool/slurmctld/hash.5/job.15/script: No space left on device",
    "error: Can't save state, create file /var/spool/slurmctld/resv_state.new error No space left on device",
]
"""As Slurm writes them."""


@pytest.mark.parametrize("line", LINES)
def test_a_write_that_failed_counts_until_the_jobs_are_saved(folders: Folders, line: str) -> None:
    log, job_state = Path(str(folders.log)) / "slurmctld.log", Path(str(folders.state)) / "job_state"
    assert not isinstance(Disks(folders).status()["unsaved"], str), "without a log nothing is wrong"
    now = time.time()
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(now))
    log.write_text(f"[{stamp}.123] debug: x\n[{stamp}.123] {line}\n[{stamp}.124] sched: y\n")
    assert failed_write(folders) == f"slurmctld says: {line.removeprefix('error: ')}"
    assert Disks(folders).status()["unsaved"] == failed_write(folders)
    job_state.write_bytes(b"jobs")
    os.utime(job_state, (now - 20, now - 20))
    assert failed_write(folders) is not None
    os.utime(job_state, (now + 3, now + 3))
    assert failed_write(folders) is None


def test_no_log_of_whatever_content_stops_the_status(folders: Folders) -> None:
    log = Path(str(folders.log)) / "slurmctld.log"
    for text in (b"\xff" * 600_000, b"[9999-99-99T99:99:99] error: Error writing file x\n", b""):
        log.write_bytes(text)
        assert Disks(folders).status()["unsaved"] is None
    log.unlink()
    log.mkdir()
    assert Disks(folders).status()["unsaved"] is None


def test_a_cluster_that_does_not_answer_says_that_its_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "state").mkdir()
    monkeypatch.setattr(os, "statvfs", lambda _path: system(0))
    monkeypatch.setattr(cluster_status, "_slurmctld", lambda _folders: "slurmctld does not answer")
    with pytest.raises(
        cluster_status.SilentError, match=r"^Slurm cannot save its state: its disk is full; slurmctld"
    ):
        cluster_status.status(Folders(settings(tmp_path)))
    # The disks of a login machine are not the controller's.
    its = design(isolation="vm", provider="aws", hosts=(HEAD,))
    with pytest.raises(cluster_status.SilentError) as error:
        cluster_status.status(Folders(settings(tmp_path, its)))
    assert "cannot save" not in str(error.value)


def test_what_is_not_a_clouds_has_no_setting_and_its_own_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "state").mkdir()
    monkeypatch.setattr(os, "statvfs", lambda _path: system(100))
    found = Disks(Folders(settings(tmp_path))).status()
    assert [disk["setting"] for disk in found["disks"]] == [None]
    ((_, cure),) = troubles(found, "local")
    assert cure.startswith("Remove ")
    assert "raise" not in cure
    assert list(troubles({}, "local")) == [], "a cluster of an earlier release"
