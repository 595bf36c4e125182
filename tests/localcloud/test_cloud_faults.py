"""Fault injection on the local cloud, with machines that are real sleeping processes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from localcloud.cloud import Cloud
from localcloud.machines import CloudError
from node.design.local_cloud import CloudBehaviour
from node.system.processes import ProcessId
from tests.support.sleepers import Sleepers, names, over, state_of, stopped_timers, until

TAGS = {"cluster": "t", "role": "compute", "partition": "debug"}
HEAD = {"cluster": "t", "role": "controller"}
Make = Callable[..., Cloud]


@pytest.fixture
def maker() -> Iterator[Sleepers]:
    sleepers = Sleepers()
    yield sleepers
    sleepers.close()


@pytest.fixture
def make(tmp_path: Path, maker: Sleepers) -> Make:
    """Make a cloud on this test's folder; a second one is the next agent's."""
    return lambda **limits: Cloud(tmp_path, maker, CloudBehaviour(**limits))


@pytest.fixture
def timers(monkeypatch: pytest.MonkeyPatch) -> list[threading.Timer]:
    return stopped_timers(monkeypatch)


def launched(cloud: Cloud, count: int = 1) -> dict[str, Any]:
    """Return the running machines by node."""
    cloud.launch("a", names(count), count, "local.small", TAGS)
    until(lambda: all(m["state"] == "running" for m in cloud.inspect()["machines"]))
    return {m["node"]: m for m in cloud.inspect()["machines"]}


def record(cloud: Cloud, node: str) -> dict[str, Any]:
    found: dict[str, Any]
    (found,) = [m for m in cloud.list({})["machines"] if m["node"] == node]
    return found


def refused(cloud: Cloud, *arguments: Any) -> CloudError:
    with pytest.raises(CloudError) as caught:
        cloud.fault(*arguments)
    return caught.value


# --- what befalls machines -------------------------------------------------------------------------------


def test_kill_ends_a_machine_at_once(make: Make, maker: Sleepers) -> None:
    cloud = make()
    before = launched(cloud, 2)
    assert cloud.fault("kill", "debug-0")["state"] == "terminated"
    assert not ProcessId(**before["debug-0"]["process"]).alive()
    assert maker.done == [("kill", "debug-0")]
    assert record(cloud, "debug-0")["state"] == "terminated"
    assert record(cloud, "debug-1")["state"] == "running"
    cloud.launch("b", names(1), 1, "local.small", TAGS)


def test_freeze_and_thaw(make: Make) -> None:
    cloud = make()
    process = ProcessId(**launched(cloud)["debug-0"]["process"])
    for _ in range(2):
        assert cloud.fault("freeze", "debug-0")["frozen"]
        until(lambda: state_of(process) == "T")
    assert record(cloud, "debug-0")["state"] == "running", "the cloud sees nothing of it"
    assert make().inspect()["machines"][0]["frozen"], "the next agent knows"
    for _ in range(2):
        assert not cloud.fault("thaw", "debug-0")["frozen"]
        until(lambda: state_of(process) == "S")
    assert not make().inspect()["machines"][0]["frozen"]


def test_a_frozen_machine_can_be_terminated_and_killed(make: Make) -> None:
    cloud = make()
    machines = launched(cloud, 2)
    for node in machines:
        cloud.fault("freeze", node)
    cloud.terminate([machines["debug-0"]["id"]])
    cloud.fault("kill", "debug-1")
    assert [m["state"] for m in cloud.list({})["machines"]] == ["terminated"] * 2
    assert not any(ProcessId(**m["process"]).alive() for m in machines.values())


def test_cut_and_join(make: Make, maker: Sleepers) -> None:
    cloud = make()
    launched(cloud)
    assert cloud.fault("cut", "debug-0")["cut"]
    assert maker.cut_off == {"debug-0"}
    again = make()
    assert again.inspect()["machines"][0]["cut"], "the next agent knows"
    assert not again.fault("join", "debug-0")["cut"]
    assert maker.cut_off == set()


def test_a_maker_that_cannot_leaves_all_as_it_was(
    make: Make, maker: Sleepers, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(*_: object) -> None:
        raise CloudError("InvalidRequest", "no network of its own")

    monkeypatch.setattr(maker, "cut", cut)
    cloud = make()
    launched(cloud)
    assert "no network of its own" in str(refused(cloud, "cut", "debug-0"))
    assert not cloud.inspect()["machines"][0]["cut"]


def test_what_cannot_happen_is_refused(make: Make) -> None:
    cloud = make(boot_delay=60)
    cloud.launch("a", names(2), 2, "local.small", TAGS)
    error = refused(cloud, "kill", "debug-7")
    assert error.code == "NotFound"
    assert "debug-7; there are: debug-0, debug-1" in str(error)
    assert "has not booted yet: it is pending" in str(refused(cloud, "freeze", "debug-0"))
    assert "'burn' is none of kill, freeze" in str(refused(cloud, "burn", "debug-0"))
    for notice in (-1, float("nan"), float("inf"), "5", True):
        assert refused(cloud, "preempt", "debug-0", notice).code == "InvalidRequest"
    assert [m["notice"] for m in cloud.inspect()["machines"]] == [None, None]


def test_a_machine_that_boots_can_be_killed_and_never_starts(
    make: Make, maker: Sleepers, timers: list[threading.Timer]
) -> None:
    cloud = make(boot_delay=60)
    cloud.launch("a", names(1), 1, "local.small", TAGS)
    assert cloud.fault("kill", "debug-0")["state"] == "terminated"
    (boot,) = timers
    over(boot)
    assert (maker.booted, record(cloud, "debug-0")["state"]) == ([], "terminated")


# --- preemption ------------------------------------------------------------------------------------------


def test_a_preempted_machine_has_its_notice_at_once_and_is_taken_after_it(
    make: Make, maker: Sleepers, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud = make()
    launched(cloud, 2)
    before, begin = time.time(), threading.Timer.start
    timers = stopped_timers(monkeypatch)
    told = cloud.fault("preempt", "debug-0", 0.4)
    assert before + 0.4 <= told["notice"] <= time.time() + 0.4
    assert record(cloud, "debug-0")["notice"] == told["notice"]
    assert record(cloud, "debug-0")["state"] == "running"
    assert record(cloud, "debug-1")["notice"] is None
    begin(*timers)
    until(lambda: record(cloud, "debug-0")["state"] == "terminated")
    assert time.time() >= told["notice"] - 0.01
    assert maker.done == [("kill", "debug-0")], "as a power cut"
    assert record(cloud, "debug-1")["state"] == "running"


@pytest.mark.parametrize("notice", [0, None])
def test_without_a_notice_it_is_taken_at_once(make: Make, notice: float | None) -> None:
    cloud = make()
    launched(cloud)
    assert cloud.fault("preempt", "debug-0", notice)["state"] == "terminated"


def test_a_second_notice_may_be_earlier_and_not_later(make: Make) -> None:
    cloud = make()
    launched(cloud)
    first = cloud.fault("preempt", "debug-0", 900)["notice"]
    assert cloud.fault("preempt", "debug-0", 1000)["notice"] == first
    assert cloud.fault("preempt", "debug-0", 0.1)["notice"] < first
    until(lambda: record(cloud, "debug-0")["state"] == "terminated")


@pytest.mark.parametrize("late", [False, True], ids=["before its end", "after its end"])
def test_the_next_agent_takes_what_was_announced(
    make: Make, maker: Sleepers, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    old = make()
    launched(old)
    with monkeypatch.context() as no_timers:  # an agent that dies takes its timers with it
        no_timers.setattr(threading.Timer, "start", lambda _self: None)
        notice = old.fault("preempt", "debug-0", 0.3)["notice"]
    if late:
        time.sleep(0.4)
        assert record(old, "debug-0")["state"] == "running"
    new = make()
    assert record(new, "debug-0")["notice"] == notice
    until(lambda: record(new, "debug-0")["state"] == "terminated")
    assert time.time() >= notice - 0.01


def test_a_machine_that_was_given_back_meanwhile_is_not_taken(
    make: Make, maker: Sleepers, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud = make()
    machines = launched(cloud)
    timers = stopped_timers(monkeypatch)
    cloud.fault("preempt", "debug-0", 60)
    cloud.terminate([machines["debug-0"]["id"]])
    cloud.launch("b", names(1), 1, "local.small", TAGS)
    taking, boot = timers
    over(boot)
    over(taking)
    states = [(m["state"], m["notice"] is None) for m in cloud.list({})["machines"]]
    assert states == [("terminated", False), ("running", True)], (
        "its successor has the name and not the notice"
    )
    assert maker.done == []


# --- settings --------------------------------------------------------------------------------------------


def test_zones_have_capacities_of_their_own(make: Make) -> None:
    cloud = make(capacity={"debug": 3, "debug/a": 1}, boot_delay=60)
    answer = cloud.launch("1", names(2), 1, "local.small", TAGS, zone="a")
    assert [(m["node"], m["zone"]) for m in answer["machines"]] == [("debug-0", "a")]
    (failure,) = answer["failures"]
    assert (failure["nodes"], failure["code"]) == (["debug-1"], "InsufficientCapacity")
    assert "pool debug/a has 1" in failure["message"]
    with pytest.raises(CloudError, match="pool debug/a") as caught:
        cloud.launch("2", names(1, 1), 1, "local.small", TAGS, zone="a")
    assert caught.value.code == "InsufficientCapacity"
    answer = cloud.launch("3", names(3, 1), 1, "local.small", TAGS, zone="b")
    assert len(answer["machines"]) == 2, "what zone a has counts for the partition too"
    assert cloud.launch("4", names(1, partition="gpu"), 1, "m", {**TAGS, "partition": "gpu"})["machines"]
    assert {m["node"]: m["zone"] for m in cloud.list({})["machines"]} == {
        "debug-0": "a", "debug-1": "b", "debug-2": "b", "gpu-0": None,
    }  # fmt: skip


def test_room_says_what_a_launch_would_give_and_launches_nothing(make: Make) -> None:
    cloud = make(quota_nodes=3, capacity={"debug/a": 1}, boot_delay=60)
    assert cloud.available_capacity("debug", None, "local.small", 0, 3) == {
        "count": 3,
        "code": None,
        "message": None,
    }
    found = cloud.available_capacity("debug", None, "local.small", 0, 4)
    assert (found["count"], found["code"]) == (3, "QuotaExceeded")
    found = cloud.available_capacity("debug", "a", "local.small", 0, 4)
    assert (found["count"], found["code"]) == (1, "InsufficientCapacity")
    assert cloud.list({})["machines"] == []
    cloud.launch("a", names(2), 2, "local.small", TAGS)
    assert cloud.available_capacity("debug", None, "local.small", 0, 2)["count"] == 1
    with pytest.raises(CloudError, match="count: -1"):
        cloud.available_capacity("debug", None, "local.small", 0, -1)
    cloud.close()
    with pytest.raises(CloudError, match="shutting down"):
        cloud.available_capacity("debug", None, "local.small", 0, 1)


def test_settings_change_while_the_cloud_runs(make: Make) -> None:
    cloud = make(quota_nodes=1, boot_delay=60)
    cloud.launch("a", names(1), 1, "local.small", TAGS)
    with pytest.raises(CloudError):
        cloud.launch("b", names(1, 1), 1, "local.small", TAGS)
    cloud.limits = replace(cloud.limits, quota_nodes=2)
    cloud.launch("b", names(1, 1), 1, "local.small", TAGS)
    cloud.limits = replace(cloud.limits, quota_nodes=0)
    assert len(cloud.inspect()["machines"]) == 2, "a lower quota ends nothing"
    assert cloud.available_capacity("debug", None, "local.small", 0, 1)["count"] == 0


def test_two_launches_race_for_the_last_places(make: Make) -> None:
    """Many launches at the same time, whole and partial ones, launch exactly as many as the quota allows."""
    cloud = make(quota_nodes=7, boot_delay=60)
    got: list[int] = []
    there: list[int] = []
    codes: set[str] = set()
    start = threading.Barrier(12)

    def run(number: int) -> None:
        wish = names(2, 2 * number)
        start.wait()
        try:
            answer = cloud.launch(str(number), wish, 1 + number % 2, "local.small", TAGS)
        except CloudError as error:
            codes.add(error.code)
        else:
            got.append(len(answer["machines"]))
        there.append(len(cloud.inspect()["machines"]))

    threads = [threading.Thread(target=run, args=(n,)) for n in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(got) == max(there) == len(cloud.inspect()["machines"]) == 7
    assert codes == {"QuotaExceeded"}


def test_the_boot_spread_spreads_and_the_head_does_not_wait(
    make: Make, timers: list[threading.Timer]
) -> None:
    cloud = make(boot_delay=20, boot_spread=60)
    cloud.launch("head", {"controller": "t-controller"}, 1, "local.small", HEAD)
    cloud.launch("a", names(4), 4, "local.small", TAGS)
    head, *nodes = timers
    assert head.interval == 0
    waits = [boot.interval for boot in nodes]
    assert len(waits) == 4
    assert 20 <= min(waits) < max(waits) - 5 < 75
    assert {m["state"] for m in cloud.list(TAGS)["machines"]} == {"pending"}
    for boot in timers:
        over(boot)
    assert {m["state"] for m in cloud.list({})["machines"]} == {"running"}


@pytest.mark.parametrize(("share", "good"), [(0.0, 6), (1.0, 0)])
def test_machines_that_never_register(make: Make, maker: Sleepers, share: float, good: int) -> None:
    cloud = make(never_register=share)
    cloud.launch("head", {"controller": "t-controller"}, 1, "local.small", HEAD)
    cloud.launch("a", names(6), 6, "local.small", TAGS)
    until(lambda: len(maker.booted) == 7)
    assert sum(b.registers for b in maker.booted if b.role == "compute") == good
    assert all(b.registers for b in maker.booted if b.role == "controller")
    until(lambda: {m["state"] for m in cloud.list({})["machines"]} == {"running"})


def test_a_pending_machines_fate_outlives_its_agent(make: Make, maker: Sleepers) -> None:
    old = make(never_register=1.0, boot_delay=60)
    old.launch("a", names(1), 1, "local.small", TAGS)
    new = make()
    until(lambda: record(new, "debug-0")["state"] == "running")
    assert [b.registers for b in maker.booted] == [False]


def test_the_list_lags_behind_and_the_token_does_not(make: Make) -> None:
    cloud = make(list_lag=600, boot_delay=60)
    answer = cloud.launch("same", names(1), 1, "local.small", TAGS)
    cloud.launch("head", {"controller": "t-controller"}, 1, "local.small", HEAD)
    assert [m["node"] for m in cloud.list({})["machines"]] == ["controller"]
    assert [m["node"] for m in cloud.inspect()["machines"]] == ["debug-0", "controller"]
    again = cloud.launch("same", names(1), 1, "local.small", TAGS)
    assert [m["id"] for m in again["machines"]] == [m["id"] for m in answer["machines"]]
    with pytest.raises(CloudError, match="t-debug-0 exists"):
        cloud.launch("other", names(1), 1, "local.small", TAGS)
    assert make(list_lag=600).list(TAGS)["machines"] == [], "the next agent knows its age"
    cloud.limits = replace(cloud.limits, list_lag=0.1)
    until(lambda: len(cloud.list({})["machines"]) == 2)
    cloud.limits = replace(cloud.limits, list_lag=600.0)
    assert [m["node"] for m in cloud.list({})["machines"]] == ["controller"]
