"""Sentences for Slurm's reasons for which a job waits."""

from __future__ import annotations

import re

from node.slurm.states import JobState

_HELD = "it is held: scontrol release lets it go"
_LIMIT = "a limit of Slurm's accounting (sacctmgr) keeps it: wait for the end of other jobs, or ask for less"
_PER_JOB = (
    "it asks for more than Slurm's accounting (sacctmgr) allows a job: ask for less, by scontrol update"
)
_USED_UP = "what Slurm's accounting (sacctmgr) lets its account or QOS use is used up: ask who administers it"
EXPLANATIONS = {
    "Resources": "other jobs hold the nodes that it needs",
    "Priority": "jobs before it come first",
    "Dependency": "the job that it depends on has not ended",
    "DependencyNeverSatisfied": "the job that it depends on failed, so it never runs: scancel it",
    "BeginTime": "its begin time is later; a job that was queued again waits for half a minute",
    "JobHeldUser": _HELD,
    "JobHeldAdmin": _HELD,
    "JobHoldMaxRequeue": "it was queued again too often: repair that, then scontrol release lets it go",
    "JobArrayTaskLimit": "its array already runs as many tasks as it allows",
    "PartitionConfig": "it asks for more than its partition has",
    "PartitionNodeLimit": "it asks for more nodes than its partition has",
    "PartitionTimeLimit": "it asks for more time than its partition allows",
    "PartitionDown": "its partition takes jobs and starts none, by hand or while `up` changes it",
    "PartitionInactive": "its partition takes no jobs and starts none, by hand",
    "AccountNotAllowed": "its partition does not take its account's jobs",
    "QOSNotAllowed": "its partition does not take jobs of its quality of service",
    "BadConstraints": "no node can ever have what it asks for",
    "ReqNodeNotAvail": "a node that it asks for by name is out of service",
    "Nodes required for job are DOWN": "nodes that it needs are out of service or reserved",
    "NodeDown": "a node that it needs is down",
    "Cleaning": "Slurm cleans up after its last start",
    "Reservation": "its reservation has not begun, or others hold its nodes",
    "Licenses": "other jobs have the licenses that it needs",
    "InvalidAccount": "its user does not have its account any more: scontrol update jobid=N account=NAME",
    "InvalidQOS": "its user does not have its quality of service any more: scontrol update jobid=N qos=NAME",
    "DeadLine": "it cannot end before its deadline, so it never runs: scancel it",
    "Prolog": "the prolog before its start has not ended",
    "launch failed requeued held": "nodes refused to start it; repair that, then scontrol release lets it go",
    "job requeued in held state": _HELD,
}
"""Slurm's reason, up to a comma -> what it means and, where there is one, the cure."""
PATTERNS = (
    # Slurm has a reason for each limit of an association or a quality of service and each resource.
    (re.compile(r"(Assoc|QOS)Max\w+Per(Job|Node)(Limit)?"), _PER_JOB),
    (re.compile(r"QOSMin\w+"), "it asks for less than its quality of service wants: ask for more"),
    # Minutes of jobs that run ("RunMinutes") come back, those that were used do not.
    (re.compile(r"(Assoc|QOS)Grp((?!\w*Run)\w*Minutes(Limit)?|WallLimit)"), _USED_UP),
    (re.compile(r"(Assoc|QOS)(Grp|Max)\w+|(Association|QOS)(Job|Resource|Time)Limit"), _LIMIT),
    (re.compile(r"Max\w+Per(Account|User)|QOSUsageThreshold"), _LIMIT),
    (re.compile(r"AccountingPolicy"), _LIMIT),
    (
        re.compile(r"MaxPoweredUpNodes"),
        "the cluster has as many nodes up as it may: it starts when others are off",
    ),
    (re.compile(r"MpiPortsBusy"), "other jobs hold the ports for MPI that it needs"),
    (
        re.compile(r"MaxMemPerLimit"),
        "it asks for more memory than its partition or the cluster allows: ask for less",
    ),
    (
        re.compile(r"Constraints"),
        "no node has all that it asks for at present (--extra, --prefer): it starts when one has",
    ),
    (
        re.compile(r"SchedDefer"),
        "Slurm starts no job when it comes (SchedulerParameters=defer), but in a moment",
    ),
    (re.compile(r"NvidiaImexChannels"), "other jobs hold the channels of NVIDIA's IMEX that it needs"),
    (re.compile(r"FedJobLock"), "another cluster of Slurm's federation is about to start it"),
    (re.compile(r"BurstBufferResources"), "other jobs hold the burst buffer that it needs"),
    (re.compile(r"BurstBufferStageIn"), "its files are copied into the burst buffer"),
    (re.compile(r"BurstBufferOperation"), "its burst buffer failed: its comment says why, and it stays"),
    (re.compile(r"job requeued in special exit state"), _HELD),
    # Slurm's sentences for RESV_DEL_HOLD, with the reservation's name.
    (re.compile(r"Reservation .+ was deleted"), "it is held: scontrol release lets it start without one"),
    (
        re.compile(r"Reservation .+ is invalid"),
        "it is held: after scontrol update jobid=N reservationname=, scontrol release lets it start",
    ),
)
"""Kinds of reasons -> the same."""
AFTER_THE_COMMA = {
    "May be reserved for other job": "nodes that it needs are reserved",
    "Reserved for maintenance": "nodes that it needs are reserved for maintenance",
}
"""The second half of ReqNodeNotAvail -> what it means. Slurm then says it of jobs that name no node, too."""


def in_words(cause: str | None, advice: str | None = None) -> str:
    """Return a pending job's cause (`JobState.cause`) as a sentence for users.

    A cause that is a sentence already, or that is not known here, stays as it is. Slurm's own term comes
    first, because its manual explains it.

    Args:
        advice: What lets it start (`cure`).
    """
    if not cause:
        return "the scheduler has not looked at it yet"
    meaning = meaning_of(cause)
    text = f"{cause}: {meaning}" if meaning else cause
    return f"{text}: {advice}" if advice else text


def cure(job: JobState, reservation: str | None = None) -> str | None:
    """Return what lets a waiting job start, if anything does.

    Args:
        reservation: What reservations mean for the job (`node.slurm.reservations.advice`).
    """
    return "; ".join(filter(None, (reservation, _release(job)))) or None


def _release(job: JobState) -> str | None:
    """Return the command that lets a held job go. `None` if it is not held, or if that is no cure."""
    # The hold of BadConstraints ends with a change of what the job asks for.
    if not job.is_pending or not job.is_held or job.reason == "BadConstraints":
        return None
    command = f"`scontrol release {job.spelling}`"
    cause = job.cause or ""
    if command in cause:
        return None
    return command if "release" in (meaning_of(cause) or "") else f"it is held: {command} lets it go"


def meaning_of(cause: str) -> str | None:
    """Return what a cause of Slurm's means; `None` if it is none of those that are known here."""
    word, _, rest = cause.partition(",")
    if (meaning := AFTER_THE_COMMA.get(rest.strip())) is not None:
        return meaning
    if word in EXPLANATIONS:
        return EXPLANATIONS[word]
    return next((meaning for pattern, meaning in PATTERNS if pattern.fullmatch(word)), None)
