"""The local cloud's rules, with machines that are real sleeping processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from localcloud.cloud import Cloud
from localcloud.machines import CloudError
from node.design.local_cloud import CloudBehaviour
from tests.support.sleepers import Sleepers, names, over, stopped_timers, until

TAGS = {"cluster": "t", "role": "compute"}


@pytest.fixture
def maker() -> Iterator[Sleepers]:
    sleepers = Sleepers()
    yield sleepers
    sleepers.close()


def states(cloud: Cloud) -> list[str]:
    return sorted(m["state"] for m in cloud.list({})["machines"])


def test_life_of_a_machine(tmp_path: Path, maker: Sleepers) -> None:
    cloud = Cloud(tmp_path, maker, CloudBehaviour())
    answer = cloud.launch("a", names(2), 2, "local.small", TAGS)
    assert [m["node"] for m in answer["machines"]] == ["debug-0", "debug-1"]
    assert answer["failures"] == []
    until(lambda: states(cloud) == ["running", "running"])
    assert {b.host for b in maker.booted} == {"debug-0", "debug-1"}
    assert [m["name"] for m in cloud.list({"role": "compute"})["machines"]] == ["t-debug-0", "t-debug-1"]
    assert cloud.list({"role": "controller"})["machines"] == []

    cloud.terminate([m["id"] for m in answer["machines"]] + ["m-unknown"])
    assert states(cloud) == ["terminated", "terminated"]
    assert all(child.poll() is not None for child in maker.children)
    cloud.terminate([m["id"] for m in answer["machines"]])


def test_a_machine_that_dies_is_seen_as_terminated(tmp_path: Path, maker: Sleepers) -> None:
    cloud = Cloud(tmp_path, maker, CloudBehaviour())
    cloud.launch("a", names(1), 1, "local.small", TAGS)
    until(lambda: states(cloud) == ["running"])
    maker.children[0].kill()
    until(lambda: states(cloud) == ["terminated"])
    assert maker.cleared == [m["id"] for m in cloud.list({})["machines"]], "and all of it is ended, once"


def test_quota_takes_a_whole_launch_or_none_of_it(tmp_path: Path, maker: Sleepers) -> None:
    cloud = Cloud(tmp_path, maker, CloudBehaviour(quota_nodes=3))
    with pytest.raises(CloudError, match="quota of 3 machines would be exceeded") as caught:
        cloud.launch("a", names(4), 4, "local.small", TAGS)
    assert caught.value.code == "QuotaExceeded"
    assert states(cloud) == []
    answer = cloud.launch("b", names(4), 1, "local.small", TAGS)
    assert len(answer["machines"]) == 3
    assert [(f["nodes"], f["code"]) for f in answer["failures"]] == [(["debug-3"], "QuotaExceeded")]
    # The quota does not count the controller.
    cloud.launch("c", {"controller": "t-controller"}, 1, "local.small", {**TAGS, "role": "controller"})


def test_gpu_quota_counts_devices(tmp_path: Path, maker: Sleepers) -> None:
    cloud = Cloud(tmp_path, maker, CloudBehaviour(quota_gpus=8))
    with pytest.raises(CloudError, match="quota of 8 GPUs would be exceeded: 0 used, 8 left"):
        cloud.launch("a", names(3), 3, "local.small", TAGS, gpus=4)
    assert len(cloud.launch("b", names(2), 2, "local.small", TAGS, gpus=4)["machines"]) == 2


def test_a_token_launches_once(tmp_path: Path, maker: Sleepers) -> None:
    cloud = Cloud(tmp_path, maker, CloudBehaviour())
    first = cloud.launch("same", names(1), 1, "local.small", TAGS)
    again = cloud.launch("same", names(1), 1, "local.small", TAGS)
    assert [m["id"] for m in first["machines"]] == [m["id"] for m in again["machines"]]
    until(lambda: len(maker.children) == 1)
    assert len(states(cloud)) == 1


def test_a_name_in_use_is_refused_until_its_machine_is_gone(tmp_path: Path, maker: Sleepers) -> None:
    cloud = Cloud(tmp_path, maker, CloudBehaviour())
    first = cloud.launch("a", names(1), 1, "local.small", TAGS)
    with pytest.raises(CloudError, match="t-debug-0 exists") as caught:
        cloud.launch("b", names(1), 1, "local.small", TAGS)
    assert caught.value.code == "NameInUse"
    # One name keeps no other machine from its start, unless all are needed.
    with pytest.raises(CloudError, match="t-debug-0 exists"):
        cloud.launch("b", names(3), 3, "local.small", TAGS)
    answer = cloud.launch("c", names(3), 1, "local.small", TAGS)
    assert [machine["node"] for machine in answer["machines"]] == ["debug-1", "debug-2"]
    assert answer["failures"] == [
        {"nodes": ["debug-0"], "code": "NameInUse", "message": "a machine named t-debug-0 exists"}
    ]
    cloud.terminate([first["machines"][0]["id"]])
    cloud.launch("b", names(1), 1, "local.small", TAGS)


@pytest.mark.parametrize(
    ("names_", "least", "tags"), [({}, 1, TAGS), (names(1), 2, TAGS), (names(1), 0, TAGS), (names(1), 1, {})]
)
def test_wrong_calls_are_refused(
    tmp_path: Path, maker: Sleepers, names_: dict[str, str], least: int, tags: dict[str, str]
) -> None:
    with pytest.raises(CloudError) as caught:
        Cloud(tmp_path, maker, CloudBehaviour()).launch("a", names_, least, "local.small", tags)
    assert caught.value.code == "InvalidRequest"


def test_boot_delay_keeps_a_machine_pending_and_terminate_ends_it_there(
    tmp_path: Path, maker: Sleepers, monkeypatch: pytest.MonkeyPatch
) -> None:
    timers = stopped_timers(monkeypatch)
    cloud = Cloud(tmp_path, maker, CloudBehaviour(boot_delay=60))
    one = cloud.launch("a", names(1), 1, "local.small", TAGS)
    cloud.launch("b", names(1, 1), 1, "local.small", TAGS)
    assert states(cloud) == ["pending", "pending"]
    cloud.terminate([one["machines"][0]["id"]])
    assert [timer.interval for timer in timers] == [60, 60]
    for timer in timers:
        over(timer)
    assert states(cloud) == ["running", "terminated"]
    assert len(maker.children) == 1


def test_a_new_agent_knows_the_machines_of_the_old_one(tmp_path: Path, maker: Sleepers) -> None:
    old = Cloud(tmp_path, maker, CloudBehaviour())
    made = old.launch("a", names(2), 2, "local.small", TAGS)
    until(lambda: states(old) == ["running", "running"])
    maker.children[0].kill()
    maker.children[0].wait()
    new = Cloud(tmp_path, maker, CloudBehaviour())
    assert states(new) == ["running", "terminated"]
    again = new.launch("a", names(2), 2, "local.small", TAGS)
    assert [m["id"] for m in again["machines"]] == [m["id"] for m in made["machines"]]


def test_an_agent_ends_what_its_killed_predecessor_had_only_noted(
    tmp_path: Path, maker: Sleepers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slurmctld whose machine died, and whose agent died before it had ended it, would keep its port."""
    tags = {"cluster": "c", "role": "controller"}
    old = Cloud(tmp_path, maker, CloudBehaviour())
    made = old.launch("a", {"controller": "c-controller"}, 1, "local.small", tags)
    (machine,) = made["machines"]
    until(lambda: states(old) == ["running"])
    maker.children[0].kill()
    maker.children[0].wait()

    def killed(_boot: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(maker, "clear", killed)
        with pytest.raises(KeyboardInterrupt):
            old.watch()
    assert maker.cleared == []
    new = Cloud(tmp_path, maker, CloudBehaviour())
    assert maker.cleared == [machine["id"]]
    # Once another machine has its name, what carries the name belongs to that one.
    new.launch("b", {"controller": "c-controller"}, 1, "local.small", tags)
    until(lambda: sorted(states(new)) == ["running", "terminated"])
    maker.cleared.clear()
    Cloud(tmp_path, maker, CloudBehaviour())
    assert maker.cleared == []


def test_close_ends_all_and_refuses_more(tmp_path: Path, maker: Sleepers) -> None:
    cloud = Cloud(tmp_path, maker, CloudBehaviour())
    cloud.launch("a", names(3), 3, "local.small", TAGS)
    until(lambda: states(cloud) == ["running"] * 3)
    cloud.close()
    assert states(cloud) == ["terminated"] * 3
    with pytest.raises(CloudError, match="shutting down"):
        cloud.launch("b", names(1), 1, "local.small", TAGS)
