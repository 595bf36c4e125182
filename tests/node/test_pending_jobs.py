"""Pending jobs: who is told why, and who may start at once; no job is told twice."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from node.elastic.failures import POLICIES, ErrorClass, Failure
from node.elastic.pending_jobs import (
    NOT_AVAILABLE,
    JobChange,
    PartitionCapacity,
    Run,
    fitting,
    job_changes,
    runs,
)
from node.slurm.states import JobState
from tests.support.doubles import job

QUOTA = Failure((), ErrorClass.QUOTA, "Code", "4 of 8")
SAID = QUOTA.sentence()
NOW = 1000.0
PAUSED: dict[str, Any] = {"reason": "BeginTime", "eligible_time": NOW + 30, "restarts": 1}
FULL = {"debug": PartitionCapacity(4, QUOTA)}
FREE = {"debug": PartitionCapacity(8)}


def told(number: int, capacities: dict[str, PartitionCapacity], **job_: Any) -> list[JobChange]:
    seen = {number: run} if (run := job_.pop("run", None)) else {}
    pools = {name: [capacity] for name, capacity in capacities.items()}
    return job_changes([job(number, job_.pop("state", "PENDING"), **job_)], pools, seen, NOW)


@pytest.mark.parametrize(
    "reason", ["Resources", "Priority", "ReqNodeNotAvail", "NodeDown", "Nodes required for job are DOWN"]
)
def test_a_job_that_needs_what_cannot_be_had_is_told_once(reason: str) -> None:
    assert told(1, FULL, reason=reason, wanted_nodes=5) == [JobChange(1, SAID)]
    assert told(1, FULL, reason=reason, wanted_nodes=5, admin_comment=SAID) == []
    other = "quota: other numbers of the same cause"
    assert told(1, FULL, reason=reason, wanted_nodes=5, admin_comment=other) == [
        JobChange(1, SAID, news=True)
    ]
    assert told(1, FULL, reason=reason, wanted_nodes=5, admin_comment="capacity: x") == [JobChange(1, SAID)]


@pytest.mark.parametrize("kind", ErrorClass)
def test_only_numbers_that_change_while_a_job_waits_are_told_again(kind: ErrorClass) -> None:
    full = {"debug": PartitionCapacity(0, Failure((), kind, "Code", "3 of 8"))}
    again = told(1, full, reason="Resources", admin_comment=f"{kind}: 4 of 8")
    counted = kind in (ErrorClass.QUOTA, ErrorClass.CAPACITY, ErrorClass.BUDGET)
    assert [change.news for change in again] == [True] * counted


@pytest.mark.parametrize(
    "waits",
    [
        {"reason": "Resources", "wanted_nodes": 4},
        {"reason": "Dependency", "wanted_nodes": 5},
        {"reason": "JobHeldUser", "wanted_nodes": 5},
        {"reason": "PartitionNodeLimit", "wanted_nodes": 50},
        {"reason": "None", "wanted_nodes": 5},
        {"reason": "Resources", "wanted_nodes": 5, "partition": "debug,other"},
        # The other partition's nodes are busy, but nothing limits it.
        {"reason": "Resources", "wanted_nodes": 5, "partition": "debug,busy"},
        {"reason": "Resources", "wanted_nodes": 5, "partition": "unknown"},
        {"reason": "Resources", "wanted_nodes": 5, "state": "RUNNING"},
    ],
)
def test_a_job_that_waits_for_something_else_is_not(waits: dict[str, Any]) -> None:
    assert told(1, {**FULL, "other": PartitionCapacity(9), "busy": PartitionCapacity(2)}, **waits) == []


def test_pending_tasks_of_an_array_are_named_without_those_that_run() -> None:
    tasks: dict[str, Any] = {"array_job": 7, "reason": "Resources", "wanted_nodes": 5}
    assert told(7, FULL, array_task="3,5-9%2", **tasks)[0].job == "7_[3,5-9]"
    assert told(7, FULL, array_task="3,5-9,...", **tasks)[0].job == 7
    assert told(9, FREE, array_task="4", array_job=7, state="RUNNING", admin_comment=SAID) == [
        JobChange("7_4", "")
    ]


@pytest.mark.parametrize(
    ("gone", "waits"),
    [
        (True, {"state": "RUNNING"}),
        (True, {"reason": "Resources"}),
        (True, {"reason": "JobHeldUser"}),
        (False, {"reason": "BeginTime", "eligible_time": NOW + 9000}),
        (False, {"reason": "None"}),
        (False, {"reason": "Cleaning"}),
        (False, {"state": "CONFIGURING"}),
        (False, {"state": "COMPLETED"}),
    ],
)
def test_a_comment_goes_when_it_is_no_longer_true(gone: bool, waits: dict[str, Any]) -> None:
    assert told(1, FREE, admin_comment=SAID, **waits) == ([JobChange(1, "")] if gone else [])
    assert told(1, FREE, admin_comment="an administrator's own", **waits) == []


def test_a_comment_stays_while_its_partition_is_limited() -> None:
    assert told(1, FULL, reason="Resources", wanted_nodes=2, admin_comment=SAID) == []
    preempted = "preempted: the cloud took n back (n); x"
    assert told(1, FREE, reason="Resources", admin_comment=preempted) == []
    assert told(1, FREE, state="RUNNING", admin_comment=preempted) == [JobChange(1, "")]


def test_a_job_that_was_queued_again_starts_when_it_can() -> None:
    waits = {**PAUSED, "wanted_nodes": 8, "admin_comment": SAID}
    assert told(1, FREE, **waits) == [JobChange(1, start_now=True)]
    assert told(1, {"debug": PartitionCapacity(8, QUOTA)}, **waits) == [JobChange(1, start_now=True)], (
        "eight there are"
    )
    assert told(1, FULL, **waits) == []
    assert told(1, {"debug": PartitionCapacity(8, settled=False)}, **waits) == [], (
        "an old machine may still run it"
    )


LOST = "preempted: the machine is gone (n); x"
TAKEN = "preempted: the cloud takes this machine at 12:00:00 UTC (n); x"


@pytest.mark.parametrize(
    ("starts", "said", "run"),
    [
        (False, LOST, Run(0, NOW - 5, launched=True)),
        (True, LOST, Run(0, NOW - 31, launched=True)),
        # The run may have begun between the reading and the machine's end.
        (False, LOST, Run(0, NOW - 5, launched=False)),
        (False, LOST, Run(0, NOW - 500, launched=False)),
        # The run that was seen is not the lost one, or none was seen.
        (False, LOST, Run(1, NOW - 500, launched=True)),
        (False, LOST, None),
        # The run was seen, whatever the comment says.
        (False, SAID, Run(0, NOW - 5, launched=True)),
        (True, SAID, Run(0, NOW - 5, launched=False)),
        (True, SAID, None),
        (True, TAKEN, Run(0, NOW - 5, launched=True)),
        (True, TAKEN, None),
    ],
)
def test_no_job_starts_while_slurm_may_still_deliver_its_last_runs_script(
    starts: bool, said: str, run: Run | None
) -> None:
    expected = [JobChange(1, start_now=True)] if starts else []
    assert told(1, FREE, **PAUSED, admin_comment=said, run=run) == expected


def test_the_last_run_of_each_job_is_remembered_while_the_job_is_known() -> None:
    before = {1: Run(0, 10.0, launched=True), 2: Run(0, 20.0, launched=True), 3: Run(0, 30.0, launched=True)}
    jobs = [
        job(1, "PENDING", restarts=1),
        job(2, "CONFIGURING", restarts=1, start_time=99.0),
        job(4, "RUNNING", start_time=98.0),
        job(6, "SUSPENDED", start_time=96.0),
        # Slurm has no start time of the run yet.
        job(7, "CONFIGURING"),
        # The job is requeued already and has the number of its next run.
        job(5, "COMPLETING", restarts=1, start_time=97.0),
    ]
    assert runs(jobs, before) == {
        1: Run(0, 10.0, launched=True),
        2: Run(1, 99.0, launched=False),
        4: Run(0, 98.0, launched=True),
        6: Run(0, 96.0, launched=True),
    }


@pytest.mark.parametrize(
    "change",
    [{"eligible_time": NOW + 3600}, {"eligible_time": NOW - 1}, {"restarts": 0}, {"admin_comment": None},
     {"admin_comment": "be kind"}, {"reason": "Resources"}, {"state": "CONFIGURING"}],
    ids=str,
)  # fmt: skip
def test_a_begin_time_that_is_a_persons_is_kept(change: dict[str, Any]) -> None:
    waits: dict[str, Any] = {**PAUSED, "admin_comment": SAID, **change}
    assert not any(one.start_now for one in told(1, FREE, **waits))


def test_a_job_fits_if_there_are_enough_free_nodes() -> None:
    def fits(one: JobState) -> bool:
        return bool(fitting(one, {"debug": [FULL["debug"]]}, NOW))

    pending = job(1, "PENDING", reason="Resources", wanted_nodes=4)
    assert fits(pending)
    assert fits(dataclasses.replace(pending, reason="None")), "Slurm has not looked at it yet"
    assert not fits(dataclasses.replace(pending, wanted_nodes=5))
    assert not fits(dataclasses.replace(pending, reason="Dependency"))
    assert not fits(dataclasses.replace(pending, state="RUNNING"))
    assert fits(dataclasses.replace(pending, reason="BeginTime", eligible_time=NOW + 20))
    assert not fits(dataclasses.replace(pending, reason="BeginTime", eligible_time=NOW + 999))


# --- pools: a job gets its nodes from one of them -----------------------------------------------------------

DRY = Failure((), ErrorClass.CAPACITY, "Full", "none left")
WAITS = {"reason": "Resources", "wanted_nodes": 4}
SPOT, ONDEMAND = PartitionCapacity(2, DRY, pool="spot"), PartitionCapacity(3, QUOTA, pool="ondemand")


def told_of(*pools: PartitionCapacity, **job_: Any) -> list[JobChange]:
    return job_changes([job(1, "PENDING", **job_)], {"debug": pools}, {}, NOW)


def test_a_job_that_no_pool_can_hold_is_told_of_each() -> None:
    (change,) = told_of(SPOT, ONDEMAND, **WAITS)
    assert (
        change.comment
        == f"quota: spot: none left, ondemand: 4 of 8 (Code); {POLICIES[ErrorClass.QUOTA].advice}"
    )
    assert told_of(SPOT, ONDEMAND, **WAITS, admin_comment=change.comment) == []


def test_a_pool_that_is_too_small_for_the_job_does_not_keep_its_cause_from_it() -> None:
    small = PartitionCapacity(3, pool="small", most=3)
    (change,) = told_of(small, dataclasses.replace(ONDEMAND, most=8), **WAITS)
    assert change.comment is not None
    assert change.comment.startswith("quota: ondemand: 4 of 8 ")
    assert told_of(small, **WAITS) == []


def test_pools_do_not_add_up() -> None:
    """Two and three nodes are there, but a job of four gets its nodes from one pool."""
    assert not fitting(job(1, "PENDING", **WAITS), {"debug": [SPOT, ONDEMAND]}, NOW)
    three = job(1, "PENDING", reason="Resources", wanted_nodes=3)
    assert fitting(three, {"debug": [SPOT, ONDEMAND]}, NOW) == [ONDEMAND]


def test_a_job_for_which_another_pool_is_open_is_told_nothing() -> None:
    assert told_of(SPOT, PartitionCapacity(4, pool="ondemand"), **WAITS) == []


@pytest.mark.parametrize("reason", NOT_AVAILABLE)
def test_a_job_that_is_bound_to_a_dry_pool_is_told_its_cause(reason: str) -> None:
    """As with `--constraint=spot`: Slurm says that all nodes which the job could use are out of service."""
    (change,) = told_of(SPOT, PartitionCapacity(4, pool="ondemand"), reason=reason, wanted_nodes=4)
    assert change.comment == "capacity: spot: none left (Full); it is tried again by itself"


def test_a_pool_that_is_held_for_an_earlier_one_is_not_named() -> None:
    wrong = Failure((), ErrorClass.CONFIG, "Bad", "no such image")
    held = dataclasses.replace(wrong, message="spot: no such image")
    pools = PartitionCapacity(0, wrong, pool="spot"), PartitionCapacity(0, held, pool="ondemand")
    (change,) = told_of(*pools, **WAITS)
    assert change.comment is not None
    assert change.comment.startswith("config: spot: no such image (Bad); ")
