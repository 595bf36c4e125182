"""What is read of the output of Slurm's programs, field by field, and who chooses it.

Users choose more than names and comments. Slurm keeps any byte but NUL in the type of a generic resource,
also of a job that it refuses; the host of a submitter is what the submitting program sends; a user's name is
what a name service gives. So every field has its kind here, and no other is read.

| what is asked | its fields | what tells them apart |
|---|---|---|
| `squeue --Format`, by `Control` | `JOB` to `STARTED` | marks that nobody can know |
| `squeue --format`, by lines for a login machine | `LISTED`, `ACCOUNTED` | the same |
| `sacct --format`, by `node.billing.job_runs` | `RECORDED` | marks that nobody can know |
| `scontrol show nodes`, `… partitions`, `… reservations` | `NODE` to `RESERVATION` | spaces and lines |
| `scontrol show config` | NEXT_JOB_ID, FirstJobId: numbers | lines |
| `scontrol ping`, `sacctmgr show cluster` | Slurm's own words | lines |
| `squeue --Format` of the job that asks itself, `sbatch --parsable` | a number | nothing else is there |
| SLURM_RESUME_FILE | numbers, names of nodes, texts | JSON |

Where spaces and lines tell apart, only administrators and root of a machine write texts. There an object or a
field that occurs twice refuses the answer. `tests/test_slurm_programs.py` holds the table to all that ask.

Slurm's traps (docs/internals/slurm_traps.md): any-byte, hidden-tasks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType

MOST_DIGITS = 20


class Kind(Enum):
    """Who chooses what a field holds, and the pattern of it. Words and names have no space in them."""

    NUMBER = ("a number", rf"[0-9]{{1,{MOST_DIGITS}}}")
    WORD = ("one of Slurm's own words, in which numbers and names of nodes may be", r"[!-~]*")
    NAME = ("names of the stack file's nodes, which slurmctld has looked up", r"[!-~]*")
    TEXT = ("what users, administrators, machines or name services choose", r"(?s:.*)")

    def __init__(self, what: str, pattern: str) -> None:
        self.what = what
        self._matches = re.compile(pattern).fullmatch

    def check(self, value: str) -> str:
        """Return the value, if it is of this kind.

        Raises:
            ValueError: It is not: this is no field of Slurm's.
        """
        if not self._matches(value):
            raise ValueError(f"{value[:200]!r} is not {self.what}")
        return value


Fields = Mapping[str, Kind]
"""The fields of a reading, in their order."""


def _fields(**kinds: Kind) -> Fields:
    return MappingProxyType(kinds)


_NUMBER, _WORD, _NAME, _TEXT = Kind.NUMBER, Kind.WORD, Kind.NAME, Kind.TEXT

JOB = _fields(
    arrayjobid=_NUMBER,
    arraytaskid=_WORD,  # 3, 0-9%2, N/A
    hetjobid=_WORD,  # a number, N/A
    state=_WORD,
    # What slurmctld writes itself here may have the name of a reservation.
    reason=_TEXT,
    reasonlist=_TEXT,
    # Administrators make partitions with scontrol, too.
    partition=_TEXT,
    username=_TEXT,
    nodelist=_NAME,
    numnodes=_WORD,  # 2, 2-4
    # Of a job without a script it is what the submitting program sends as its host.
    batchhost=_TEXT,
    requeue=_WORD,
    restartcnt=_NUMBER,
    prioritylong=_NUMBER,
    submittime=_WORD,
    eligibletime=_WORD,
    starttime=_WORD,
    endtime=_WORD,
    exit_code=_WORD,  # a wait status, 1:0
)
"""The fields of squeue that decide, after the job's id."""
HOLDING = _fields(arraytaskid=_WORD, state=_WORD, nodelist=_NAME)
"""The fields of squeue that tell whether a job holds nodes and does not end."""
JOB_TEXTS = _fields(name=_TEXT, comment=_TEXT, admin_comment=_TEXT)
"""The fields of squeue that hold what somebody has written."""
JOB_DETAILS = _fields(reservation=_TEXT, timeused=_WORD, timelimit=_WORD)
"""The fields of squeue that only people ask for: `with_details`."""
# These two may be long (128 KiB of dependencies), and squeue repeats them for each task of an array. So they
# are read without --array, and only where they are needed.
REQUIRED_NODES = _fields(arraytaskid=_WORD, reqnodes=_TEXT)
DEPENDENCY = _fields(arraytaskid=_WORD, dependency=_TEXT)
OUTPUT = _fields(
    arrayjobid=_NUMBER,
    arraytaskid=_WORD,
    userid=_NUMBER,
    username=_TEXT,
    batchflag=_WORD,
    batchhost=_TEXT,
    name=_TEXT,
    stdout=_TEXT,
    stderr=_TEXT,
    # From 25.11 on a path is as the user has written it: below this folder, if it is relative.
    workdir=_TEXT,
)
"""The fields of squeue that tell where a batch job writes, and as whom."""
STARTED = _fields(**OUTPUT, state=_WORD, starttime=_WORD)
"""The same, with what tells whether a job has begun."""
OWNERS = _fields(username=_TEXT, account=_TEXT, qos=_TEXT)
"""The fields of squeue that tell to whom a job is booked."""
LISTED = MappingProxyType(
    {
        **{"%i": _WORD, "%u": _TEXT, "%P": _TEXT, "%N": _NAME, "%T": _WORD, "%n": _TEXT, "%j": _TEXT},
        # The times: so far, of the start and of the end.
        **{"%M": _WORD, "%S": _WORD, "%e": _WORD},
        **{"%a": _TEXT, "%q": _TEXT},
    }
)
"""The fields of `squeue --format` in the lines for a login machine."""
ACCOUNTED = MappingProxyType({"%i": _WORD, "%u": _TEXT, "%a": _TEXT, "%q": _TEXT, "%N": _NAME})
"""The fields of those lines that tell which account and QOS a job names, and whether it has nodes."""
RECORDED = _fields(
    jobid=_WORD,  # 12, 12_3, 12+1
    user=_TEXT,
    account=_TEXT,
    start=_WORD,  # seconds, Unknown, None
    end=_WORD,
    state=_TEXT,  # CANCELLED by 1000
    nodelist=_TEXT,  # None assigned
    alloctres=_WORD,  # billing=2,cpu=2,gres/gpu=1,mem=100M,node=1
)
"""The fields of sacct: a record for each run of a job."""
NODE = _fields(
    NodeName=_NAME,
    State=_WORD,
    CPUAlloc=_NUMBER,
    CPUTot=_NUMBER,
    CpuBind=_WORD,
    AvailableFeatures=_TEXT,
    Gres=_WORD,
    GresUsed=_WORD,
    NodeAddr=_TEXT,
    NodeHostName=_TEXT,
    Version=_TEXT,
    Weight=_NUMBER,
    Partitions=_TEXT,
    BootTime=_WORD,
    SlurmdStartTime=_WORD,
    LastBusyTime=_WORD,
    NextState=_WORD,
)
"""The keys of `scontrol show nodes`. The reason, which is a text too, is what `Reason=` begins."""
PARTITION = _fields(PartitionName=_TEXT, State=_WORD)
"""The keys of `scontrol show partitions`."""
RESERVATION = _fields(
    ReservationName=_TEXT,
    StartTime=_NUMBER,
    EndTime=_NUMBER,
    Nodes=_NAME,
    Flags=_WORD,
    Users=_TEXT,
    Groups=_TEXT,
    Accounts=_TEXT,
)
"""The keys of `scontrol show reservations`."""
