"""What the commands do with the jobs of AWS Batch."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cli.hints import hint
from cli.providers.batch import budget, run_records, waits
from cli.providers.batch import jobs as batch_jobs
from cli.providers.interface import Runs
from infra.aws.batch import access
from infra.errors import EXIT_INTERRUPTED, EXIT_USAGE, UserError
from node.slurm import phases
from node.system import plurals
from operations.aws.batch.service import ALIVE, BatchService, Job

if TYPE_CHECKING:
    from cli.console.progress import Console
    from node.design.model import BenchmarkDesign
    from operations.access import StackUp

MOST_JOBS = 50
FOLLOW_SECONDS = 5.0
STATES = {"RUNNING": phases.RUNNING, "STARTING": phases.CONFIGURING}
"""State of a job in Batch -> its state in `./cluster status`; jobs in all other states wait."""


class BatchCommands:
    """Batch's half of a `Provider`: AWS itself is asked for what a Slurm cluster's machines would tell."""

    def service(self, up: StackUp) -> BatchService:
        """Return the stack's queue, jobs and logs."""
        return BatchService(up.design)

    def status(self, up: StackUp) -> dict[str, Any]:
        """Queue, jobs and cost in the form of a Slurm cluster's status, with Batch's ids and states.

        Raises:
            UserError: The stack is not up, or AWS refuses.
        """
        service = self.service(up)
        design = service.design
        environment, queue = service.environment(), service.queue()
        all_jobs = service.jobs()
        (partition,) = design.partitions
        resources = (environment or {}).get("computeResources") or {}
        now = time.time()
        hours = sum(job.nodes * (job.seconds(now) or 0.0) / 3600 for job in all_jobs)
        price = partition.price_hour
        running = -(-int(resources.get("desiredvCpus") or 0) // partition.cpus)
        return {
            "partitions": [
                {
                    "name": partition.name, "machine": partition.instance_type, "min": partition.min,
                    "max": partition.max, "up": running,
                }
            ],
            "nodes": [],
            "machines": {"running": running, "pending": 0},
            "cloud": None,
            "scheduler": "batch",
            "batch": {"environment": _state(environment), "queue": _state(queue)},
            "jobs": [_job(service, job, environment, queue, now) for job in all_jobs if not job.ended],
            "ended": [
                {"id": job.id, "name": job.name, "nodes": job.nodes, "how": waits.ended(job)}
                for job in all_jobs[::-1] if job.ended
            ][:MOST_JOBS],
            "cost": {
                "node_hours": hours, "usd": None if price is None else hours * price, "at_least_usd": 0.0,
                "unknown": [] if price is not None else [partition.name], "damaged": [],
                "budget": budget.budget(service),
            },
        }  # fmt: skip

    def show_status(self, up: StackUp, status: dict[str, Any]) -> None:
        from cli.console.status import show_status
        from cli.console.tables import cell, new_table, put

        config, states = access.of(up.design), status["batch"]
        table = new_table("AWS Batch", "", "state")
        table.add_row(f"environment {config.compute_environment}", cell(states["environment"]))
        table.add_row(f"queue {config.queue}", cell(states["queue"]))
        put(table)
        show_status(status, up.stack.name)
        if status["ended"]:
            over = new_table("\nEnded in the last week", "id", "name", "nodes", "how")
            for job in status["ended"]:
                over.add_row(*(cell(job[key]) for key in ("id", "name", "nodes", "how")))
            put(over)

    def logs(self, up: StackUp, what: str | None, *, lines: int, follow: bool) -> int:
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
        service = self.service(up)
        job = _find(service, up.stack.name, wanted)
        node = int(number) if number else None
        printed = 0
        while True:
            printable_lines = list(service.log(job, node))
            for line in printable_lines[max(printed, len(printable_lines) - lines if printed == 0 else 0) :]:
                print(line)
            sys.stdout.flush()
            printed = len(printable_lines)
            if not printed and not follow:
                print(f"job {job.id} has no log yet: it is {job.status.lower()}", file=sys.stderr)
            if not follow or job.ended:
                return 0
            try:
                time.sleep(FOLLOW_SECONDS)
            except KeyboardInterrupt:
                return EXIT_INTERRUPTED
            job = next(iter(service.described([job.id])), job)

    def follow(
        self,
        up: StackUp,
        training: BenchmarkDesign | None,
        console: Console,
        *,
        outputs: Mapping[str, Any],
        quiet: bool,
    ) -> dict[str, Any]:
        """Submit the stack's job, wait for it, and return its record."""
        record = _run(self.service(up), up.stack.name, console)
        if not quiet:
            show(record)
        return record

    def run(self, up: StackUp, console: Console, asked: Runs) -> None:
        """Run the job on several numbers of nodes, one after another, up to the report.

        A run that has succeeded is not repeated: `run` again after a disconnect goes on where it was.

        Raises:
            UserError: The numbers are wrong (exit 2), or a run failed.
        """
        if asked.partitions is not None or asked.gpus is not None:
            raise UserError(
                "--partition and --gpus are of Slurm: AWS Batch has one queue",
                EXIT_USAGE,
                code="sweep.batch-options",
            )
        service, stack = self.service(up), up.stack.name
        counts = parse_nodes(asked.nodes, service.config.nodes)
        for count in counts:
            batch_jobs.check_nodes(service, count)
        for count in counts:
            for number in range(asked.repeat or 1):
                show(_run(service, stack, console, count, number))
        console.say(f"`{hint('report', stack)}` shows all of them beside the published figures")

    def cancel(self, up: StackUp, console: Console) -> None:
        from operations.aws.account import explained

        service = self.service(up)
        jobs = service.jobs(*ALIVE)
        for job in jobs:
            with explained():
                service.batch.terminate_job(jobId=job.id, reason="cancelled by ./cluster run --cancel")
        console.say(f"{plurals.count(len(jobs), 'job')} cancelled")

    def report(self, stack: str, *, alone: bool) -> tuple[str, str]:
        """Return our runs beside the published scaling."""
        from cli.providers.batch import report

        if not alone:
            raise UserError(
                f"stack {stack} is on AWS Batch, and measures something else: its report is of its own. "
                f"`./cluster report --stack {stack}` makes it",
                EXIT_USAGE,
                code="report.batch",
            )
        return report.make(stack)


def _run(
    service: BatchService, stack: str, console: Console, nodes: int | None = None, number: int = 0
) -> dict[str, Any]:
    """Submit the job, or find it again, wait for it, and return its record.

    Args:
        nodes: On how many nodes; by default as the stack file says.
        number: Which repetition it is.

    Raises:
        UserError: The job failed; or the user does not wait any longer (exit 130).
    """
    try:
        with console.waiting("job"):
            job = batch_jobs.submit(
                service,
                nodes,
                number=number,
                before=lambda count: budget.prepare(service, count, console.say),
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
    console.say(f"kept as {run_records.keep_record(stack, record)}", "dim")
    return record


def _find(service: BatchService, stack: str, wanted: str) -> Job:
    candidates = list(service.described([wanted])) if wanted else service.jobs()
    if not candidates:
        where = f"no job {wanted}" if wanted else "no job yet"
        raise UserError(
            f"{where} in {service.config.queue}: `{hint('status', stack)}` lists them",
            code="batch.no-job",
        )
    return candidates[-1]


def _job(
    service: BatchService,
    job: Job,
    environment: dict[str, Any] | None,
    queue: dict[str, Any] | None,
    now: float,
) -> dict[str, Any]:
    return {
        "id": job.id,
        "name": job.name,
        "user": None,
        "partition": service.config.queue,
        "state": STATES.get(job.status, phases.PENDING),
        "elapsed_seconds": job.seconds(now),
        "nodes": job.nodes,
        "cause": waits.waits(job, environment, queue) or None,
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
    return f"{state}: {waits.explained_reason(reason)}" if reason else state
