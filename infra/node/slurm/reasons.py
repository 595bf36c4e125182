"""Slurm's words for why a job waits, as sentences."""

from __future__ import annotations

WORDS = {
    "Resources": "other jobs hold the nodes that it needs",
    "Priority": "jobs before it come first",
    "Dependency": "the job that it depends on is not over",
    "DependencyNeverSatisfied": "the job that it depends on failed, so it never runs: scancel it",
    "BeginTime": "not before its begin time; a job that was queued again pauses for half a minute",
    "JobHeldUser": "somebody held it: scontrol release lets it go",
    "JobHeldAdmin": "somebody held it: scontrol release lets it go",
    "JobArrayTaskLimit": "as many tasks of its array run as it allows",
    "PartitionConfig": "it asks for more than its partition has",
    "PartitionNodeLimit": "it asks for more nodes than its partition has",
    "PartitionTimeLimit": "it asks for more time than its partition allows",
    "PartitionDown": "its partition takes no jobs",
    "PartitionInactive": "its partition takes no jobs",
    "BadConstraints": "no node can ever have what it asks for",
    "ReqNodeNotAvail": "a node that it asks for by name is out of service",
    "NodeDown": "a node that it needs is down",
    "Cleaning": "what is left of its last start is being cleared away",
    "Reservation": "its reservation has not begun",
    "Prolog": "what is to be done before its start is not done",
    "launch failed requeued held": "nodes refused to start it; mend that, then scontrol release lets it go",
}


def in_words(cause: str | None) -> str:
    """A pending job's cause (`JobState.cause`) for a person; what Slurm or we said as a sentence stays.

    Slurm's own word is kept in front of ours: it is what its manual explains.
    """
    if not cause:
        return "the scheduler has not looked at it yet"
    word = cause.partition(",")[0]
    return f"{cause}: {WORDS[word]}" if word in WORDS else cause
