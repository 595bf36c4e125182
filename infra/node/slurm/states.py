"""What Slurm says of its nodes and jobs: pure parsers of its clients' text, for 22.05, 23.11 and 24.11.

All times are seconds since 1970, because the clients are run with SLURM_TIME_FORMAT=%s (`Control` does);
None where Slurm has none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from infra.node.slurm.hostlist import expand, fold

_OFF = frozenset({"POWERED_DOWN", "POWERING_DOWN"})
_BROKEN = frozenset({"DOWN", "ERROR", "FUTURE", "UNKNOWN"})
# Registered, but not to be counted on: silent, restarting, or with less than its node line says.
_UNFIT = frozenset({"NOT_RESPONDING", "REBOOT_ISSUED", "INVALID_REG", "FAIL"})


@dataclass(frozen=True, slots=True)
class NodeState:
    """A node as slurmctld has it.

    Attributes:
        base: IDLE, ALLOCATED, MIXED, DOWN, UNKNOWN, ERROR or FUTURE.
        flags: the rest of the state: CLOUD, POWERED_DOWN, POWERING_UP, NOT_RESPONDING, DRAIN, …
        reason: what somebody or Slurm gave for its being down, drained or powered down; it may be old.
        reason_user: who gave it.
        boot_time: when the node's machine started, as its slurmd told at registration.
        slurmd_start_time: when that slurmd started.
        cpus_alloc: CPUs that jobs hold, those of a job that waits for the node too.
    """

    name: str
    base: str
    flags: frozenset[str] = frozenset()
    reason: str | None = None
    reason_user: str | None = None
    reason_time: float | None = None
    boot_time: float | None = None
    slurmd_start_time: float | None = None
    last_busy_time: float | None = None
    cpus_alloc: int = 0
    cpus: int = 0
    partitions: tuple[str, ...] = ()
    address: str = ""
    hostname: str = ""
    gres: str | None = None
    version: str | None = None

    @property
    def is_up(self) -> bool:
        """Registered and answering: a job that holds it runs. (A drained node is up; it takes no new job.)"""
        # POWER_UP alone does not count: a node that was asked for twice keeps the flag while it is up.
        return (
            self.base not in _BROKEN
            and not self.flags & (_OFF | _UNFIT | {"POWERING_UP"})
            and not self.is_powering_down
        )

    @property
    def is_powering_up(self) -> bool:
        """Asked for, and not yet registered."""
        return "POWERING_UP" in self.flags or {"POWER_UP", "POWERED_DOWN"} <= self.flags

    @property
    def is_powered_down(self) -> bool:
        """Off, and not asked for; a job may hold it already, for the second until ResumeProgram is called."""
        return "POWERED_DOWN" in self.flags and not self.is_powering_up and not self.is_powering_down

    @property
    def is_powering_down(self) -> bool:
        """Being given back: SuspendProgram was called, or will be as soon as the node is free."""
        return "POWERING_DOWN" in self.flags or ("POWER_DOWN" in self.flags and not self.has_job)

    @property
    def is_down(self) -> bool:
        """DOWN (it failed, or somebody said so), whatever its power state."""
        return self.base in _BROKEN

    @property
    def is_silent(self) -> bool:
        """It was up and does not answer any more."""
        return "NOT_RESPONDING" in self.flags and not self.is_powering_up and not self.flags & _OFF

    @property
    def is_drained(self) -> bool:
        """Takes no new job: DRAIN, whether or not a job still runs."""
        return "DRAIN" in self.flags

    @property
    def has_job(self) -> bool:
        """A job holds it, starting and ending ones too."""
        return self.base in ("ALLOCATED", "MIXED") or "COMPLETING" in self.flags


@dataclass(frozen=True, slots=True)
class JobState:
    """A job, a task of an array, or a pending array, as slurmctld has it.

    Attributes:
        id: unique, of an array's task too.
        array_job: the array's id, None outside of an array.
        array_task: the task's index, or of a pending array its indices (`3-9`).
        het_job: the heterogeneous job's id, None for others.
        state: PENDING, CONFIGURING, RUNNING, COMPLETING, COMPLETED, CANCELLED, FAILED, NODE_FAIL, TIMEOUT, …
        reason: Slurm's word for why it waits or ended: None (the text), Resources, BeginTime, JobHeldUser, …
        explanation: the reason as a sentence where Slurm has one.
        nodes: those that it holds or held.
        wanted_nodes: their number; for a pending job what it asks for.
        restarts: how often it was requeued.
        eligible_time: when it may start at the earliest; a requeue puts it off.
        start_time: when it started, of a pending job Slurm's guess.
        gres: what it asks for a node, like `gres:gpu:2`.
        exit_code: its exit status; 0 where a signal has ended it.
        signal: the number of that signal, else 0.
    """

    id: int
    name: str
    state: str
    reason: str
    explanation: str | None
    partition: str
    user: str
    nodes: tuple[str, ...]
    wanted_nodes: int
    batch_host: str | None
    requeue: bool
    restarts: int
    priority: int
    submit_time: float | None
    eligible_time: float | None
    start_time: float | None
    end_time: float | None
    array_job: int | None
    array_task: str | None
    het_job: int | None
    gres: str | None
    tres: str | None
    dependency: str | None
    exit_code: int
    signal: int
    comment: str | None
    admin_comment: str | None

    @property
    def spelling(self) -> int | str:
        """What commands call it: `12`, `12_3`, of a pending array `12_[3-9]`.

        The last task of an array has the array's own id: by that all of its tasks would be meant.
        """
        tasks = (self.array_task or "").partition("%")[0]
        # squeue may cut the list of a pending array short.
        if self.array_job is None or not tasks or "..." in tasks:
            return self.id
        return f"{self.array_job}_{tasks}" if tasks.isdigit() else f"{self.array_job}_[{tasks}]"

    @property
    def slurm_id(self) -> str:
        """The id as squeue writes it: `12`, an array's task `12_3`, its pending tasks `12_[3-9%2]`."""
        if self.array_job is None or self.array_task is None:
            return str(self.id)
        task = self.array_task
        return f"{self.array_job}_{task}" if task.isdigit() else f"{self.array_job}_[{task}]"

    def elapsed(self, now: float) -> float | None:
        """Seconds since it started, suspended ones too; None: it has no nodes.

        Args:
            now: seconds since the epoch.
        """
        if not self.is_active or self.start_time is None:
            return None
        # The end of a job that runs is the one that its time limit sets.
        until = self.end_time if self.state == "COMPLETING" and self.end_time is not None else now
        return max(0.0, until - self.start_time)

    @property
    def is_active(self) -> bool:
        """It holds nodes."""
        return self.state in ("CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "RESIZING")

    @property
    def is_pending(self) -> bool:
        return self.state == "PENDING"

    @property
    def is_held(self) -> bool:
        """It does not start until somebody releases it.

        Slurm holds a job that it suspends, and goes on holding it when it is queued again.
        """
        return self.priority == 0

    @property
    def is_over(self) -> bool:
        """It will not run (again)."""
        return not self.is_active and not self.is_pending and self.state not in ("REQUEUED", "SIGNALING")

    @property
    def cause(self) -> str | None:
        """Why it waits, in a person's words: the comment that we gave it where there is one, else Slurm's."""
        if not self.is_pending:
            return None
        return self.admin_comment or self.explanation or (self.reason if self.reason != "None" else None)


# Slurm's own stamp is the last one: a reason may have brackets of its own.
_REASON = re.compile(r"\sReason=(.*) \[([^\s@\[\]]*)@(\d+|Unknown)\]|\sReason=(.*)$")


def parse_nodes(text: str) -> dict[str, NodeState]:
    """The output of `scontrol show nodes --oneliner`, by node name.

    Raises:
        ValueError: a line is no node's.
    """
    if text.startswith("No nodes in the system"):
        return {}
    return {node.name: node for node in map(_node, filter(str.strip, text.splitlines()))}


def _node(line: str) -> NodeState:
    # Cut before Reason: nothing that a person wrote may pass for a field.
    head = line.partition(" Reason=")[0].partition(" Comment=")[0]
    # Splitting costs a tenth of a regular expression here, and there may be 5,000 lines.
    fields = dict(item.split("=", 1) for item in head.split() if "=" in item)
    try:
        base, *flags = fields["State"].split("+")
        name = fields["NodeName"]
    except KeyError as error:
        raise ValueError(f"no node's line from scontrol: {line[:200]!r}") from error
    reason, user, when = _reason(line)
    return NodeState(
        name=name,
        # 22.05 marks a silent node with a star here, newer ones only by the flag.
        base=base.rstrip("*"),
        flags=frozenset(flags) | ({"NOT_RESPONDING"} if base.endswith("*") else set()),
        reason=reason,
        reason_user=user,
        reason_time=when,
        boot_time=_time(fields.get("BootTime")),
        slurmd_start_time=_time(fields.get("SlurmdStartTime")),
        last_busy_time=_time(fields.get("LastBusyTime")),
        cpus_alloc=int(fields.get("CPUAlloc") or 0),
        cpus=int(fields.get("CPUTot") or 0),
        partitions=tuple(filter(None, fields.get("Partitions", "").split(","))),
        address=fields.get("NodeAddr", ""),
        hostname=fields.get("NodeHostName", ""),
        gres=_text(fields.get("Gres")),
        version=_text(fields.get("Version")),
    )


def _reason(line: str) -> tuple[str | None, str | None, float | None]:
    match = _REASON.search(line)
    if match is None:
        return None, None, None
    if match[4] is not None:
        return _text(match[4]), None, None
    return _text(match[1]), match[2], _time(match[3])


# Free text comes last, and the separators are characters that no text of a person's has.
_FIELD, _RECORD = "\x1f", "\x1e"
_JOB_FIELDS = (
    "jobid",
    "arrayjobid",
    "arraytaskid",
    "hetjobid",
    "state",
    "reason",
    "partition",
    "username",
    "nodelist",
    "numnodes",
    "batchhost",
    "requeue",
    "restartcnt",
    "prioritylong",
    "submittime",
    "eligibletime",
    "starttime",
    "endtime",
    "tres-per-node",
    "tres-alloc",
    "dependency",
    "exit_code",
    "reasonlist",
    "name",
    "comment",
    "admin_comment",
)
SQUEUE_FORMAT = f":{_FIELD},".join(_JOB_FIELDS) + f":{_RECORD}"
"""For `squeue --Format`: no width, so nothing is cut, and separators of our own."""


def parse_jobs(text: str) -> dict[int, JobState]:
    """The output of `squeue --noheader --array --Format SQUEUE_FORMAT`, by job id.

    The tasks of an array that have not begun share the array's id, and become one job.

    Raises:
        ValueError: a record has other fields than were asked for.
    """
    found: dict[int, JobState] = {}
    tasks: dict[int, list[str]] = {}
    for job in _jobs(text):
        found.setdefault(job.id, job)
        if job.array_task is not None:
            tasks.setdefault(job.id, []).append(job.array_task)
    several = {number: indices for number, indices in tasks.items() if len(indices) > 1}
    return found | {
        number: replace(found[number], array_task=fold(f"t{index}" for index in indices)[2:-1])
        for number, indices in several.items()
    }


def _jobs(text: str) -> Iterator[JobState]:
    for record in text.split(_RECORD):
        # squeue ends every record with a line break of its own.
        values = record.lstrip("\n").split(_FIELD)
        if values == [""]:
            continue
        if len(values) != len(_JOB_FIELDS):
            raise ValueError(f"no job's record from squeue: {record[:200]!r}")
        yield _job(dict(zip(_JOB_FIELDS, values, strict=True)))


def _job(field: dict[str, str]) -> JobState:
    task = _text(field["arraytaskid"])
    nodes = _text(field["nodelist"])
    exit_code, signal = _ending(field["exit_code"])
    return JobState(
        id=int(field["jobid"]),
        name=field["name"],
        state=field["state"],
        # `ReqNodeNotAvail, UnavailableNodes:…`: what follows the word goes into the explanation.
        reason=field["reason"].partition(",")[0],
        explanation=_explanation(field["reasonlist"], field["reason"].partition(",")[0]),
        partition=field["partition"],
        user=field["username"],
        nodes=tuple(expand(nodes)) if nodes else (),
        # A range of numbers (`2-4`) asks for at least the first.
        wanted_nodes=int(field["numnodes"].partition("-")[0] or 0),
        batch_host=_text(field["batchhost"]),
        requeue=field["requeue"] in ("1", "yes", "YES"),
        restarts=int(field["restartcnt"]),
        priority=int(field["prioritylong"]),
        submit_time=_time(field["submittime"]),
        eligible_time=_time(field["eligibletime"]),
        start_time=_time(field["starttime"]),
        end_time=_time(field["endtime"]),
        array_job=int(field["arrayjobid"]) if task else None,
        array_task=task,
        het_job=int(field["hetjobid"]) if _text(field["hetjobid"]) not in (None, "0") else None,
        gres=_text(field["tres-per-node"]),
        tres=_text(field["tres-alloc"]),
        dependency=_text(field["dependency"]),
        exit_code=exit_code,
        signal=signal,
        comment=_text(field["comment"]),
        admin_comment=_text(field["admin_comment"]),
    )


def _explanation(text: str, reason: str) -> str | None:
    """squeue's last column: the nodes of a running job, `(why)` of any other."""
    if not text.startswith("(") or not text.endswith(")") or text[1:-1] in (reason, "null"):
        return None
    return text[1:-1]


def _ending(text: str) -> tuple[int, int]:
    """Exit status and signal of `<status>:<signal>`; 22.05 prints the wait status itself."""
    status, colon, number = text.partition(":")
    return (int(status), int(number)) if colon else (int(status) >> 8, int(status) & 0x7F)


def _text(value: str | None) -> str | None:
    return None if value in (None, "", "(null)", "N/A", "None", "n/a", "Unknown") else value


def _time(value: str | None) -> float | None:
    return float(value) if value is not None and value.isdigit() and value != "0" else None
