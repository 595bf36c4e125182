"""Pools in money and in the status: each second at its pool's price, which pool a job got, and why."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from node.billing import bill as bills
from node.design.folders import Folders
from node.design.model import Budget as Said
from node.design.model import ClusterDesign, Partition
from node.elastic.budget import summary
from node.elastic.daemon import Elastic
from node.elastic.driver import Machine, MachineState
from node.elastic.failures import ErrorClass, Failure
from node.elastic.ledger import Ledger
from node.elastic.pool_choices import FILE, MOST_JOBS, MOST_WORDS, OPEN, PoolChoices, shut
from node.elastic.pools import Pool, Pools
from node.system import rpc
from tests.support.checkout import ROOT
from tests.support.doubles import FakeControl, FakeDriver, design, fast_design, job, node, settings

SCHEMA = json.loads((ROOT / "infra" / "schema" / "status.json").read_text())
SPOT = Partition("train-spot", "small", 1, 100, 0, 4, price_hour=0.3, spot=True, pool="spot")
DEAR = Partition("train-on-demand", "large", 2, 200, 0, 2, price_hour=1.7, pool="on-demand")
PLAIN = Partition("cpu", "small", 1, 100, 0, 4, price_hour=1.0)
POOLED = design(SPOT, DEAR, PLAIN)
HOUR = 3600.0
FAILURE = Failure((), ErrorClass.CAPACITY, "Code", "none left")


def machine(name: str, launched: float) -> Machine:
    return Machine(f"m-{name}-{launched}", name, MachineState.RUNNING, launched)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """The ledger after two hours of a spot node, one of an on-demand node, and half a one of another."""
    elastic = Path(str(Folders(settings(tmp_path, POOLED)).elastic))
    elastic.mkdir(parents=True)
    made = Ledger(elastic / "ledger.json", POOLED)
    spot, dear, plain = (
        machine("train-spot-3", 0.0),
        machine("train-on-demand-0", HOUR),
        machine("cpu-0", 0.0),
    )
    made.see([spot, plain], 1.0, {"train-spot-3", "cpu-0"})
    made.see([spot, dear, plain], 1.5 * HOUR, {"train-on-demand-0"})
    made.see([dear, plain], 2 * HOUR)
    return made


def test_ledger_budget_status_and_bill_agree_to_the_cent(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usd = 2 * 0.3 + 1 * 1.7 + 2 * 1.0
    at = 2 * HOUR
    shown = ledger.cost(at)
    assert (shown["usd"], shown["node_hours"]) == (pytest.approx(usd), 5.0)
    assert shown["by_partition"] == {"cpu": 2.0, "train": 3.0}
    assert shown["by_pool"] == {"train/on-demand": 1.0, "train/spot": 2.0}
    budget = dataclasses.replace(POOLED, budget=Said(max_usd=10.0))
    left = summary(budget, ledger.account(at))
    assert left is not None
    assert left["left_usd"] == pytest.approx(10.0 - usd)

    def call(*_: Any) -> Any:
        return json.loads(json.dumps(ledger.lives(at)))

    monkeypatch.setattr(rpc, "call", call)
    monkeypatch.setattr("node.billing.bill.time.time", lambda: at)
    its = settings(tmp_path, POOLED)
    rows = {}
    for by in ("partition", "pool"):
        made = bills.bill(its, FakeControl(), by, None, None)
        assert made["total"]["usd"] == pytest.approx(usd)
        rows[by] = {row["name"]: row["usd"] for row in made["rows"]}
    assert rows["partition"] == {"train": pytest.approx(2.3), "cpu": pytest.approx(2.0)}
    assert rows["pool"] == {
        "train/spot": pytest.approx(0.6), "train/on-demand": pytest.approx(1.7), "cpu": pytest.approx(2.0),
    }  # fmt: skip


def test_the_money_of_a_pool_that_is_gone_stays_its_partitions(ledger: Ledger, tmp_path: Path) -> None:
    file = Path(str(Folders(settings(tmp_path, POOLED)).elastic)) / "ledger.json"
    after = Ledger(file, design(SPOT, PLAIN))
    assert after.cost(2 * HOUR)["by_partition"] == ledger.cost(2 * HOUR)["by_partition"]


def limited(usd: float) -> ClusterDesign:
    return dataclasses.replace(POOLED, budget=Said(max_usd=usd))


def test_a_launch_counts_at_its_pools_price(tmp_path: Path) -> None:
    """A node that boots commits as much as its own pool's price, under whichever name it is counted."""
    from node.elastic.budget import available_capacity, launch_seconds

    made = limited(1.0)
    launch = launch_seconds(made) / HOUR
    running = Ledger(tmp_path / "ledger.json", made)
    running.launched({"train-on-demand-0": "m-0"}, 0.0)
    for name, pool in (("train-spot", SPOT), ("train-on-demand", DEAR)):
        count = 10_000
        room = available_capacity(made, running.account(0.0), {"train-spot": 2}, name, count)
        left = 1.0 - launch * (1.7 + 2 * 0.3)
        assert room.count == int(left / (launch * (pool.price_hour or 0.0)) + 1e-9)
        assert room.failure is not None
        assert f"one more node of train/{pool.pool} costs" in room.failure.message


# --- which pool, and why ---------------------------------------------------------------------------------


@pytest.fixture
def pools() -> Pools:
    return Pools(POOLED)


def test_a_job_of_a_later_pool_has_a_note_and_one_of_the_first_has_none(pools: Pools, tmp_path: Path) -> None:
    choices = PoolChoices(tmp_path / FILE, POOLED, pools)
    choices.starts(1, ["train-spot-0"])
    choices.starts(2, ["cpu-0"])
    assert (choices.of(1), choices.of(2)) == (None, None)
    assert not (tmp_path / FILE).exists()
    choices.starts(3, ["train-on-demand-0"])
    assert choices.of(3) == f"spot: {OPEN}"
    pools.failed(Pool("train-spot"), FAILURE, 0.0)
    choices.starts(4, ["train-on-demand-0", "train-on-demand-1"])
    assert choices.of(4) == f"spot: {FAILURE.sentence()}"
    choices.starts(5, ["train-spot-0", "train-on-demand-1"])
    assert choices.of(5) is None, "a job of a mixed partition that has both has passed over none"
    choices.starts(6, ["gone-0"])
    later = PoolChoices(tmp_path / FILE, POOLED, pools)
    assert [later.of(number) for number in range(1, 7)] == [choices.of(number) for number in range(1, 7)]
    choices.starts(4, ["train-spot-0"])
    assert PoolChoices(tmp_path / FILE, POOLED, pools).of(4) is None, "its next run has another pool"


def test_notes_are_short_and_no_more_than_needed(pools: Pools, tmp_path: Path) -> None:
    pools.failed(Pool("train-spot"), dataclasses.replace(FAILURE, message="x" * 5000), 0.0)
    choices = PoolChoices(tmp_path / FILE, POOLED, pools)
    (tmp_path / FILE).write_text(json.dumps({str(n): "w" for n in range(1, MOST_JOBS + 1)}))
    choices = PoolChoices(tmp_path / FILE, POOLED, pools)
    choices.starts(MOST_JOBS + 1, ["train-on-demand-0"])
    assert len(choices.of(MOST_JOBS + 1) or "") == MOST_WORDS
    assert (choices.of(1), choices.of(2)) == (None, "w")


@pytest.mark.parametrize("text", ["", "[]", '{"a": 1}', "null"])
def test_notes_that_cannot_be_read_are_left_out(pools: Pools, tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    choices = PoolChoices(tmp_path / FILE, POOLED, pools)
    choices.starts(3, ["train-on-demand-0"])
    assert choices.of(3) is not None


def test_a_folder_that_cannot_be_written_fails_no_job(pools: Pools, tmp_path: Path) -> None:
    choices = PoolChoices(tmp_path / "missing" / FILE, POOLED, pools)
    choices.starts(3, ["train-on-demand-0"])
    assert choices.of(3) is not None


def test_a_pool_is_shut_until_it_is_tried_again_or_the_cloud_says_otherwise() -> None:
    zoned = Pools(design(dataclasses.replace(SPOT, zones=("a", "b")), DEAR))
    assert shut(zoned, "train-spot", 5.0, 1000.0) is None
    zoned.failed(Pool("train-spot", "a"), FAILURE, 0.0, pause=90.0)
    assert shut(zoned, "train-spot", 5.0, 1000.0) is None, "the other zone has room"
    zoned.failed(Pool("train-spot", "b"), FAILURE, 2.0, pause=30.0)
    found = shut(zoned, "train-spot", 5.0, 1000.0)
    assert found is not None
    assert (found["until"], found["left"]) == (1027, 0), "the first zone that is tried again opens it"
    zoned.adopt("train-on-demand", FAILURE, 0.0)
    known = shut(zoned, "train-on-demand", 5.0, 1000.0)
    assert known == {"cause": FAILURE.sentence(), "until": None, "left": 0}
    zoned.failed(Pool.of("train-on-demand", None, ErrorClass.BOOTSTRAP), FAILURE, 0.0, pause=60.0)
    assert shut(zoned, "train-on-demand", 5.0, 1000.0) is not None


def test_the_status_has_pools_under_their_partition(tmp_path: Path) -> None:
    control, driver = FakeControl(), FakeDriver()
    control.state = {n: node(n, "ALLOCATED", "CLOUD") for n in ("train-on-demand-0", "train-spot-1")}
    control.partitions = {"train": "DRAIN"}
    control.queue = {
        j.id: j
        for j in (
            job(5, nodes=("train-on-demand-0",), partition="train"),
            job(6, nodes=("train-spot-1",), partition="train"),
            job(7, "PENDING", partition="train", reason="Resources"),
        )
    }
    (tmp_path / "log").mkdir()
    elastic = Elastic(settings(tmp_path, fast_design(SPOT, DEAR, PLAIN)), control, driver, tmp_path)
    elastic.launcher._pools.failed(Pool("train-spot"), FAILURE, time.monotonic(), pause=600.0)
    elastic.handle("wait", {"job": 5, "nodes": "train-on-demand-0"})
    found = json.loads(json.dumps(elastic.status()))
    jsonschema.validate(found, SCHEMA)
    train, cpu = found["partitions"]
    assert (train["name"], train["state"], train["machine"]) == ("train", "DRAIN", "small")
    assert (train["min"], train["max"], train["up"]) == (0, 6, 2)
    keys = ("name", "machine", "spot", "price_usd_per_hour", "up")
    assert [tuple(p[key] for key in keys) for p in train["pools"]] == [
        ("spot", "small", True, 0.3, 1), ("on-demand", "large", False, 1.7, 1),
    ]  # fmt: skip
    spot, dear = (pool["shut"] for pool in train["pools"])
    assert dear is None
    assert spot["cause"] == FAILURE.sentence()
    assert spot["until"] == pytest.approx(time.time() + 600, abs=60)
    assert (cpu["name"], cpu["pools"]) == ("cpu", [])
    nodes = {n["name"]: (n["partition"], n["pool"]) for n in found["nodes"]}
    assert nodes["train-on-demand-0"] == ("train", "on-demand")
    assert nodes["cpu-0"] == ("cpu", None)
    assert {j["id"]: (j["pool"], j["pool_reason"]) for j in found["jobs"]} == {
        5: ("on-demand", f"spot: {FAILURE.sentence()}"), 6: ("spot", None), 7: (None, None),
    }  # fmt: skip
