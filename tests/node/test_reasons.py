"""Slurm's reasons for waiting in plain words, and what reservations mean for jobs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from node.slurm.reasons import cure, in_words, meaning_of
from node.slurm.reservations import Reservation, advice, clock
from node.slurm.states import JobState
from tests.support.doubles import job

LIBRARY = Path("/usr/lib/x86_64-linux-gnu/slurm-wlm/libslurmfull.so")
"""Slurm's own library, which has all of its reasons as texts."""
# The reasons of squeue(1), Slurm 22.05 to 24.11, with what they must say.
TOLD = {
    "Resources": "other jobs hold",
    "Priority": "jobs before it",
    "Dependency": "has not ended",
    "DependencyNeverSatisfied": "scancel",
    "BeginTime": "begin time",
    "JobHeldUser": "scontrol release",
    "JobHeldAdmin": "scontrol release",
    "JobHoldMaxRequeue": "scontrol release",
    "JobArrayTaskLimit": "as many tasks",
    "PartitionDown": "starts none",
    "PartitionInactive": "takes no jobs",
    "PartitionTimeLimit": "more time",
    "PartitionNodeLimit": "more nodes",
    "PartitionConfig": "than its partition has",
    "ReqNodeNotAvail": "out of service",
    "ReqNodeNotAvail, UnavailableNodes:debug-1": "out of service",
    "ReqNodeNotAvail, May be reserved for other job": "are reserved",
    "ReqNodeNotAvail, Reserved for maintenance": "reserved for maintenance",
    "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions": "reserved",
    "Reservation": "has not begun",
    "Reservation old was deleted": "release",
    "Licenses": "licenses",
    "BadConstraints": "can ever have",
    "InvalidAccount": "account=NAME",
    "InvalidQOS": "qos=NAME",
    "AccountNotAllowed": "account",
    "QOSNotAllowed": "quality of service",
    "NodeDown": "is down",
    "Cleaning": "cleans up",
    "Prolog": "prolog",
    "DeadLine": "deadline",
    "launch failed requeued held": "scontrol release",
    "job requeued in held state": "scontrol release",
    "job requeued in special exit state": "scontrol release",
    "Reservation rr was deleted": "scontrol release",
    "Reservation rr is invalid": "reservationname=",
    "AssocGrpCpuLimit": "wait for the end",
    "AssocGrpNodeRunMinutes": "wait for the end",
    "AssocGrpCPUMinutesLimit": "is used up",
    "QOSGrpGRESMinutes": "is used up",
    "QOSGrpWallLimit": "is used up",
    "AssocMaxJobsLimit": "wait for the end",
    "AssocMaxWallDurationPerJobLimit": "ask for less",
    "AssocMaxGRESPerNode": "ask for less",
    "AssociationJobLimit": "wait for the end",
    "QOSGrpGRES": "wait for the end",
    "QOSMaxJobsPerUserLimit": "wait for the end",
    "QOSMaxCpuMinutesPerJobLimit": "allows a job",
    "QOSMinCpuNotSatisfied": "ask for more",
    "QOSUsageThreshold": "limit",
    "MaxGRESPerAccount": "limit",
}


@pytest.mark.parametrize("reason", TOLD)
def test_a_reason_stands_first_and_its_meaning_follows(reason: str) -> None:
    text = in_words(reason)
    assert text.startswith(f"{reason}: ")
    assert TOLD[reason] in text.removeprefix(reason)


@pytest.mark.parametrize(
    "cause",
    ["PowerReserved", "FrontEndDown", "quota: 2 of 2 (Code); ask for more", "Resources of a kind", "7"],
)
def test_any_other_word_of_slurms_stands_as_it_is(cause: str) -> None:
    assert in_words(cause) == cause
    assert in_words(cause, "more") == f"{cause}: more"


RELEASES = json.loads((Path(__file__).parent / "data" / "slurm-reasons.json").read_text())
"""The reasons that the libraries of three releases have (tools/slurm_reasons.py)."""
OF_ENDED = {
    *("InactiveLimit", "JobLaunchFailure", "None", "NonZeroExitCode", "OutOfMemory", "RaisedSignal"),
    *("SystemFailure", "TimeLimit"),
}
"""Words of jobs that have ended, or of none."""
NEVER_SAID = {
    # Slurm says sentences of these two: "Reservation rr was deleted".
    *("ReservationDeleted", "ReservationInvalid"),
    # They belong to machines that Slurm no longer knows (Blue Gene, front ends), or to no reason.
    *("BlockFreeAction", "BlockMaxError", "FrontEndDown", "InvaildReason", "InvalidReason"),
    *("PowerNotAvail", "PowerReserved"),
}


@pytest.mark.parametrize("release", RELEASES)
def test_every_reason_of_waiting_has_a_sentence(release: str) -> None:
    assert len(RELEASES[release]) > 190
    untold = {word for word in RELEASES[release] if meaning_of(word) is None}
    assert untold - OF_ENDED - NEVER_SAID == set()


@pytest.mark.skipif(not LIBRARY.exists(), reason="needs Slurm's library")
def test_each_limit_that_slurm_knows_is_explained() -> None:
    library = LIBRARY.read_bytes()
    words = {text.decode() for text in re.findall(rb"(?<=\0)[A-Za-z]{6,40}(?=\0)", library)}
    kinds = re.compile(r"(Assoc|QOS)(Grp|Max|Min)[A-Z]\w+|Max[A-Z]\w+PerAccount")
    limits = {word for word in words if kinds.fullmatch(word)}
    assert len(limits) > 100
    assert {word for word in limits if meaning_of(word) is None} == set()
    unknown = {word for word in TOLD if word.isalpha() and f"{word}\0".encode() not in library}
    assert unknown == set(), "words that Slurm does not have"


@pytest.mark.parametrize(
    ("changes", "cure_of_it"),
    [
        ({"state": "SPECIAL_EXIT", "reason": "job requeued in held state"}, "`scontrol release 7`"),
        ({"state": "RESV_DEL_HOLD", "reason": "Reservation rr was deleted"}, "`scontrol release 7`"),
        ({"reason": "JobHeldUser", "array_job": 7, "array_task": "3-9%2"}, "`scontrol release 7_[3-9]`"),
        ({"reason": "Dependency"}, "it is held: `scontrol release 7` lets it go"),
        # Its release changes nothing, or is told already.
        ({"reason": "BadConstraints"}, None),
        ({"admin_comment": "preempted: x; it is held: `scontrol release 7` lets it go"}, None),
        # Slurm keeps the word of one that was released.
        ({"state": "RESV_DEL_HOLD", "reason": "BeginTime", "priority": 5}, None),
        ({"state": "SUSPENDED", "nodes": ("debug-0",)}, None),
    ],
)
def test_a_held_job_has_the_command_that_frees_it(changes: dict[str, Any], cure_of_it: str | None) -> None:
    held = {"state": "PENDING", "priority": 0, **changes}
    assert cure(job(7, held.pop("state"), **held), None) == cure_of_it


def test_what_a_reservation_means_comes_before_the_release() -> None:
    held = job(7, "PENDING", reason="JobHeldUser", priority=0)
    assert cure(held, "there is no reservation rr any more") == (
        "there is no reservation rr any more; `scontrol release 7`"
    )


# --- reservations ----------------------------------------------------------------------------------------

NOW = 1_000_000.0
NODES = frozenset({"debug-0", "debug-1", "debug-2"})
FIX = Reservation("fix", NOW - 60, NOW + 3600, ("debug-0",), frozenset({"MAINT"}), "root")
LATER = Reservation("later", NOW + 1800, NOW + 9000, ("debug-1", "debug-2"), frozenset(), "ada,bob")
RESERVED = "May be reserved for other job"


def waits(reason: str = "ReqNodeNotAvail", explanation: str | None = None, **changes: Any) -> JobState:
    return job(7, "PENDING", reason=reason, explanation=explanation, **changes)


def test_who_waits_for_a_reservation_is_told_which_until_when_and_what_helps() -> None:
    reserved = waits(explanation=f"ReqNodeNotAvail, {RESERVED}", time_limit=7200.0)
    held = advice(reserved, [LATER, FIX], NODES, NOW)
    assert held is not None
    assert held.startswith(
        f"fix keeps its nodes for maintenance until {clock(FIX.end)}; later keeps its nodes"
    )
    assert f"for jobs of ada,bob from {clock(LATER.start)} until {clock(LATER.end)}; " in held
    assert held.endswith("other nodes or fewer, or an end of the reservation, let it start before")

    named = advice(waits(time_limit=7200.0, required_nodes=("debug-1",)), [LATER, FIX], NODES, NOW)
    assert named is not None
    assert "fix" not in named
    assert named.endswith("`scontrol update jobid=7 timelimit=29` lets it end before later, and start now")

    own = advice(waits("Reservation", reservation="later"), [LATER, FIX], NODES, NOW)
    assert own == (
        f"later lasts from {clock(LATER.start)} until {clock(LATER.end)}; "
        "`scontrol update jobid=7 reservationname=` lets it start outside of it"
    )
    gone = advice(waits("Reservation old was deleted", reservation="old"), [LATER], NODES, NOW)
    assert gone is not None
    assert gone.startswith("there is no reservation old any more: ")


@pytest.mark.parametrize(
    ("found", "reserved"),
    [
        (waits("Dependency"), [FIX]),
        (waits("BeginTime"), [FIX]),
        (waits("Resources"), []),
        # It ends before the reservation begins, which is of other nodes than these otherwise.
        (waits("Resources", time_limit=600.0), [LATER]),
        (waits("Resources", required_nodes=("debug-1",)), [FIX]),
        (waits(explanation="ReqNodeNotAvail, UnavailableNodes:debug-2"), [FIX]),
        (waits("Resources"), [Reservation("over", NOW - 99, NOW - 9, ("debug-0",))]),
        (waits("Resources"), [Reservation("elsewhere", NOW - 99, NOW + 9, ("gpu-0",))]),
        (waits("Priority", reservation="later"), [LATER]),
        (job(7, "RUNNING", reservation="later"), [LATER]),
    ],
)
def test_a_reservation_that_is_not_why_is_not_named(found: JobState, reserved: list[Reservation]) -> None:
    assert advice(found, reserved, NODES, NOW) is None
