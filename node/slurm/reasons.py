"""Sentences for Slurm's reasons for which a job waits."""

from __future__ import annotations

EXPLANATIONS = {
    "Resources": "other jobs hold the nodes that it needs",
    "Priority": "jobs before it come first",
    "Dependency": "the job that it depends on has not ended",
    "DependencyNeverSatisfied": "the job that it depends on failed, so it never runs: scancel it",
    "BeginTime": "its begin time is later; a job that was queued again waits for half a minute",
    "JobHeldUser": "it is held: scontrol release lets it go",
    "JobHeldAdmin": "it is held: scontrol release lets it go",
    "JobArrayTaskLimit": "its array already runs as many tasks as it allows",
    "PartitionConfig": "it asks for more than its partition has",
    "PartitionNodeLimit": "it asks for more nodes than its partition has",
    "PartitionTimeLimit": "it asks for more time than its partition allows",
    "PartitionDown": "its partition takes no jobs",
    "PartitionInactive": "its partition takes no jobs",
    "BadConstraints": "no node can ever have what it asks for",
    "ReqNodeNotAvail": "a node that it asks for by name is out of service",
    "NodeDown": "a node that it needs is down",
    "Cleaning": "Slurm cleans up after its last start",
    "Reservation": "its reservation has not begun",
    "Prolog": "the prolog before its start has not ended",
    "launch failed requeued held": "nodes refused to start it; repair that, then scontrol release lets it go",
}


def in_words(cause: str | None) -> str:
    """Returns a pending job's cause (`JobState.cause`) as a sentence for users.

    A cause that is a sentence already stays as it is. Slurm's own term comes first, because its manual
    explains it.
    """
    if not cause:
        return "the scheduler has not looked at it yet"
    word = cause.partition(",")[0]
    return f"{cause}: {EXPLANATIONS[word]}" if word in EXPLANATIONS else cause
