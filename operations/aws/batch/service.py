"""One stack's compute environment, queue, jobs and logs in AWS Batch, for the commands."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from infra.aws.batch import access
from infra.aws.tags import log_group
from infra.clouds.commands import ClusterRef
from infra.errors import NotUpError
from node.design.batch import Batch
from node.design.model import ClusterDesign
from operations.aws import account
from operations.aws.account import explained

Client = Callable[[str], Any]
"""Gives a boto3 client of a service by its name."""
ENDED = ("SUCCEEDED", "FAILED")
ALIVE = ("SUBMITTED", "PENDING", "RUNNABLE", "STARTING", "RUNNING")
"""The states of a job in the order in which it goes through them (botocore, batch: JobStatus)."""
AT_ONCE = 100
"""The most jobs that one DescribeJobs takes."""


@dataclass(frozen=True, slots=True)
class Job:
    """A multi-node parallel job.

    Attributes:
        status: One of `ALIVE` or `ENDED`.
        reason: Batch's own words about the state; may be empty.
        nodes: Number of nodes.
        created: Milliseconds since the epoch, as `started` and `stopped`; `None` if it has not happened.
        attempts: What Batch reports of each attempt.
    """

    id: str
    name: str
    status: str
    reason: str
    nodes: int
    created: int | None
    started: int | None
    stopped: int | None
    main: int
    attempts: tuple[dict[str, Any], ...] = ()

    @property
    def ended(self) -> bool:
        return self.status in ENDED

    def seconds(self, now: float) -> float | None:
        """How long it has run; `None` before it runs.

        Args:
            now: The time in seconds since the epoch.
        """
        if self.started is None:
            return None
        return max(0.0, (self.stopped or now * 1000.0) / 1000.0 - self.started / 1000.0)


class BatchService:
    """A stack's environment, queue, jobs and logs.

    Args:
        client: Gives boto3 clients; by default of the user's account in the design's region.
    """

    def __init__(self, design: ClusterDesign, client: Client | None = None) -> None:
        self.design = design
        place = ClusterRef.of(design)
        self.client: Client = client or functools.partial(account.client, place)

    @property
    def config(self) -> Batch:
        return access.of(self.design)

    @functools.cached_property
    def batch(self) -> Any:
        return self.client("batch")

    def environment(self) -> dict[str, Any] | None:
        """Return the compute environment as Batch describes it; `None` if it is not there."""
        name = self.config.compute_environment
        with explained():
            answer = self.batch.describe_compute_environments(computeEnvironments=[name])
        return _living(answer["computeEnvironments"])

    def queue(self) -> dict[str, Any] | None:
        """Return the job queue as Batch describes it; `None` if it is not there."""
        with explained():
            answer = self.batch.describe_job_queues(jobQueues=[self.config.queue])
        return _living(answer["jobQueues"])

    def definition(self) -> dict[str, Any]:
        """Return the newest active revision of the job definition.

        Raises:
            NotUpError: There is none.
        """
        with explained():
            pages = self.batch.get_paginator("describe_job_definitions").paginate(
                jobDefinitionName=self.config.job_definition, status="ACTIVE"
            )
            revisions = [definition for page in pages for definition in page["jobDefinitions"]]
        if not revisions:
            raise NotUpError(
                f"stack {self.design.stack} is not up: there is no job definition "
                f"{self.config.job_definition} in {self.design.region}. "
                f"`./cluster up --stack {self.design.stack}` makes it",
                code="batch.no-definition",
            )
        return dict(max(revisions, key=lambda definition: int(definition["revision"])))

    def jobs(self, *states: str) -> list[Job]:
        """Return the queue's jobs in these states, oldest first. Batch forgets ended jobs after a week.

        Raises:
            NotUpError: There is no such queue.
        """
        if self.queue() is None:
            raise NotUpError(
                f"stack {self.design.stack} is not up: there is no queue {self.config.queue}",
                code="batch.no-queue",
            )
        with explained():
            pages = (
                self.batch.get_paginator("list_jobs").paginate(jobQueue=self.config.queue, jobStatus=state)
                for state in states or (*ALIVE, *ENDED)
            )
            ids = [job["jobId"] for each in pages for page in each for job in page["jobSummaryList"]]
        return sorted(self.described(ids), key=lambda job: (job.created or 0, job.id))

    def named(self, name: str) -> list[Job]:
        """Return the queue's jobs of that name, oldest first."""
        with explained():
            pages = self.batch.get_paginator("list_jobs").paginate(
                jobQueue=self.config.queue, filters=[{"name": "JOB_NAME", "values": [name]}]
            )
            ids = [job["jobId"] for page in pages for job in page["jobSummaryList"]]
        return sorted(self.described(ids), key=lambda job: (job.created or 0, job.id))

    def described(self, ids: list[str]) -> Iterator[Job]:
        """Yield the jobs by their ids; those that Batch has forgotten are left out."""
        for start in range(0, len(ids), AT_ONCE):
            with explained():
                jobs = self.batch.describe_jobs(jobs=ids[start : start + AT_ONCE])["jobs"]
            yield from map(self._job, jobs)

    def log(self, job: Job, node: int | None = None) -> Iterator[str]:
        """Yield the lines of a node's log, oldest first; none while it has no log.

        Args:
            node: The node's number; the main node by default.
        """
        with explained():
            wanted = [f"{job.id}#{job.main if node is None else node}", job.id]
            described = next((jobs for identity in wanted if (jobs := self._described(identity))), [])
            stream = next((each.get("container", {}).get("logStreamName") for each in described), None)
            if stream is None:
                return
            logs, token = self.client("logs"), None
            place = {"logGroupName": log_group(self.design.name), "logStreamName": stream}
            while True:
                more: dict[str, str] = {"nextToken": token} if token else {}
                try:
                    page = logs.get_log_events(**place, startFromHead=True, **more)
                except logs.exceptions.ResourceNotFoundException:
                    return
                yield from (event["message"] for event in page["events"])
                # CloudWatch repeats the token at the end.
                if page["nextForwardToken"] == token:
                    return
                token = page["nextForwardToken"]

    def _described(self, wanted: str) -> list[dict[str, Any]]:
        return list(self.batch.describe_jobs(jobs=[wanted])["jobs"])

    def _job(self, found: dict[str, Any]) -> Job:
        nodes = found.get("nodeProperties") or {}
        return Job(
            id=found["jobId"],
            name=found["jobName"],
            status=found["status"],
            reason=found.get("statusReason", ""),
            nodes=int(nodes.get("numNodes") or self.config.nodes),
            created=found.get("createdAt"),
            started=found.get("startedAt"),
            stopped=found.get("stoppedAt"),
            main=int(nodes.get("mainNode") or 0),
            attempts=tuple(found.get("attempts") or ()),
        )


def _living(found: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    return next((dict(resource) for resource in found if resource.get("status") != "DELETED"), None)
