"""What is left of a stack's budget, and how a disabled queue is enabled for another job.

There is no controller. A state machine adds the vCPUs that are up to a table. When the budget is used up,
it disables the queue, and with `running_jobs: cancel` the compute environment (`infra.aws.batch.states`).
`down` disables the queue, too, before it asks FSx for an export that may fail. So a submit enables both
again, if the budget covers the job.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from infra.aws.batch import access, states
from infra.aws.batch.states import budget_limits
from infra.errors import EXIT_REFUSED, UserError
from node.system import plurals
from operations.aws.account import explained
from operations.aws.batch.service import BatchService
from operations.aws.batch.settling import settled

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
            entry = table.get_item(
                TableName=access.ledger(service.design.name), Key={"Id": {"S": states.LEDGER}}
            )
        except table.exceptions.ResourceNotFoundException:
            return 0
    return int(entry.get("Item", {}).get("Ticks", {}).get("N", 0))
