"""The jobs of a soak: submitted, cancelled and requeued at random, and watched."""

from __future__ import annotations

import random
import time
from typing import Any

from node.slurm.control import SlurmDown, SlurmError
from node.slurm.hostlist import expand
from node.slurm.states import JobState
from tests.support.soak import audit, sharing
from tests.support.soak.cluster import GPUS, SoakCluster
from tests.support.soak.journal import Journal, Task

MOST_TASKS = 24
"""The most unfinished tasks at a time, so that the queue is short when the soak ends."""
SUBMIT_SECONDS = 1.0
MEDDLE_SECONDS = 6.0


class Load:
    """Submits, cancels and requeues jobs at each `tick`. `look` reads Slurm's queue."""

    def __init__(self, cluster: SoakCluster, journal: Journal, chance: random.Random) -> None:
        self._cluster = cluster
        self._journal = journal
        self._chance = chance
        self._number = 0
        self._next_submit = self._next_meddling = 0.0
        self.paused_until = 0.0

    def tick(self) -> None:
        """Perhaps submit, perhaps cancel or requeue something."""
        now = time.monotonic()
        if now < self.paused_until:
            return
        if now >= self._next_submit:
            self._next_submit = now + self._chance.uniform(0, 2 * SUBMIT_SECONDS)
            if len(self.waiting()) < MOST_TASKS:
                self.submit()
        if now >= self._next_meddling:
            self._next_meddling = now + self._chance.uniform(0, 2 * MEDDLE_SECONDS)
            self._meddle()

    def waiting(self) -> list[Task]:
        """Return the tasks that are not over."""
        return [task for task in self._journal.tasks.values() if not task.over and task.accepted]

    def submit(self) -> None:
        """Submit one job or array of random size and length."""
        chance = self._chance
        partition = chance.choices(list(self._cluster.partitions), (5, 4, 2))[0]
        most = self._cluster.partitions[partition]
        nodes = chance.choice((1, 1, 1, 2, min(3, most), most))
        tasks = chance.randint(2, 6) if nodes == 1 and chance.random() < 0.25 else 0
        requeue = chance.random() >= 0.15
        seconds = round(
            chance.choice((chance.uniform(0.2, 3), chance.uniform(2, 12), chance.uniform(10, 20))), 1
        )
        self._number += 1
        name = f"soak-{self._number}"
        options = [f"--job-name={name}", f"--partition={partition}", f"--nodes={nodes}"]
        options += [f"--array=0-{tasks - 1}"] if tasks else []
        options += [f"--gpus-per-node={chance.randint(1, GPUS)}"] if partition == "gpu" else []
        options += ["--exclusive"] if chance.random() < 0.5 else []
        options += [] if requeue else ["--no-requeue"]
        whose = sharing.options(chance) if self._cluster.shares else ()
        options += whose
        indices: list[int | None] = list(range(tasks)) if tasks else [None]
        made = [
            Task(name, i, partition, nodes, seconds, requeue, time.time(), options=whose) for i in indices
        ]
        notes, script = (self._cluster.seen(path) for path in (self._journal.notes, self._journal.script))
        command = ["sbatch", "--parsable", "--output=/dev/null", f"--chdir={notes}", *options]
        command += [script, notes, str(seconds)]
        try:
            job = int(self._cluster.control.run(*command).partition(";")[0])
        except (SlurmError, ValueError) as error:
            # Without an answer Slurm may have accepted the job. If so, it is a job like any other.
            for task in made:
                task.accepted = False
            self._journal.write("refused", name=name, error=str(error))
            if not isinstance(error, SlurmDown):
                self._journal.finding(f"sbatch refused {' '.join(options)}: {error}")
            job = None
        for task in made:
            task.job = task.array = job
            self._journal.tasks[task.key] = task
        self._journal.write("submit", name=name, job=job, options=options, seconds=seconds)

    def _meddle(self) -> None:
        chosen = [task for task in self.waiting() if task.job is not None and task.states]
        if not chosen:
            return
        task = self._chance.choice(chosen)
        running = task.requeue and task.state == "RUNNING"
        began = time.time()
        if running and self._chance.random() < 0.5:
            self._do("requeue", task, "scontrol", "requeue", str(task.job))
            task.requeued.append((began, time.time()))
            return
        self._do("cancel", task, "scancel", "--quiet", f"--name={task.name}")
        # The name stands for all tasks that are left of an array.
        for other in self._journal.tasks.values():
            if other.name == task.name:
                other.cancelled.append((began, time.time()))

    def end_ghosts(self) -> None:
        """Cancel jobs that had ended when slurmctld was killed before it wrote that down.

        Slurm itself would find them only after minutes (BatchStartTimeout, a node's next registration).
        """
        for task in self.waiting():
            if not task.ghost and task.state == "RUNNING" and audit.is_ghost(self._journal, task):
                task.ghost = True
                self._do("ghost", task, "scancel", "--quiet", str(task.job))

    def _do(self, what: str, task: Task, *command: str) -> None:
        error: SlurmError | None = None
        try:
            self._cluster.control.run(*command)
        except SlurmError as refusal:  # the job ended meanwhile, or slurmctld does not answer
            error = refusal
        self._journal.write(what, task=task.key, job=task.job, error=str(error) if error else None)

    def look(self) -> None:
        """Read the queue.

        Raises:
            SlurmError: slurmctld does not answer.
        """
        seen: dict[str, JobState] = {}
        for job in self._cluster.control.jobs().values():
            if len(pools := {node.rpartition("-")[0] for node in job.nodes}) > 1:
                self._journal.finding(f"job {job.id} has nodes of {' and '.join(sorted(pools))}")
            for index in _indices(job):
                seen[job.name if index is None else f"{job.name}.{index}"] = job
            if job.is_over and job.array_task is None:
                # An array that was cancelled before any task began has no tasks any more.
                for task in self._journal.tasks.values():
                    if task.name == job.name and task.index is not None:
                        seen.setdefault(task.key, job)
        for key, task in self._journal.tasks.items():
            state = seen.get(key)
            task.there = state is not None
            if state is not None:
                self._take_in(task, state)

    def _take_in(self, task: Task, job: JobState) -> None:
        task.accepted = True
        task.job = job.spelling
        task.over = job.is_over
        if (task.state, task.cause) != (job.state, job.cause) or task.reason != job.reason:
            if task.state != job.state:
                task.states.append((time.time(), job.state))
            task.cause, task.reason = job.cause, job.reason
            self._journal.write(
                "job",
                task=task.key,
                job=job.id,
                state=job.state,
                nodes=job.nodes,
                reason=job.reason,
                cause=job.cause,
            )

    def counts(self) -> dict[str, Any]:
        tasks = [task for task in self._journal.tasks.values() if task.accepted]
        return {
            "submitted": len(tasks),
            "over": sum(task.over for task in tasks),
            "running": sum(task.state == "RUNNING" for task in tasks),
            "waiting": sum(task.state in ("PENDING", "CONFIGURING") for task in tasks),
        }


def _indices(job: JobState) -> list[int | None]:
    """Return a job's task indices, which Slurm writes as `3-9%2` for pending tasks; else `[None]`."""
    if job.array_task is None:
        return [None]
    return [int(index) for index in expand(f"[{job.array_task.partition('%')[0]}]")]
