"""The jobs of a Batch stack: submission, waits and failures explained, results, and kept records."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from typing import Any

from cli.providers.batch.budget import Say
from cli.providers.batch.waits import ended, waits
from infra.aws.batch import access
from infra.errors import EXIT_USAGE, UserError
from node.system import plurals
from node.system.foreign import parse
from operations.aws.account import explained
from operations.aws.batch.service import BatchService, Job

POLL_SECONDS = 10.0
MARK = "RESULT "
"""Begins the line of the main node's log that has the result as JSON."""
TAIL = 20
DIGITS = 10
GPUS = "MPI_GPUS"
"""The published variable: the GPUs of all nodes together."""


def name_of(service: BatchService, definition: str, nodes: int, number: int = 0) -> str:
    """Return a job's name: the same request is the same job, so submitting is idempotent.

    Args:
        definition: The ARN of a revision, which names the image by digest.
        number: Counts repetitions of a request.
    """
    digest = hashlib.sha256(f"{definition} {nodes} {number}".encode()).hexdigest()[:DIGITS]
    return f"{service.design.name}-{nodes}-{digest}"


def submit(
    service: BatchService,
    nodes: int | None = None,
    *,
    number: int = 0,
    before: Callable[[int], None] = lambda _nodes: None,
    now: Say = lambda _text: None,
    pause: Callable[[float], None] = time.sleep,
) -> Job:
    """Submit the job, or find the one for the same request that goes on or has succeeded.

    Args:
        nodes: The number of nodes; by default the stack file's.
        number: Counts repetitions of a request.
        before: Called with the number of nodes before a new job is submitted.
        now: Called with progress messages, if each job has its own file system.

    Raises:
        UserError: The number of nodes is impossible (exit 2), the stack is not up, or AWS refuses.
    """
    wanted = service.config.nodes if nodes is None else nodes
    check_nodes(service, wanted)
    definition = str(service.definition()["jobDefinitionArn"])
    name = name_of(service, definition, wanted, number)
    present = service.named(name)
    if present and present[-1].status != "FAILED":
        return present[-1]
    before(wanted)
    request = {
        "jobName": name,
        "jobQueue": service.config.queue,
        "jobDefinition": definition,
        "propagateTags": True,
        **overrides(service, wanted),
    }
    if service.config.file_system == "job":
        return _start(service, request, {job.id for job in present}, now, pause)
    with explained():
        job_id = service.batch.submit_job(**request)["jobId"]
    return next(iter(service.described([job_id])))


def overrides(service: BatchService, nodes: int) -> dict[str, Any]:
    """Return the overrides of a job whose number of nodes differs from the definition's."""
    config = service.config
    if nodes == config.nodes:
        return {}
    properties: dict[str, Any] = {"numNodes": nodes}
    if GPUS in config.environment:
        value = {"name": GPUS, "value": str(nodes * config.container_gpus)}
        properties["nodePropertyOverrides"] = [
            {"targetNodes": "0:", "containerOverrides": {"environment": [value]}}
        ]
    return {"nodeOverrides": properties}


def check_nodes(service: BatchService, nodes: int) -> None:
    """Refuse a number of nodes that could never start.

    Raises:
        UserError: Exit 2.
    """
    (queue,) = service.design.partitions
    if not 1 <= nodes <= queue.max:
        vcpus = service.config.max_vcpus
        raise UserError(
            f"--nodes: {nodes}; allowed: 1 to {queue.max}, for which batch.vcpus.max ({vcpus}) has room",
            EXIT_USAGE,
            code="batch.nodes-range",
        )


def follow(
    service: BatchService, job: Job, now: Say, pause: Callable[[float], None] = time.sleep
) -> dict[str, Any]:
    """Wait for a job's end and return its record.

    Args:
        now: Is called with what the job waits for.
        pause: Waits that many seconds.

    Raises:
        UserError: The job failed, or it ended without a result; the message has the end of its log.
    """
    while not job.ended:
        if job.status == "RUNNING":
            seconds = job.seconds(time.time()) or 0.0
            now(f"runs on {plurals.count(job.nodes, 'node')} since {seconds / 60:.0f} min")
        else:
            now(waits(job, service.environment(), service.queue()))
        pause(POLL_SECONDS)
        described = list(service.described([job.id]))
        if not described:
            raise UserError(f"Batch knows no job {job.id} any more", code="batch.job-unknown")
        (job,) = described
    lines = list(service.log(job))
    result = result_in(lines)
    if job.status == "FAILED" or result is None:
        why = ended(job) if job.status == "FAILED" else "succeeded without a result"
        tail = "\n".join(f"  {line}" for line in lines[-TAIL:]) or "  (no output)"
        stack = service.design.stack
        raise UserError(
            f"job {job.id} {why}\nThe end of its main node's log:\n{tail}\n"
            f"The stack is up. Fix the cause and run `./cluster up --stack {stack}` again: it submits anew.",
            code="batch.job-failed",
        )
    return record(service, job, result)


def result_in(lines: list[str]) -> dict[str, Any] | None:
    """Return the result that a log has; the last one if it has several. `None` if it has none."""
    for line in reversed(lines):
        if line.startswith(MARK):
            try:
                parsed = parse(line.removeprefix(MARK))
            except ValueError:
                return None
            return parsed if isinstance(parsed, dict) else None
    return None


def record(service: BatchService, job: Job, result: dict[str, Any]) -> dict[str, Any]:
    """Return what is kept of a run: the container's own result, and what Batch knows of the job."""
    (queue,) = service.design.partitions
    seconds = job.seconds(time.time())
    price = queue.price_hour
    cost = None if price is None or seconds is None else round(price * job.nodes * seconds / 3600, 4)
    return {
        "job_id": job.id,
        "job_name": job.name,
        "queue": queue.name,
        "machine": service.config.machines[0],
        "nodes": job.nodes,
        "gpus": job.nodes * service.config.container_gpus,
        "seconds_job": seconds,
        "cost_usd": cost,
        "result": result,
    }


def _start(
    service: BatchService, request: dict[str, Any], known: set[str], now: Say, pause: Callable[[float], None]
) -> Job:
    """Have the state machine make a file system and submit the job, and wait until the job is there.

    Raises:
        UserError: The state machine ended before that.
    """
    states = service.client("stepfunctions")
    with explained():
        identity = service.client("sts").get_caller_identity()
        place = f"{identity['Arn'].split(':')[1]}:states:{service.design.region}:{identity['Account']}"
        run = states.start_execution(
            stateMachineArn=f"arn:{place}:stateMachine:{access.state_machine(service.design.name)}",
            input=json.dumps(_capitalized(request)),
        )["executionArn"]
    while True:
        if present := [job for job in service.named(request["jobName"]) if job.id not in known]:
            return present[-1]
        with explained():
            execution = states.describe_execution(executionArn=run)
        if execution["status"] != "RUNNING":
            why = (
                " ".join(filter(None, [execution.get("error"), execution.get("cause")]))
                or "it does not say why"
            )
            raise UserError(
                f"no job was submitted: the state machine ended as {execution['status']}: {why}",
                code="batch.not-submitted",
            )
        now("its file system is being made")
        pause(POLL_SECONDS)


def _capitalized(value: Any) -> Any:
    """Return the names of an API's fields as state machines write them: JobName for jobName."""
    if isinstance(value, dict):
        return {f"{key[0].upper()}{key[1:]}": _capitalized(part) for key, part in value.items()}
    return [_capitalized(item) for item in value] if isinstance(value, list) else value
