"""A soak's actions and observations, in memory for the audit and as lines of JSON for people."""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# $1: where notes are written, $2: seconds. Only a shell that uses `wait` handles SIGTERM at once.
SCRIPT = """#!/bin/sh
note() {
    echo "$1 $(date +%s.%N) ${SLURM_JOB_NODELIST} ${SLURM_RESTART_COUNT:-0}" >>"$notes"
}
notes="$1/$SLURM_JOB_NAME${SLURM_ARRAY_TASK_ID:+.$SLURM_ARRAY_TASK_ID}"
trap 'note term; exit 143' TERM
note start
sleep "$2" &
wait $!
note end
"""


Span = tuple[float, float]
HEAD = "head"
"""The fault that ends the controller and deletes its root disk."""


@dataclass
class Task:
    """A job, or one task of an array: what we requested for it, and what was observed.

    Attributes:
        name: the job's name, which is unique.
        accepted: whether sbatch succeeded; if not, the job may exist or not.
        cancelled, requeued: when we requested it, as the seconds since the epoch at which the command began
            and ended. On a busy host slurmctld may take seconds.
        made_way: when it was preempted for another job, according to slurmctld's log.
        states: every observed change: (when, state).
        options: its account and QOS as options of sbatch.
        array: the id that sbatch gave it and the array's other tasks.
    """

    name: str
    index: int | None
    partition: str
    nodes: int
    seconds: float
    requeue: bool
    submitted: float
    accepted: bool = True
    job: int | str | None = None
    options: tuple[str, ...] = ()
    array: int | None = None
    cancelled: list[Span] = field(default_factory=list)
    requeued: list[Span] = field(default_factory=list)
    made_way: list[Span] = field(default_factory=list)
    states: list[tuple[float, str]] = field(default_factory=list)
    cause: str | None = None
    reason: str | None = None
    over: bool = False
    ghost: bool = False
    """Whether the task had ended, Slurm forgot that, and we cancelled what Slurm thought was running."""
    there: bool = False
    """Whether Slurm listed the task the last time."""

    @property
    def key(self) -> str:
        return self.name if self.index is None else f"{self.name}.{self.index}"

    @property
    def state(self) -> str:
        return self.states[-1][1] if self.states else "unseen"


@dataclass(frozen=True)
class Run:
    """One start of a job's script.

    Attributes:
        end: when the script recorded its end; `None` means that it did not reach its end.
        term: when it was told to end.
        until: the latest moment at which it was over: its end, its end by signal, or the job's next start.
        count: how often Slurm had queued the job again before.
    """

    start: float
    nodes: tuple[str, ...]
    end: float | None
    term: float | None
    until: float
    count: int


@dataclass
class Fault:
    """Something that was done to the cluster.

    Attributes:
        kind: kill, freeze, preempt, a limit's key, the name of a daemon that was killed, or HEAD.
        node: the node whose machine was hit.
        until: when it is over: a machine is taken when its notice has run out, a head has a successor.
        machine: the id of the machine that was hit, until the node has another. Slurm may start jobs on the
            node meanwhile, because it does not know of the machine's end yet.
    """

    at: float
    kind: str
    node: str | None
    detail: str
    until: float
    machine: str | None = None


class Journal:
    """The journal.

    Args:
        folder: where `notes` (of the jobs) and `journal.jsonl` are written.
    """

    def __init__(self, folder: Path) -> None:
        self.notes = folder / "notes"
        self.notes.mkdir(parents=True)
        # Jobs belong to another user if machines have users of their own.
        self.notes.chmod(0o777)
        self.script = folder / "job.sh"
        self.script.write_text(SCRIPT)
        self._file = (folder / "journal.jsonl").open("a")
        self.tasks: dict[str, Task] = {}
        self.faults: list[Fault] = []
        self.findings: list[str] = []
        self.peak = 0

    def write(self, what: str, **more: Any) -> None:
        entry = {"at": round(time.time(), 3), "what": what, **more}
        self._file.write(json.dumps(entry) + "\n")
        self._file.flush()

    def fault(
        self,
        kind: str,
        node: str | None = None,
        detail: str = "",
        lasts: float = 0.0,
        machine: str | None = None,
    ) -> Fault:
        now = time.time()
        made = Fault(now, kind, node, detail, now + lasts, machine)
        self.faults.append(made)
        self.write("fault", kind=kind, node=node, detail=detail, machine=machine)
        return made

    def finding(self, text: str) -> None:
        if text not in self.findings:
            self.findings.append(text)
            self.write("finding", text=text)

    def last_note(self) -> float:
        """Return when a job last began or ended, in seconds since the epoch."""
        return max((file.stat().st_mtime for file in self.notes.iterdir()), default=0.0)

    def close(self) -> None:
        self._file.close()

    def kinds(self) -> Counter[str]:
        return Counter(fault.kind for fault in self.faults)

    def runs(self, task: Task) -> list[Run]:
        """Return every start of a task's script, from its own notes."""
        file = self.notes / task.key
        lines = [line.split() for line in file.read_text().splitlines()] if file.exists() else []
        found: list[dict[str, Any]] = []
        for word, when, nodes, count in (line for line in lines if len(line) == 4):
            if word == "start":
                found.append({"start": float(when), "nodes": nodes, "count": int(count)})
            elif found:
                found[-1].setdefault(word, float(when))
        return [
            _run(note, found[i + 1]["start"] if i + 1 < len(found) else None) for i, note in enumerate(found)
        ]


def _run(note: dict[str, Any], following: float | None) -> Run:
    from node.slurm.hostlist import expand

    end, term = note.get("end"), note.get("term")
    until = next((when for when in (end, term, following) if when is not None), time.time())
    return Run(note["start"], tuple(expand(note["nodes"])), end, term, until, note["count"])
