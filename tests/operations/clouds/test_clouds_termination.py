"""Termination ends what Slurm launched, even with a dead controller, within a time limit."""

from __future__ import annotations

from typing import Any

import pytest

from operations.clouds import termination
from tests.support import sentences
from tests.support.fake_cloud import FakeCloud, Pauses


@pytest.fixture
def cloud() -> FakeCloud:
    fake_cloud = FakeCloud()
    fake_cloud.run("controller")
    fake_cloud.run("login-0")
    return fake_cloud


def terminate(cloud: FakeCloud, clock: Pauses | None = None, **options: Any) -> tuple[int, list[str]]:
    said: list[str] = []
    return termination.terminate_compute(cloud, said.append, sleep=clock or Pauses(), **options), said


def test_it_ends_every_node_whatever_its_state_and_no_host(cloud: FakeCloud) -> None:
    for number, state in enumerate(("pending", "running", "stopping", "stopped")):
        cloud.run(f"cpu-{number}", "compute", state)
    assert terminate(cloud) == (4, ["ending 4 machines of cluster c"])
    assert cloud.did == ["end cpu-0 cpu-1 cpu-2 cpu-3", "remove loose"], "one call, then what they left"
    assert [machine.name for machine in cloud.there] == ["controller", "login-0"]


def test_a_launch_that_the_list_shows_late_is_ended_too(cloud: FakeCloud) -> None:
    cloud.run("cpu-0", "compute")
    assert terminate(cloud, Pauses(lambda: cloud.run("cpu-1", "compute")))[0] == 2
    assert cloud.did == ["end cpu-0", "end cpu-1", "remove loose"]


def test_a_launch_that_the_first_look_misses_is_ended_too(cloud: FakeCloud) -> None:
    """A cloud's lists lag behind, so one empty list does not prove that nothing runs."""
    assert terminate(cloud, Pauses(lambda: cloud.run("cpu-0", "compute")))[0] == 1
    assert cloud.did == ["end cpu-0", "remove loose"]


def test_nothing_to_end_is_looked_at_twice_and_no_error(cloud: FakeCloud) -> None:
    clock = Pauses()
    assert terminate(cloud, clock) == (0, [])
    assert clock.pauses == 1
    assert cloud.did == ["remove loose"]


def test_what_is_ending_is_waited_for_and_not_asked_again(cloud: FakeCloud) -> None:
    """A machine keeps its network interface until it is gone."""
    cloud.run("cpu-0", "compute", "ending")
    clock = Pauses(lambda: None, cloud.there.pop)
    assert terminate(cloud, clock) == (0, ["ending 1 machine of cluster c"])
    assert cloud.did == ["remove loose"]


def test_what_does_not_end_is_named_after_the_time_is_up(cloud: FakeCloud) -> None:
    cloud.run("cpu-5", "compute")
    cloud.obeys = False
    with sentences.raises("cloud.machines-left", "id-cpu-5"):
        terminate(cloud, seconds=0)
    assert "remove loose" not in cloud.did
