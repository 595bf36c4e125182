"""What the word means that Slurm shows as a job's state. Every reader of jobs asks here, and knows no word.

Slurm keeps a base state and flags, and shows one word: a flag's, if one is set that has a word. So a job that
is PENDING may show RESV_DEL_HOLD, and `squeue --states=PENDING`, which compares the base and all flags,
leaves it out. We therefore ask squeue for no states, or for all of them, and decide by the word.

Only the words of an end say that a job is over. Every other one, also one that we do not know, is that of a
job that holds nodes or wants some, so nothing may end it unasked.

`tests/data/slurm_job_states.json` has all words of the releases, and `tests/test_job_states.py` holds that no
other module compares any.

Slurm's traps (docs/internals/slurm_traps.md): job-words.
"""

from __future__ import annotations

from enum import Enum

PENDING = "PENDING"
CONFIGURING = "CONFIGURING"
RUNNING = "RUNNING"
CANCELLED = "CANCELLED"
FAILED = "FAILED"
NODE_FAIL = "NODE_FAIL"
BOOT_FAIL = "BOOT_FAIL"
DEADLINE = "DEADLINE"
TIMEOUT = "TIMEOUT"
PREEMPTED = "PREEMPTED"
OUT_OF_MEMORY = "OUT_OF_MEMORY"


class Phase(Enum):
    """What a job does."""

    WAITING = "waits"
    """It has no nodes, and wants some: now, or when it is released."""
    STARTING = "starts"
    """It holds nodes that are not ready for it yet."""
    RUNNING = "runs"
    """It holds nodes, and has begun. It may be suspended or stopped."""
    STAGING_OUT = "stages out"
    """Its script has ended, and Slurm copies its files (burst buffers)."""
    COMPLETING = "completes"
    """Its script has ended, and Slurm cleans up its nodes."""
    OVER = "over"
    """It has ended, and will not run again."""

    @property
    def holds_nodes(self) -> bool:
        return self not in (Phase.WAITING, Phase.OVER)

    @property
    def has_work(self) -> bool:
        """Whether the job holds nodes and does not end, so that it may be requeued."""
        return self in (Phase.STARTING, Phase.RUNNING)


_WORDS = {
    Phase.WAITING: (
        PENDING,
        # Held: its reservation ended. It keeps the word when it is released, until it runs.
        "RESV_DEL_HOLD",
        # Held: requeued by `scontrol requeuehold`, RequeueExitHold, or too many failed starts.
        "SPECIAL_EXIT",
        "REQUEUE_HOLD",
    ),
    Phase.STARTING: (CONFIGURING, "POWER_UP_NODE"),
    Phase.RUNNING: (
        RUNNING,
        "SUSPENDED",
        "STOPPED",
        # A SIGSTOP or SIGCONT is on its way, for as long as a node of the job does not answer.
        "SIGNALING",
        "RESIZING",
    ),
    Phase.STAGING_OUT: ("STAGE_OUT",),
    Phase.COMPLETING: ("COMPLETING",),
    Phase.OVER: (
        "COMPLETED",
        CANCELLED,
        FAILED,
        TIMEOUT,
        NODE_FAIL,
        PREEMPTED,
        BOOT_FAIL,
        DEADLINE,
        OUT_OF_MEMORY,
        # The job runs, or has ended, on another cluster of a federation: it wants no nodes of this one.
        "REVOKED",
    ),
}
_RAN = ("COMPLETED", FAILED, TIMEOUT, PREEMPTED, OUT_OF_MEMORY)
_PHASES = {word: phase for phase, words in _WORDS.items() for word in words}


def phase(word: str, *, nodes: bool) -> Phase:
    """Return what a job does.

    Flags that hide more than one base state, such as REQUEUED, REQUEUE_FED and EXPEDITING, are not in the
    table: whether the job has nodes tells. The same holds for a word of a release to come.

    Args:
        word: The job's state as squeue shows it in its long form.
        nodes: Whether squeue shows nodes of the job.
    """
    return _PHASES.get(word, Phase.RUNNING if nodes else Phase.WAITING)


def surely_ran(word: str) -> bool:
    """Return whether a job with this state in the accounting has begun its script on its nodes.

    Other ends tell nothing: a job that was cancelled, queued again or lost its node may have waited for the
    node all the time.
    """
    return word in _RAN


def holding_line(jobs: str) -> str:
    """Return a shell pipe that prints the ids of the jobs that hold nodes (`phase`), one on a line.

    Args:
        jobs: A shell word that gives lines `id|word|nodes`.
    """
    known, idle = (
        "|".join(word for word, meant in _PHASES.items() if meant.holds_nodes is holds)
        for holds in (True, False)
    )
    return (
        f"printf '%s\\n' {jobs} | grep -vE '^[^|]*[|]({idle})[|]' | "
        f"grep -E '^[^|]*[|](({known})[|]|[^|]*[|].)' | cut -d'|' -f1"
    )
