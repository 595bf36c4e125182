"""Tests of the boot report: it is on the disk after every change, also if the bucket fails."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from node.bootstrap.report import TAIL_LINES, BootReport, file_sink, was_ready


def test_every_change_is_written_whole(tmp_path: Path) -> None:
    texts: list[str] = []
    report = BootReport("debug-0", "compute", [texts.append, file_sink(tmp_path / "boot" / "debug-0.json")])

    def written() -> dict[str, Any]:
        assert texts[-1] == (tmp_path / "boot" / "debug-0.json").read_text()
        return dict(json.loads(texts[-1]))

    report.begin("disks", 120)
    first = written()
    assert (first["apiVersion"], first["host"], first["role"]) == (
        "slurm-stacks/boot/v1",
        "debug-0",
        "compute",
    )
    assert (first["state"], first["ended"], first["host_keys"]) == ("booting", None, [])
    (step,) = first["steps"]
    assert (step["name"], step["state"], step["seconds"], step["timeout"]) == ("disks", "running", None, 120)
    assert step["started"] >= first["started"]

    report.end("done", 1.23456, "12 MiB free")
    report.begin("hooks", 1)
    step, _ = written()["steps"]
    assert (step["state"], step["seconds"], step["note"]) == ("done", 1.235, "12 MiB free")
    assert "tail" not in step

    report.end("failed", 2.0, "no", [f"line {i}" for i in range(50)])
    report.finish("failed")
    steps = written()["steps"]
    assert [s["name"] for s in steps] == ["disks", "hooks"]
    assert steps[1]["tail"] == [f"line {i}" for i in range(50 - TAIL_LINES, 50)]
    lines = (tmp_path / "boot" / "debug-0.json").read_text().splitlines()
    assert '  "line 49"' in lines, "people read it, too"
    assert len(lines) == 1 + 1 + 10 + TAIL_LINES + 1

    last = written()
    assert last["state"] == "failed"
    assert last["ended"] >= last["started"]
    assert [p.name for p in (tmp_path / "boot").iterdir()] == ["debug-0.json"]


def test_a_bucket_that_is_away_is_a_finding_and_no_failure(tmp_path: Path) -> None:
    def away(_text: str) -> None:
        raise OSError("no route to the bucket")

    own = tmp_path / "boot.json"
    report = BootReport("controller", "controller", [file_sink(own), away])
    report.begin("users", 30)
    report.finish("ready")
    assert json.loads(own.read_text())["facts"]["report"] == "not published: no route to the bucket"


def test_the_machines_own_disk_must_take_it() -> None:
    def full(_text: str) -> None:
        raise OSError("No space left on device")

    with pytest.raises(OSError, match="No space"):
        BootReport("controller", "controller", [full]).begin("users", 30)


def test_a_machine_that_boots_again_was_ready(tmp_path: Path) -> None:
    own = tmp_path / "boot.json"

    def boot() -> BootReport:
        report = BootReport("controller", "controller", [file_sink(own)], was_ready=was_ready(own))
        report.begin("users", 30)
        return report

    first = boot()
    assert not was_ready(own)
    first.finish("rebooting")  # for a driver, in the middle of the first boot
    assert not was_ready(own)
    boot().finish("ready")
    assert was_ready(own)
    again = boot()
    assert was_ready(own), "its cluster is up while it boots"
    again.finish("failed")
    assert not was_ready(own), "and is not when that boot fails"
    own.write_text("{")
    assert not was_ready(own)
