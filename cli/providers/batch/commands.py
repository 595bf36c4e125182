"""The commands that differ where the scheduler is AWS Batch (`cli.providers.provider.Scheduler`)."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cli.hints import hint
from cli.providers.batch import jobs as batch_jobs
from infra.errors import EXIT_INTERRUPTED, EXIT_REFUSED, EXIT_USAGE, UserError
from infra.program.stack import Stack
from node.design.model import ClusterDesign
from node.slurm import phases
from node.system import plurals
from operations.aws.batch.service import ALIVE, BatchService, Client, Job

if TYPE_CHECKING:
    from cli.console.progress import Console

MOST_JOBS = 50
FOLLOW_SECONDS = 5.0
STATES = {"RUNNING": phases.RUNNING, "STARTING": phases.CONFIGURING}
"""State of a job in Batch -> its state in `./cluster status`; jobs in all other states wait."""


class BatchCommands:
    """A stack's commands.

    Args:
        client: Gives boto3 clients; by default of the user's account.
    """

    def __init__(self, stack: Stack, design: ClusterDesign, client: Client | None = None) -> None:
        self._stack = stack
        self._service = BatchService(design, client)

    def follow(self, console: Console, *, quiet: bool = False) -> dict[str, Any]:
        """Submit the stack's job, wait for it, and return its record.

        Raises:
            UserError: The job failed; or the user does not wait any longer (exit 130).
        """
        record = self._run(console, None, 0)
        if not quiet:
            show(record)
        return record

    def status(self) -> dict[str, Any]:
        """Queue, jobs and cost in the form of a Slurm cluster's status, with Batch's ids and states.

        Raises:
            UserError: The stack is not up, or AWS refuses.
        """
        service, design = self._service, self._service.design
        environment, queue = service.environment(), service.queue()
        found = service.jobs()
        (partition,) = design.partitions
        resources = (environment or {}).get("computeResources") or {}
        now = time.time()
        hours = sum(job.nodes * (job.seconds(now) or 0.0) / 3600 for job in found)
        price = partition.price_hour
        up = -(-int(resources.get("desiredvCpus") or 0) // partition.cpus)
        return {
            "partitions": [
                {
                    "name": partition.name, "machine": partition.instance_type, "min": partition.min,
                    "max": partition.max, "up": up,
                }
            ],
            "nodes": [],
            "machines": {"running": up, "pending": 0},
            "cloud": None,
            "scheduler": "batch",
            "batch": {"environment": _state(environment), "queue": _state(queue)},
            "jobs": [self._job(job, environment, queue, now) for job in found if not job.ended],
            "ended": [
                {"id": job.id, "name": job.name, "nodes": job.nodes, "how": batch_jobs.ended(job)}
                for job in found[::-1] if job.ended
            ][:MOST_JOBS],
            "cost": {
                "node_hours": hours, "usd": None if price is None else hours * price, "at_least_usd": 0.0,
                "unknown": [] if price is not None else [partition.name], "damaged": [],
                "budget": batch_jobs.budget(service),
            },
        }  # fmt: skip

    def show_status(self, status: dict[str, Any]) -> None:
        """Print the status as tables."""
        from cli.console.status import show_status
        from cli.console.tables import cell, new_table, put

        states = status["batch"]
        table = new_table("AWS Batch", "", "state")
        table.add_row(f"environment {self._service.config.compute_environment}", cell(states["environment"]))
        table.add_row(f"queue {self._service.config.queue}", cell(states["queue"]))
        put(table)
        show_status(status, self._stack.name)
        if status["ended"]:
            over = new_table("\nEnded in the last week", "id", "name", "nodes", "how")
            for job in status["ended"]:
                over.add_row(*(cell(job[key]) for key in ("id", "name", "nodes", "how")))
            put(over)

    def logs(self, what: str | None, *, lines: int, follow: bool) -> int:
        """Print the last lines of a job's node: by its id, or `ID#3` for node 3; by default the newest job's.

        Raises:
            UserError: There is no such job (exit 2).
        """
        wanted, _, number = (what or "").partition("#")
        if number and not number.isdigit():
            raise UserError(
                f"{what}: not a node; allowed: a job's id, or ID#3 for its node 3",
                EXIT_USAGE,
                code="batch.not-a-node",
            )
        job = self._find(wanted)
        node = int(number) if number else None
        printed = 0
        while True:
            found = list(self._service.log(job, node))
            for line in found[max(printed, len(found) - lines if printed == 0 else 0) :]:
                print(line)
            sys.stdout.flush()
            printed = len(found)
            if not printed and not follow:
                print(f"job {job.id} has no log yet: it is {job.status.lower()}", file=sys.stderr)
            if not follow or job.ended:
                return 0
            try:
                time.sleep(FOLLOW_SECONDS)
            except KeyboardInterrupt:
                return EXIT_INTERRUPTED
            job = next(iter(self._service.described([job.id])), job)

    def run(self, console: Console, nodes: str | None, repeat: int | None) -> None:
        """Run the job on several numbers of nodes, one after another, up to the report.

        A run that has succeeded is not repeated: `run` again after a disconnect goes on where it was.

        Raises:
            UserError: The numbers are wrong (exit 2), or a run failed.
        """
        config = self._service.config
        counts = parse_nodes(nodes, config.nodes)
        for count in counts:
            batch_jobs.check_nodes(self._service, count)
        for count in counts:
            for number in range(repeat or 1):
                show(self._run(console, count, number))
        console.say(f"`{hint('report', self._stack.name)}` shows all of them beside the published figures")

    def cancel(self, console: Console) -> None:
        """End the queue's jobs that have not ended."""
        from operations.aws.account import explained

        jobs = self._service.jobs(*ALIVE)
        for job in jobs:
            with explained():
                self._service.batch.terminate_job(jobId=job.id, reason="cancelled by ./cluster run --cancel")
        console.say(f"{plurals.count(len(jobs), 'job')} cancelled")

    def report(self) -> tuple[str, str]:
        """Return the page and the table: our runs beside the published scaling."""
        from cli.providers.batch import report

        return report.make(self._stack.name)

    def _run(self, console: Console, nodes: int | None, number: int) -> dict[str, Any]:
        service, stack = self._service, self._stack.name
        try:
            with console.waiting("job"):
                job = batch_jobs.submit(
                    service,
                    nodes,
                    number=number,
                    before=lambda count: batch_jobs.prepare(service, count, console.say),
                    now=console.now,
                )
                console.say(f"job {job.id} ({job.name}) on {plurals.count(job.nodes, 'node')}")
                record = batch_jobs.follow(service, job, console.now)
        except KeyboardInterrupt:
            raise UserError(
                f"not waiting any longer: the job goes on. `{hint('status', stack)}` looks, "
                f"`{hint('run', stack, '--cancel')}` ends it.",
                EXIT_INTERRUPTED,
                code="batch.interrupted",
            ) from None
        console.say(f"kept as {batch_jobs.keep_record(stack, record)}", "dim")
        return record

    def _find(self, wanted: str) -> Job:
        found = list(self._service.described([wanted])) if wanted else self._service.jobs()
        if not found:
            where = f"no job {wanted}" if wanted else "no job yet"
            raise UserError(
                f"{where} in {self._service.config.queue}: `{hint('status', self._stack.name)}` lists them",
                code="batch.no-job",
            )
        return found[-1]

    def _job(
        self, job: Job, environment: dict[str, Any] | None, queue: dict[str, Any] | None, now: float
    ) -> dict[str, Any]:
        return {
            "id": job.id,
            "name": job.name,
            "user": None,
            "partition": self._service.config.queue,
            "state": STATES.get(job.status, phases.PENDING),
            "elapsed_seconds": job.seconds(now),
            "nodes": job.nodes,
            "cause": batch_jobs.waits(job, environment, queue) or None,
        }


def parse_nodes(text: str | None, most: int) -> list[int]:
    """Return a sweep's numbers of nodes; by default the powers of two up to the stack file's, and that.

    Raises:
        UserError: Exit 2.
    """
    if text is None:
        counts = [1]
        while counts[-1] * 2 < most:
            counts.append(counts[-1] * 2)
        return list(dict.fromkeys([*counts, most]))
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdigit() and int(part) for part in parts):
        raise UserError(
            f"--nodes: {text}; allowed: numbers of nodes, like 2,4", EXIT_USAGE, code="batch.nodes-form"
        )
    return list(dict.fromkeys(map(int, parts)))


def refuse_login(stack: str) -> UserError:
    """Return the answer to commands that need a login machine."""
    return UserError(
        "AWS Batch has no login machine: jobs are containers, and there is nothing to log in to. "
        f"`{hint('status', stack)}` shows the queue, `{hint('logs', stack, 'JOB')}` a job's output, "
        f"`{hint('run', stack, '--nodes 2')}` runs the job; to run another program, set "
        f"batch.container.command in Pulumi.{stack}.yaml; copy files through S3",
        EXIT_REFUSED,
        code="batch.no-login-machine",
    )


def show(record: dict[str, Any]) -> None:
    """Print a run's record."""
    from cli.console.tables import cell, new_table, put

    table = new_table(f"Result of job {record['job_id']}", "", "")
    table.show_header = False
    table.add_row(
        "nodes", cell(f"{record['nodes']} × {record['machine']}, {plurals.count(record['gpus'], 'GPU')}")
    )
    if record["seconds_job"] is not None:
        table.add_row("time", cell(f"{record['seconds_job']:.0f} s"))
    if record["cost_usd"] is not None:
        table.add_row("cost", cell(f"{record['cost_usd']:.2f} USD"))
    for name, value in _plain(record["result"]):
        table.add_row(cell(name), cell(f"{value:.6g}" if isinstance(value, float) else value))
    put(table)


def _plain(result: dict[str, Any]) -> Sequence[tuple[str, Any]]:
    return [
        (key.replace("_", " "), value)
        for key, value in result.items()
        if isinstance(value, str | int | float)
    ]


def _state(found: dict[str, Any] | None) -> str:
    """Return the state of an environment or a queue in words."""
    if found is None:
        return "is not there"
    state = f"{found.get('state')}, {found.get('status')}".lower()
    reason = found.get("statusReason")
    return f"{state}: {batch_jobs.explained_reason(reason)}" if reason else state
