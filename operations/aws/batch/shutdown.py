"""Ends a stack's jobs before a destroy, and waits until its file systems have written to S3."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from infra.aws.batch import access
from infra.aws.tags import CLUSTER
from infra.errors import UserError
from node.system import plurals
from operations.aws.account import explained
from operations.aws.batch import settling
from operations.aws.batch.service import ALIVE, Client
from operations.waiting import attempts

POLL_SECONDS = 10.0
JOBS_SECONDS = 1200.0
EXPORT_SECONDS = 6 * 3600.0
UNFINISHED = ("PENDING", "EXECUTING", "CANCELING")
"""The states of a data repository task that goes on (botocore, fsx: DataRepositoryTaskLifecycle)."""
OF_FSX = re.compile(r"/FSxLustre\d{8}T\d{6}Z/?$")
"""The export path that FSx itself gives a file system (botocore, fsx: ExportPath)."""
WHY = "the stack is taken down"
Say = Callable[[str], None]
Pause = Callable[[float], None]


def unfinished_jobs(batch: Any, queue: str) -> list[dict[str, Any]]:
    """Return the queue's jobs that have not ended; none if there is no such queue."""
    with explained():
        if not batch.describe_job_queues(jobQueues=[queue])["jobQueues"]:
            return []
        pages = (
            batch.get_paginator("list_jobs").paginate(jobQueue=queue, jobStatus=state) for state in ALIVE
        )
        return [dict(job) for each in pages for page in each for job in page["jobSummaryList"]]


def end_jobs(batch: Any, queue: str, say: Say, pause: Pause = time.sleep) -> int:
    """Let no job start, end those that run, and wait for their end. Returns how many there were.

    Raises:
        UserError: Some go on for `JOBS_SECONDS`.
    """
    with explained():
        queues = batch.describe_job_queues(jobQueues=[queue])["jobQueues"]
        if any(described.get("state") == "ENABLED" for described in queues):
            batch.update_job_queue(jobQueue=queue, state="DISABLED")
    jobs = unfinished_jobs(batch, queue)
    for job in jobs:
        with explained():
            batch.terminate_job(jobId=job["jobId"], reason=WHY)
    if jobs:
        say(f"ending {plurals.count(len(jobs), 'job')} of {queue}")
    for _ in attempts(JOBS_SECONDS, POLL_SECONDS, pause):
        left = unfinished_jobs(batch, queue)
        if not left:
            return len(jobs)
    raise UserError(
        f"these jobs of {queue} do not end: {', '.join(str(job['jobId']) for job in left)}",
        code="batch.jobs-left",
    )


def stop_machines(batch: Any, environment: str, pause: Pause = time.sleep) -> None:
    """Let the environment start no machine any more. Those that are up end when they are idle.

    Batch keeps `minvCpus` up even of a disabled one (botocore, batch: ComputeResource), so it is 0 from here
    on.

    Raises:
        UserError: AWS refuses, or does not finish the change.
    """

    def look() -> list[dict[str, Any]]:
        answer = batch.describe_compute_environments(computeEnvironments=[environment])
        return list(answer["computeEnvironments"])

    with explained():
        settling.settled(look, pause)
        for resource in look():
            if resource.get("state") == "ENABLED":
                least = resource.get("computeResources", {}).get("minvCpus")
                more = {"computeResources": {"minvCpus": 0}} if least else {}
                batch.update_compute_environment(computeEnvironment=environment, state="DISABLED", **more)
        settling.settled(look, pause)


def wait_for_machines(client: Client, cluster: str, say: Say, pause: Pause = time.sleep) -> int:
    """Wait until the state machines of jobs have exported and deleted their file systems.

    The engine deletes a state machine at once, and what it runs then stops where it is. Returns how many ran.

    Raises:
        UserError: They go on for `EXPORT_SECONDS`.
    """
    states = client("stepfunctions")
    with explained():
        pages = states.get_paginator("list_state_machines").paginate()
        listed = [machine for page in pages for machine in page["stateMachines"]]
    machines = [
        machine["stateMachineArn"] for machine in listed if machine["name"] == access.state_machine(cluster)
    ]
    most = 0
    for _ in attempts(EXPORT_SECONDS, POLL_SECONDS, pause):
        running = 0
        for machine in machines:
            with explained():
                pages = states.get_paginator("list_executions").paginate(
                    stateMachineArn=machine, statusFilter="RUNNING"
                )
                running += sum(len(page["executions"]) for page in pages)
        if not running:
            return most
        if not most:
            say("waiting until the jobs' file systems have written to S3 and are gone")
        most = max(most, running)
    raise UserError(
        f"the state machine {access.state_machine(cluster)} does not end. Nothing was deleted: "
        "run the command again",
        code="batch.state-machine-left",
    )


def export(fsx: Any, cluster: str, say: Say, pause: Pause = time.sleep) -> list[str]:
    """Have every file system of the cluster that writes to S3 do so, and wait. Returns their ids.

    Raises:
        UserError: An export failed or does not end; nothing was deleted.
    """
    done = []
    for system in systems(fsx, cluster):
        if not _writes(fsx, system):
            continue
        name = str(system["FileSystemId"])
        say(f"{name} writes its changed files to S3")
        with explained():
            task = fsx.create_data_repository_task(
                Type="EXPORT_TO_REPOSITORY", FileSystemId=name, Report={"Enabled": False}
            )["DataRepositoryTask"]
        for _ in attempts(EXPORT_SECONDS, POLL_SECONDS, pause):
            with explained():
                answer = fsx.describe_data_repository_tasks(TaskIds=[task["TaskId"]])
            (task,) = answer["DataRepositoryTasks"]
            if task["Lifecycle"] not in UNFINISHED:
                break
        else:
            raise UserError(
                f"{name}: the export {task['TaskId']} to S3 does not end. Nothing was deleted: run the "
                "command again",
                code="batch.export-unfinished",
            )
        if task["Lifecycle"] != "SUCCEEDED":
            why = (task.get("FailureDetails") or {}).get("Message", "FSx does not say why")
            raise UserError(
                f"{name}: the export to S3 ended as {task['Lifecycle']}: {why}. Nothing was deleted. Repair "
                "what it names and run `down` again. Or give its new files up: "
                f"`aws fsx delete-file-system --file-system-id {name}`, then `down`",
                code="batch.export-failed",
            )
        done.append(name)
    return done


def systems(fsx: Any, cluster: str) -> Iterator[dict[str, Any]]:
    with explained():
        for page in fsx.get_paginator("describe_file_systems").paginate():
            for system in page["FileSystems"]:
                tags: Sequence[dict[str, str]] = system.get("Tags", [])
                if any(tag["Key"] == CLUSTER and tag["Value"] == cluster for tag in tags):
                    yield system


def _writes(fsx: Any, system: dict[str, Any]) -> bool:
    """Whether a file system has an export path, its own or that of an association."""
    repository = system.get("LustreConfiguration", {}).get("DataRepositoryConfiguration", {})
    if repository.get("ExportPath"):
        return asked_for(repository)
    with explained():
        associations = fsx.describe_data_repository_associations(
            Filters=[{"Name": "file-system-id", "Values": [system["FileSystemId"]]}]
        )["Associations"]
    return any(association.get("S3", {}).get("AutoExportPolicy") for association in associations)


def asked_for(linked: Mapping[str, Any]) -> bool:
    """Whether the export path comes from the stack file. Without one FSx chooses its own."""
    path = linked.get("ExportPath")
    return path is not None and OF_FSX.search(path) is None
