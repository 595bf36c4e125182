"""A job whose options pass over topology.conf never runs on nodes of two pools."""

from __future__ import annotations

import dataclasses

import pytest

from node.design.model import Partition
from node.elastic.pool_guard import PoolGuard, joined_pools, sentence
from node.slurm.control import SlurmDown, SlurmError
from node.slurm.states import JobState
from tests.support import doubles
from tests.support.doubles import FakeControl, job

SPOT = Partition("train-spot", "m5.large", 2, 1000, 0, 3, pool="spot")
ONDEMAND = Partition("train-od", "m5.large", 2, 1000, 0, 3, pool="od")
PLAIN = Partition("plain", "m5.large", 2, 1000, 0, 2)
DESIGN = doubles.design(SPOT, ONDEMAND, PLAIN)
BOTH = ["train-od-0", "train-spot-2"]
REFUSED = SlurmError(["scontrol", "requeuehold"], 1, "Requested operation is presently disabled")


@pytest.mark.parametrize(
    ("nodes", "joined"),
    [
        (BOTH, ["train-od", "train-spot"]),
        (["train-od-0", "train-od-1"], []),
        (["train-od-0", "plain-0"], []),
        (["train-spot-0"], []),
        (["gone-0", "train-spot-0"], []),
    ],
)
def test_what_may_not_be_together(nodes: list[str], joined: list[str]) -> None:
    assert joined_pools(DESIGN, nodes) == joined


def test_mixed_pools_may_be_together() -> None:
    mixed = [dataclasses.replace(pool, mixed=True) for pool in (SPOT, ONDEMAND)]
    assert joined_pools(doubles.design(*mixed), BOTH) == []


class Refusing(FakeControl):
    """slurmctld that queues no job again."""

    def __init__(self, error: SlurmError, *jobs: JobState) -> None:
        super().__init__([], jobs)
        self.refusal = error

    def requeue_held(self, job: int | str) -> None:
        raise self.refusal


def test_a_job_is_held_with_the_cause() -> None:
    control = FakeControl([], [job(7, "CONFIGURING", nodes=tuple(BOTH))])
    PoolGuard(DESIGN, control).hold(7, ["train-od", "train-spot"])
    assert ("requeue_held", 7) in control.calls
    assert sentence(["train-od", "train-spot"]) in str(control.calls)


def test_a_job_that_cannot_be_queued_again_is_cancelled_and_one_that_is_held_already_is_not() -> None:
    runs = Refusing(REFUSED, job(7, "CONFIGURING", nodes=tuple(BOTH)))
    PoolGuard(DESIGN, runs).hold(7, ["train-od", "train-spot"])
    assert [call for call in runs.calls if call[0] == "cancel"]
    held = Refusing(REFUSED, job(7, "PENDING", nodes=()))
    PoolGuard(DESIGN, held).hold(7, ["train-od", "train-spot"])
    assert not [call for call in held.calls if call[0] == "cancel"]


def test_a_slurmctld_that_is_away_ends_no_job() -> None:
    away = Refusing(
        SlurmDown(["scontrol"], 1, "Unable to contact slurm controller"), job(7, "RUNNING", nodes=tuple(BOTH))
    )
    PoolGuard(DESIGN, away).hold(7, ["train-od", "train-spot"])
    assert not [call for call in away.calls if call[0] == "cancel"]
