"""Sentences for why a job of Batch waits or failed, from what Batch says of job, queue and environment."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from operations.aws.batch.service import Job

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
