"""Finds everything that a stack has in AWS Batch by the cluster's tag, and deletes it, for `down`."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from cli.changes.closing import Holder
from cli.changes.jobs import Job
from cli.providers.batch import queues as marks
from infra.aws.batch import access
from infra.aws.tags import CLUSTER
from infra.clouds.commands import ClusterRef
from infra.program.stack import Stack
from node.slurm import phases
from operations.aws import account
from operations.aws.account import explained
from operations.aws.batch import shutdown
from operations.aws.batch.settling import GONE, gone, settled
from operations.clouds import commands

# Lists what is left of a stack on AWS Batch: environments, queues, definitions, repositories, options.

Client = Callable[[str], Any]


def _environments_left(client: Client, cluster: str) -> Iterator[str]:
    pages = client("batch").get_paginator("describe_compute_environments").paginate()
    for environment in (environment for page in pages for environment in page["computeEnvironments"]):
        if environment.get("tags", {}).get(CLUSTER) == cluster and environment.get("status") not in GONE:
            yield f"compute environment {environment['computeEnvironmentName']} ({environment.get('status')})"


def _queues_left(client: Client, cluster: str) -> Iterator[str]:
    pages = client("batch").get_paginator("describe_job_queues").paginate()
    for queue in (queue for page in pages for queue in page["jobQueues"]):
        if queue.get("tags", {}).get(CLUSTER) == cluster and queue.get("status") not in GONE:
            yield f"job queue {queue['jobQueueName']} ({queue.get('status')})"


def _definitions_left(client: Client, cluster: str) -> Iterator[str]:
    pages = client("batch").get_paginator("describe_job_definitions").paginate(status="ACTIVE")
    for definition in (definition for page in pages for definition in page["jobDefinitions"]):
        if definition.get("tags", {}).get(CLUSTER) == cluster:
            yield f"job definition {definition['jobDefinitionName']}:{definition['revision']}"


def _repositories(client: Client, cluster: str) -> Iterator[str]:
    ecr = client("ecr")
    pages = ecr.get_paginator("describe_repositories").paginate()
    for repository in (repository for page in pages for repository in page["repositories"]):
        tags = ecr.list_tags_for_resource(resourceArn=repository["repositoryArn"])["tags"]
        if any(tag["Key"] == CLUSTER and tag["Value"] == cluster for tag in tags):
            yield f"repository {repository['repositoryName']}"


def _machines(client: Client, cluster: str) -> Iterator[str]:
    names = (access.state_machine(cluster), access.budget_machine(cluster))
    pages = client("stepfunctions").get_paginator("list_state_machines").paginate()
    for machine in (machine for page in pages for machine in page["stateMachines"]):
        if machine["name"] in names:
            yield f"state machine {machine['name']}"


def _tables(client: Client, cluster: str) -> Iterator[str]:
    pages = client("dynamodb").get_paginator("list_tables").paginate()
    if any(access.ledger(cluster) in page["TableNames"] for page in pages):
        yield f"table {access.ledger(cluster)}"


def _parameters(client: Client, cluster: str) -> Iterator[str]:
    ssm = client("ssm")
    try:
        ssm.get_parameter(Name=access.parameter(cluster))
    except ssm.exceptions.ParameterNotFound:
        return
    yield f"parameter {access.parameter(cluster)}"


KINDS: Mapping[str, Callable[[Client, str], Iterator[str]]] = {
    "compute environments": _environments_left,
    "job queues": _queues_left,
    "job definitions": _definitions_left,
    "repositories": _repositories,
    "state machines": _machines,
    "tables": _tables,
    "parameters": _parameters,
}
"""The kinds of leftovers of a stack with `scheduler: batch`, and how each is listed."""


STATES = {"RUNNING": phases.RUNNING, "STARTING": phases.CONFIGURING}


def client_of(place: ClusterRef) -> Client:
    """Give clients of the place's region and account."""
    return functools.partial(account.client, place)


def drain(
    places: Sequence[ClusterRef],
    stack: Stack,
    say: Callable[[str], None],
    agree: Callable[[Sequence[Job]], None],
) -> None:
    """Name the jobs that end, and end them once the user agrees.

    Raises:
        UserError: The one from `agree`, or another command works on the cluster; nothing has changed then. Or
            AWS refuses.
    """
    own = Holder.of(stack, "down")
    for place in places:
        marks.refuse_if_working(client_of(place), place.cluster, own, stack.name)
    placed = [(place, queue) for place in places for queue in queues(client_of(place), place.cluster)]
    jobs = [
        Job(
            id=str(job["jobId"]),
            user="",
            partition=queue,
            nodes="",
            state=STATES.get(str(job["status"]), phases.PENDING),
            required="",
            name=str(job["jobName"]),
        )
        for place, queue in placed
        for job in shutdown.unfinished_jobs(client_of(place)("batch"), queue)
    ]
    agree(jobs)
    for place in places:
        marks.mark(client_of(place)("batch"), place.cluster, own)
    for place, queue in placed:
        shutdown.end_jobs(client_of(place)("batch"), queue, say)
    for place in places:
        shutdown.wait_for_machines(client_of(place), place.cluster, say)


def left(places: Sequence[ClusterRef]) -> list[str]:
    """One line for each thing of Batch that still exists."""
    return [line for place in places for line in of_cluster(client_of(place), place.cluster)]


def of_cluster(client: Client, cluster: str) -> Iterator[str]:
    for look in KINDS.values():
        with explained():
            yield from look(client, cluster)


def queues(client: Client, cluster: str) -> list[str]:
    """Return the names of a cluster's queues."""
    return [str(queue["jobQueueName"]) for queue in marks.of_cluster(client("batch"), cluster)]


def remove(places: Sequence[ClusterRef], pause: Callable[[float], None] = time.sleep) -> None:
    """Delete what the engine does not know any more: queues, environments, definitions, repositories.

    Raises:
        UserError: AWS refuses, or something is not deleted in time.
    """
    for place in places:
        client = client_of(place)
        batch = client("batch")
        for name in queues(client, place.cluster):
            shutdown.end_jobs(batch, name, commands.say, pause)
            _remove_queue(batch, name, pause)
        for name in environments(batch, place.cluster):
            _remove_environment(batch, name, pause)
        with explained():
            for arn in _definitions(batch, place.cluster):
                batch.deregister_job_definition(jobDefinition=arn)
            for line in KINDS["repositories"](client, place.cluster):
                client("ecr").delete_repository(repositoryName=line.removeprefix("repository "), force=True)
            # An execution that was aborted leaves the parameter with which jobs take turns.
            for line in KINDS["parameters"](client, place.cluster):
                client("ssm").delete_parameter(Name=line.removeprefix("parameter "))


def _remove_queue(batch: Any, name: str, pause: Callable[[float], None]) -> None:
    def look() -> list[dict[str, Any]]:
        return list(batch.describe_job_queues(jobQueues=[name])["jobQueues"])

    with explained():
        settled(look, pause)
        batch.delete_job_queue(jobQueue=name)
        gone(look, pause)


def _remove_environment(batch: Any, name: str, pause: Callable[[float], None]) -> None:
    def look() -> list[dict[str, Any]]:
        answer = batch.describe_compute_environments(computeEnvironments=[name])
        return list(answer["computeEnvironments"])

    with explained():
        shutdown.stop_machines(batch, name, pause)
        batch.delete_compute_environment(computeEnvironment=name)
        gone(look, pause)


def _definitions(batch: Any, cluster: str) -> list[str]:
    pages = batch.get_paginator("describe_job_definitions").paginate(status="ACTIVE")
    listed = [definition for page in pages for definition in page["jobDefinitions"]]
    return [
        str(definition["jobDefinitionArn"])
        for definition in listed
        if definition.get("tags", {}).get(CLUSTER) == cluster
    ]


def environments(batch: Any, cluster: str) -> list[str]:
    """Return the names of a cluster's environments."""
    return [str(environment["computeEnvironmentName"]) for environment in described(batch, cluster)]


def described(batch: Any, cluster: str) -> list[dict[str, Any]]:
    """Return a cluster's environments as Batch describes them."""
    with explained():
        pages = batch.get_paginator("describe_compute_environments").paginate()
        listed = [environment for page in pages for environment in page["computeEnvironments"]]
    return [
        environment
        for environment in listed
        if (environment.get("tags") or {}).get(CLUSTER) == cluster and environment.get("status") not in GONE
    ]
