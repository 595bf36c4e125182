"""Launches in several zones, within a budget, and the consequences of a failure."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from node.design.model import Budget, ClusterDesign
from node.elastic import launcher
from node.elastic.daemon import Elastic
from node.elastic.driver import LaunchGroup, LaunchResult
from node.elastic.failures import API_FAILURES, ErrorClass, Failure
from node.elastic.pools import Pool
from node.slurm.control import SlurmError
from node.slurm.resume_request import ResumeJob, ResumeRequest
from tests.support.checkout import until
from tests.support.doubles import DEBUG, FakeControl, FakeDriver, fast_design, settings
from tests.support.naps import noted_naps

ZONED = replace(DEBUG, zones=("a", "b", "c"))
NODES = ("debug-0", "debug-1", "debug-2")


class ZonedDriver(FakeDriver):
    """A cloud whose zones have a given number of machines."""

    def __init__(self, **capacity: int) -> None:
        super().__init__()
        self.capacity = capacity

    def launch(self, group: LaunchGroup) -> LaunchResult:
        self.launches.append(group)
        count = self.capacity[str(group.zone)]
        if count < len(group.nodes) and group.all_or_nothing:
            count = 0
        had, lost = group.nodes[:count], group.nodes[count:]
        self.capacity[str(group.zone)] -= len(had)
        failure = Failure(lost, ErrorClass.CAPACITY, "Code", f"{self.capacity[str(group.zone)]} left")
        return LaunchResult({n: f"m-{n}" for n in had}, (failure,) if lost else ())


def made(folder: Path, driver: FakeDriver, design: ClusterDesign) -> tuple[Elastic, FakeControl]:
    (folder / "requests").mkdir()
    control = FakeControl()
    return Elastic(settings(folder, design), control, driver, folder), control


def group(nodes: tuple[str, ...] = NODES, *, whole: bool = True) -> LaunchGroup:
    return LaunchGroup("debug", nodes, whole, "token", 7)


def tries(driver: FakeDriver) -> list[tuple[str | None, tuple[str, ...]]]:
    return [(launch.zone, launch.nodes) for launch in driver.launches]


def test_a_job_goes_whole_to_the_first_zone_that_has_all_of_it(tmp_path: Path) -> None:
    driver = ZonedDriver(a=2, b=3, c=9)
    elastic, control = made(tmp_path, driver, fast_design(ZONED))
    elastic.launcher.launch(group(), dict.fromkeys(NODES, 7))
    assert tries(driver) == [("a", NODES), ("b", NODES)]
    assert len({launch.token for launch in driver.launches}) == 2, "another zone's call is another wish"
    assert control.calls == []
    assert elastic.launcher.unlisted([]) == {n: f"m-{n}" for n in NODES}


def test_as_many_launches_go_on_at_once_as_the_cloud_takes(tmp_path: Path) -> None:
    class Wide(FakeDriver):
        launch_threads = 7

    driver = Wide()
    driver.gate.clear()
    elastic, _ = made(tmp_path, driver, fast_design())
    pairs = [("debug-0", "debug-1"), ("debug-2", "debug-3"), ("debug-4", "debug-5"), ("debug-6", "debug-7")]
    jobs = tuple(ResumeJob(number, pair) for number, pair in enumerate((*pairs, ("debug-8", "debug-9"))))
    try:
        elastic.launcher.resume(ResumeRequest(tuple(f"debug-{n}" for n in range(10)), jobs), "r")
        until(lambda: len(driver.launches) == 5, 60, "launches, more than the usual four", 0.005)
    finally:
        driver.gate.set()
    until(lambda: not elastic.launcher.busy(), 60, "their ends", 0.005)


def test_nodes_that_slurm_does_not_take_back_keep_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A launch fails for several reasons. If Slurm refuses to power some nodes down, the others still are."""
    driver = FakeDriver()
    elastic, control = made(tmp_path, driver, fast_design())
    take = control.power_down_force

    def refuse(nodes: tuple[str, ...], reason: str) -> None:
        if "debug-0" in nodes:
            raise SlurmError(["scontrol"], 1, "Invalid node state specified")
        take(nodes, reason)

    monkeypatch.setattr(control, "power_down_force", refuse)
    kinds = (ErrorClass.CAPACITY, ErrorClass.QUOTA)
    driver.answers = [tuple(Failure((n,), kind, "Code", "no") for n, kind in zip(NODES, kinds, strict=False))]
    elastic.launcher.launch(group(whole=False), {})
    assert [call[:2] for call in control.calls] == [("down", ("debug-1",))]


@pytest.mark.parametrize("busy", API_FAILURES)
def test_a_busy_cloud_is_asked_again_only_where_it_gave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, busy: ErrorClass
) -> None:
    """The same call again would ask for existing machines. Slurm asks again for the missing ones."""
    pauses = noted_naps(monkeypatch)
    driver = FakeDriver()
    elastic, control = made(tmp_path, driver, fast_design())
    driver.answers = [(Failure(NODES, busy, "Code", "busy"),), (Failure(NODES[2:], busy, "Code", "busy"),)]
    elastic.launcher.launch(group(whole=False), {})
    assert [launch.nodes for launch in driver.launches] == [NODES, NODES]
    assert len({launch.token for launch in driver.launches}) == 1, "the same wish"
    assert pauses == [launcher.RETRY_PAUSES[0]]
    assert [call[:2] for call in control.calls] == [("down", NODES[2:])]
    assert elastic.launcher.unlisted([]) == {n: f"m-{n}" for n in NODES[:2]}


def test_a_zone_in_back_off_is_skipped(tmp_path: Path) -> None:
    driver = ZonedDriver(a=0, b=9, c=9)
    elastic, _ = made(tmp_path, driver, fast_design(ZONED))
    elastic.launcher.launch(group(NODES[:1]), {})
    elastic.launcher.launch(group(NODES[1:]), {})
    assert tries(driver) == [("a", NODES[:1]), ("b", NODES[:1]), ("b", NODES[1:])]


def test_what_is_wanted_one_by_one_is_spread_over_zones(tmp_path: Path) -> None:
    driver = ZonedDriver(a=1, b=1, c=0)
    elastic, control = made(tmp_path, driver, fast_design(ZONED))
    elastic.launcher.launch(group(whole=False), {"debug-2": 9})
    assert tries(driver) == [("a", NODES), ("b", NODES[1:]), ("c", NODES[2:])]
    sentence = "capacity: a: 0 left, b: 0 left, c: 0 left (Code); it is tried again by itself"
    assert control.calls == [
        ("comment", 9, sentence),
        ("down", ("debug-2",), f"slurm-stacks {sentence}"),
    ]


def test_only_when_all_zones_failed_the_job_is_told_and_of_all_of_them(tmp_path: Path) -> None:
    driver = ZonedDriver(a=1, b=2, c=0)
    elastic, control = made(tmp_path, driver, fast_design(ZONED))
    for _ in range(2):  # the second launch is not tried and gets the same cause
        elastic.launcher.launch(group(), dict.fromkeys(NODES, 7))
        assert [call[:2] for call in control.calls] == [("comment", 7), ("down", NODES)]
        assert "capacity: a: 1 left, b: 2 left, c: 0 left (Code)" in control.calls[0][2]
        control.calls.clear()
    assert len(driver.launches) == 3


def test_a_budget_that_is_used_up_asks_no_cloud(tmp_path: Path) -> None:
    driver = FakeDriver()
    design = fast_design(DEBUG, budget=Budget(max_hours=1e-9))
    elastic, control = made(tmp_path, driver, design)
    elastic.launcher.launch(group(), dict.fromkeys(NODES, 7))
    assert driver.launches == []
    assert [call[:2] for call in control.calls] == [("comment", 7), ("down", NODES)]
    assert control.calls[0][2].startswith("budget: ")
    assert set(elastic.capacity_limiter._pools.failures()) == {Pool("debug", None, ErrorClass.BUDGET)}


def test_a_machine_is_unlisted_until_a_listing_has_it_or_it_must_have_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elastic, _ = made(tmp_path, FakeDriver(), fast_design())
    elastic.launcher.launch(group(), {})
    assert elastic.launcher.unlisted(["m-debug-0", "m-other"]) == {n: f"m-{n}" for n in NODES[1:]}
    assert elastic.launcher.unlisted([]) == {n: f"m-{n}" for n in NODES[1:]}
    later = time.monotonic() + 61
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert elastic.launcher.unlisted([]) == {}


def test_the_rest_of_a_job_that_lost_a_node_is_astray(tmp_path: Path) -> None:
    driver = FakeDriver()
    elastic, control = made(tmp_path, driver, fast_design())
    jobs: dict[str, Any] = dict.fromkeys(NODES, 7)
    elastic.launcher.surplus_nodes.wanted(jobs)
    lost = Failure(NODES[:1], ErrorClass.CAPACITY, "Code", "none")
    driver.answers = [(lost,)]
    elastic.launcher.launch(group(NODES[:1]), jobs)
    assert set(elastic.launcher.surplus_nodes._surplus) == set(NODES[1:])
    assert control.calls[-1][:2] == ("down", NODES[:1])
