"""The jobs of a Batch stack: submission, waits and failures explained, results, and kept records."""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cli import results
from infra.aws.batch import access, states
from infra.aws.batch.states import budget_limits
from infra.errors import EXIT_REFUSED, EXIT_USAGE, UserError
from infra.program import locations
from node.system import plurals
from node.system.foreign import parse
from operations.aws.account import explained
from operations.aws.batch.service import BatchService, Job
from operations.aws.batch.settling import settled

# Sentences for why a job of Batch waits or failed, from what Batch says of job, queue and environment.

OF_REASONS = (
    (
        r"MISCONFIGURATION:COMPUTE_ENVIRONMENT_MAX_RESOURCE",
        "the environment may not have as many vCPUs as it needs: raise batch.vcpus.max",
    ),
    (
        r"MISCONFIGURATION:JOB_RESOURCE_REQUIREMENT",
        "no machine of the environment has what a node asks for: lower vcpus, memory_mib or gpus",
    ),
    (r"MISCONFIGURATION:SERVICE_ROLE_PERMISSIONS", "Batch's role may not start machines"),
    (
        r"INSUFFICIENT_INSTANCE_CAPACITY|InsufficientInstanceCapacity",
        "EC2 has no such machines free just now; Batch tries again",
    ),
    (
        r"VcpuLimitExceeded|LimitExceeded",
        "the account's quota of vCPUs is used up: `doctor` names it",
    ),
    (
        r"CannotPullContainer",
        "a machine cannot pull the image: check its address, and the network's route to ECR",
    ),
    (r"OutOfMemory", "the container used more memory than memory_mib"),
    (r"Host EC2.*terminated", "a machine ended under the job"),
    (r"Job attempt duration exceeded", "the job ran longer than batch.timeout"),
    (r"budget", "the stack's budget is used up"),
    (
        r"Essential container in task exited",
        "the program ended with an error: `logs` has its last lines",
    ),
)
"""Pattern of Batch's, ECS's or EC2's words -> what they mean (Batch user guide, "Jobs stuck in RUNNABLE", and
"Troubleshooting")."""


def explained_reason(reason: str) -> str:
    """Batch's words, and what they mean where that is known."""
    for pattern, meaning in OF_REASONS:
        if re.search(pattern, reason):
            return f"{meaning} ({reason})"
    return reason


def waits(job: Job, environment: Mapping[str, Any] | None, queue: Mapping[str, Any] | None) -> str:
    """Why a job does not run yet, in a sentence."""
    if job.status in ("SUBMITTED", "PENDING"):
        return "Batch has not looked at it yet"
    if job.status == "STARTING":
        return "its machines are up and fetch the image"
    if job.status == "RUNNING":
        return ""
    if job.reason:
        return explained_reason(job.reason)
    return (
        _queue(queue)
        or _environment(environment)
        or _vcpus(job, environment)
        or "Batch asks EC2 for all of its machines at once, which takes minutes; nothing says that it cannot"
    )


def ended(job: Job) -> str:
    """How a job ended, in a sentence."""
    if job.status == "SUCCEEDED":
        return "succeeded"
    container = (job.attempts[-1].get("container") or {}) if job.attempts else {}
    reasons = " ".join(filter(None, [job.reason, container.get("reason")]))
    code = container.get("exitCode")
    status = "" if code is None else f" with exit status {code}"
    return f"failed{status}: {explained_reason(reasons) or 'Batch gives no reason'}"


def _queue(queue: Mapping[str, Any] | None) -> str:
    if queue is None:
        return "its queue is gone"
    if queue.get("state") == "DISABLED":
        return "its queue is disabled: the budget is used up, or `down` was begun; `up` enables it"
    return f"its queue is invalid: {queue.get('statusReason')}" if queue.get("status") == "INVALID" else ""


def _environment(environment: Mapping[str, Any] | None) -> str:
    if environment is None:
        return "its compute environment is gone"
    if environment.get("state") == "DISABLED":
        return "its compute environment is disabled, so no machine starts; `up` enables it"
    if environment.get("status") == "INVALID":
        return f"its compute environment is invalid: {explained_reason(str(environment.get('statusReason')))}"
    return ""


def _vcpus(job: Job, environment: Mapping[str, Any] | None) -> str:
    """Return a sentence on whether machines are starting; may be empty."""
    resources = (environment or {}).get("computeResources") or {}
    desired, most = resources.get("desiredvCpus") or 0, resources.get("maxvCpus") or 0
    if most and desired >= most:
        return f"the environment has all of its {most} vCPUs up for other jobs"
    return f"Batch has asked for {desired} vCPUs, and machines are on their way" if desired else ""


# What is left of a stack's budget, and how a disabled queue is enabled for another job.
#
# There is no controller. A state machine adds the vCPUs that are up to a table. When the budget is used up,
# it disables the queue, and with `running_jobs: cancel` the compute environment (`infra.aws.batch.states`).
# `down` disables the queue, too, before it asks FSx for an export that may fail. So a submit enables both
# again, if the budget covers the job.

Say = Callable[[str], None]
Pause = Callable[[float], None]


def budget(service: BatchService) -> dict[str, Any] | None:
    """Return what is left of the budget, in the form of a Slurm cluster's status; `None` without a budget."""
    design = service.design
    limit_of = {"usd": design.budget.max_usd, "hours": design.budget.max_hours}
    if not any(limit_of.values()):
        return None
    limits = budget_limits(design)
    minutes = _ticks(service) * states.TICK_MINUTES if limits else 0
    used = {key: minutes / most for key, most in limits.items()}
    left = {
        f"left_{key}": None if most is None else max(0.0, most * (1 - used.get(key, 0.0)))
        for key, most in limit_of.items()
    }
    most = {f"max_{key}": value for key, value in limit_of.items()}
    return {
        **most,
        **left,
        "used": max(used.values(), default=0.0),
        "running_jobs": design.budget.running_jobs,
    }


def prepare(service: BatchService, nodes: int, say: Say, pause: Pause = time.sleep) -> None:
    """Enable a disabled queue and environment, for a job that the budget covers.

    Raises:
        UserError: The budget would end the job at its next tick (exit 3), or AWS refuses.
    """
    _covered(service, nodes)
    config, batch = service.config, service.batch
    queue, environment = service.queue(), service.environment()
    if environment is not None and environment.get("state") == "DISABLED":
        # The state machine has set this to 0; the stack file may want some machines to be always up.
        least = {"computeResources": {"minvCpus": config.min_vcpus}} if config.min_vcpus else {}
        with explained():
            batch.update_compute_environment(
                computeEnvironment=config.compute_environment, state="ENABLED", **least
            )
        say(f"environment {config.compute_environment} was disabled: it is enabled again")
        settled(lambda: [service.environment() or {}], pause)
    if queue is not None and queue.get("state") == "DISABLED":
        with explained():
            batch.update_job_queue(jobQueue=config.queue, state="ENABLED")
        say(f"queue {config.queue} was disabled: it is enabled again")
        settled(lambda: [service.queue() or {}], pause)


def _covered(service: BatchService, nodes: int) -> None:
    """Refuse a job that the state machine would end at its next tick."""
    design = service.design
    limits, (queue,) = budget_limits(design), design.partitions
    if not limits:
        return
    left = min(limits.values()) // states.TICK_MINUTES - _ticks(service)
    if nodes * queue.cpus <= left:
        return
    machines = max(0, left) * states.TICK_MINUTES / queue.cpus
    needed = nodes * states.TICK_MINUTES
    raise UserError(
        f"nothing was submitted: {machines:.0f} machine-minutes are left of the budget, and the shortest job "
        f"on {plurals.count(nodes, 'node')} takes {needed}. Raise cluster.budget in "
        f"Pulumi.{design.stack}.yaml and run `./cluster up --stack {design.stack}`",
        EXIT_REFUSED,
        code="batch.budget-spent",
    )


def _ticks(service: BatchService) -> int:
    """Return the sum of the vCPUs that were up at all ticks; 0 if the budget is newer than the last `up`."""
    table = service.client("dynamodb")
    with explained():
        try:
            found = table.get_item(
                TableName=access.ledger(service.design.name), Key={"Id": {"S": states.LEDGER}}
            )
        except table.exceptions.ResourceNotFoundException:
            return 0
    return int(found.get("Item", {}).get("Ticks", {}).get("N", 0))


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
        found = list(service.described([job.id]))
        if not found:
            raise UserError(f"Batch knows no job {job.id} any more", code="batch.job-unknown")
        (job,) = found
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
                found = parse(line.removeprefix(MARK))
            except ValueError:
                return None
            return found if isinstance(found, dict) else None
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
            found = states.describe_execution(executionArn=run)
        if found["status"] != "RUNNING":
            why = " ".join(filter(None, [found.get("error"), found.get("cause")])) or "it does not say why"
            raise UserError(
                f"no job was submitted: the state machine ended as {found['status']}: {why}",
                code="batch.not-submitted",
            )
        now("its file system is being made")
        pause(POLL_SECONDS)


def _capitalized(value: Any) -> Any:
    """Return the names of an API's fields as state machines write them: JobName for jobName."""
    if isinstance(value, dict):
        return {f"{key[0].upper()}{key[1:]}": _capitalized(part) for key, part in value.items()}
    return [_capitalized(item) for item in value] if isinstance(value, list) else value


# The records of a Batch stack's runs, kept on this machine where they outlive the stack.

LARGEST = 1e15
_JOB_ID = re.compile(r"[A-Za-z0-9-]{1,128}")


def records_folder(stack: str) -> Path:
    """Return the folder of a stack's records; it is not created here."""
    return locations.state_root() / "batch" / stack


def keep_record(stack: str, record: dict[str, Any]) -> Path:
    """Keep a record by its job's id, and return its file.

    Raises:
        UserError: The folder cannot be written, or the id is none: a file is named after it.
    """
    if not _JOB_ID.fullmatch(str(record["job_id"])):
        raise UserError(
            f"{record['job_id']!r} is no id of a Batch job, so its result is not kept", code="batch.job-id"
        )
    path = records_folder(stack) / f"{record['job_id']}.json"
    results.write_whole(path, json.dumps(record, indent=1))
    return path


def load_records(stack: str) -> list[dict[str, Any]]:
    """Return a stack's readable records by number of nodes, and of equal ones the oldest first."""
    found = []
    for path in sorted(records_folder(stack).glob("[!.]*.json"), key=lambda file: file.stat().st_mtime):
        try:
            record = parse(path.read_text())
        except (OSError, ValueError):
            continue
        if isinstance(record, dict) and isinstance(record.get("nodes"), int):
            found.append(record)
    return sorted(found, key=lambda record: int(record["nodes"]))


def rate(record: dict[str, Any]) -> float | None:
    """Images a second of a record; `None` where its program reported none."""
    result = record.get("result")
    found = result.get("images_per_second") if isinstance(result, dict) else None
    # A job's log has said it, and may say anything.
    if isinstance(found, bool) or not isinstance(found, int | float) or not 0 <= found <= LARGEST:
        return None
    return float(found)
