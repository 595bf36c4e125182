"""The record of ended machines: one line a machine, whatever becomes of daemon, disk and clock."""

from __future__ import annotations

import errno
import gzip
import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from node.design.accelerators import Accelerator
from node.design.model import Partition
from node.elastic import ledger as ledgers
from node.elastic import machine_record
from node.elastic.driver import Machine, MachineState
from node.elastic.ledger import Ledger
from node.elastic.machine_record import MachineLife, MachineRecord, read
from tests.support.doubles import design

GPU = Partition(
    "gpu", "large", 8, 4000, 0, 4, price_hour=3.0, accelerator=Accelerator("trainium", 2, "neuron", cores=2)
)
DESIGN = design(GPU)
HOUR, DAY = 3600.0, 86400.0
LIFE = MachineLife("m-1", "gpu-0", "gpu", 10.0, 3610.0, 3600.0, 3.0, 8, 4000, "neuroncore", 4, True)


def machine(machine_id: str, node: str, launched: float) -> Machine:
    return Machine(machine_id, node, MachineState.RUNNING, launched)


def ledger(folder: Path) -> Ledger:
    return Ledger(folder / "ledger.json", DESIGN)


def test_an_ended_machine_is_a_line_with_all_that_a_bill_needs(tmp_path: Path) -> None:
    kept = ledger(tmp_path)
    kept.see([machine("m-1", "gpu-0", 10.0)], 20.0, {"gpu-0"})
    assert read(tmp_path).lives == {}
    assert kept.lives(30.0)["open"] == [asdict(replace(LIFE, ended=30.0, seconds=20.0))]
    kept.see([], 3610.0)
    assert read(tmp_path).lives == {"m-1": LIFE}
    assert kept.lives(4000.0) == {
        "open": [],
        "unrecorded": [],
        "closed": {"gpu": {"seconds": 3600.0, "usd": pytest.approx(3.0), "unpriced": 0.0}},
        "damaged": [],
    }


def test_a_machine_that_never_registers_is_told_apart_over_restarts(tmp_path: Path) -> None:
    one, two = machine("m-1", "gpu-0", 10.0), machine("m-2", "gpu-1", 10.0)
    ledger(tmp_path).see([one, two], 20.0, {"gpu-1"})
    again = ledger(tmp_path)
    again.see([one, two], 30.0)
    again.see([], 40.0)
    assert {i: life.registered for i, life in read(tmp_path).lives.items()} == {"m-1": False, "m-2": True}


def test_a_machine_that_a_listing_left_out_has_one_life(tmp_path: Path) -> None:
    kept, running = ledger(tmp_path), machine("m-1", "gpu-0", 10.0)
    kept.see([running], 20.0, {"gpu-0"})
    kept.see([], 30.0)
    kept.see([running], 40.0)
    kept.see([], 3610.0)
    assert read(tmp_path).lives == {"m-1": LIFE}
    assert len((tmp_path / "machines" / "1970-01-01.jsonl").read_text().splitlines()) == 3, (
        "nothing is changed"
    )


def test_a_daemon_that_is_killed_before_the_ledger_is_written_repeats_the_line(tmp_path: Path) -> None:
    file = tmp_path / "ledger.json"
    kept = ledger(tmp_path)
    kept.see([machine("m-1", "gpu-0", 10.0)], 20.0, {"gpu-0"})
    before = file.read_bytes()
    kept.see([], 3000.0)
    file.write_bytes(before)
    ledger(tmp_path).see([], 3610.0)
    assert read(tmp_path).lives == {"m-1": LIFE}


def test_what_a_full_disk_does_not_take_is_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = ledger(tmp_path)
    kept.see([machine("m-1", "gpu-0", 10.0)], 20.0, {"gpu-0"})

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space")

    with monkeypatch.context() as patched:
        patched.setattr(MachineRecord, "add", full)
        kept.see([], 3610.0)
    assert kept.lives(3620.0)["unrecorded"] == [asdict(LIFE)]
    assert read(tmp_path).lives == {}
    again = ledger(tmp_path)  # the ledger's file has it
    again.see([], 3700.0)
    assert read(tmp_path).lives == {"m-1": LIFE}
    assert again.lives(3800.0)["unrecorded"] == []


def test_a_record_that_is_never_written_does_not_fill_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledgers, "MOST_UNRECORDED", 5)
    (tmp_path / "machines").write_text("no folder")
    kept = ledger(tmp_path)
    for number in range(9):
        kept.see([machine(f"m-{number}", "gpu-0", number)], number)
    assert [life["id"] for life in kept.lives(99.0)["unrecorded"]] == [f"m-{n}" for n in range(3, 8)]


def test_half_a_line_of_a_power_failure_costs_itself_only(tmp_path: Path) -> None:
    record = MachineRecord(tmp_path)
    record.add([LIFE], 100.0)
    file = tmp_path / "machines" / "1970-01-01.jsonl"
    file.write_bytes(file.read_bytes() + b'{"id":"m-2","node":')
    MachineRecord(tmp_path).add([replace(LIFE, id="m-3")], 200.0)
    found = read(tmp_path)
    assert (list(found.lives), found.damaged, found.began) == (["m-1", "m-3"], 1, 100.0)


def test_days_that_are_over_are_packed_and_the_oldest_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine_record, "KEPT_DAYS", 10)
    record = MachineRecord(tmp_path)
    for day in range(13):
        end = day * DAY + 5.0
        record.add([replace(LIFE, id=f"m-{day}", launched=end - 1, ended=end)], end)
    names = [file.name for file in machine_record.days(tmp_path / "machines")]
    assert len(names) == 10
    assert [name for name in names if not name.endswith(".gz")] == [names[-1]]
    found = read(tmp_path)
    assert len(found.lives) == 10
    assert found.began == 3 * DAY, "since the oldest day that is left"
    assert len(read(tmp_path, 11 * DAY).lives) < 5, "a bill of today reads few files"


def test_a_clock_that_is_far_ahead_for_a_day_removes_nothing(tmp_path: Path) -> None:
    record = MachineRecord(tmp_path)
    record.add([LIFE], DAY)
    record.add([replace(LIFE, id="m-2")], 30000 * DAY)
    record.add([replace(LIFE, id="m-3")], 2 * DAY)
    record.add([replace(LIFE, id="m-4")], 30000 * DAY)
    assert set(read(tmp_path).lives) == {"m-1", "m-2", "m-3", "m-4"}


def test_packing_that_was_interrupted_does_no_harm(tmp_path: Path) -> None:
    record = MachineRecord(tmp_path)
    record.add([LIFE], 100.0)
    plain = tmp_path / "machines" / "1970-01-01.jsonl"
    plain.with_name("1970-01-01.jsonl.gz").write_bytes(gzip.compress(plain.read_bytes()))
    record.add([replace(LIFE, id="m-2")], DAY)
    assert list(read(tmp_path).lives) == ["m-1", "m-2"]
    assert not plain.exists()


def test_a_packed_file_that_is_damaged_hides_no_other(tmp_path: Path) -> None:
    record = MachineRecord(tmp_path)
    record.add([LIFE], 100.0)
    record.add([replace(LIFE, id="m-2")], DAY)
    packed = tmp_path / "machines" / "1970-01-01.jsonl.gz"
    packed.write_bytes(packed.read_bytes()[:-12])
    found = read(tmp_path)
    assert "m-2" in found.lives
    assert found.damaged == 1
    record.add([replace(LIFE, id="m-3")], 2 * DAY)
    assert {"m-2", "m-3"} <= read(tmp_path).lives.keys()


def test_lines_of_later_releases_are_read(tmp_path: Path) -> None:
    MachineRecord(tmp_path).add([], 1.0)
    file = tmp_path / "machines" / "1970-01-01.jsonl"
    with file.open("a") as stream:
        stream.write(json.dumps({**asdict(LIFE), "carbon": 3}) + "\n")
    assert read(tmp_path).lives == {"m-1": LIFE}


def test_a_year_of_a_thousand_nodes_is_as_small_as_the_page_says(tmp_path: Path) -> None:
    """Five starts a node and day; a day is 5,000 machines."""
    import random

    chance = random.Random(1)
    lives = [
        MachineLife(
            f"i-{chance.getrandbits(68):017x}",
            f"gpu-{chance.randrange(1000)}",
            "gpu",
            1.7e9 + chance.random() * DAY,
            1.7e9 + DAY + chance.random() * DAY,
            chance.random() * DAY,
            3.06,
            8,
            61000,
            "gpu",
            1,
            True,
        )
        for _ in range(5000)
    ]
    record = MachineRecord(tmp_path)
    record.add(lives, DAY)
    plain = (tmp_path / "machines" / "1970-01-02.jsonl").stat().st_size
    record.add([], 2 * DAY)
    record.add([LIFE], 2 * DAY)
    packed = (tmp_path / "machines" / "1970-01-02.jsonl.gz").stat().st_size
    assert plain < 1.3e6
    assert packed * 365 < 90e6
