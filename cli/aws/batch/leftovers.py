"""Lists what is left of a stack on AWS Batch: environments, queues, definitions, repositories, options."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from cli.aws.batch.waiters import GONE
from infra.aws.batch import access
from infra.aws.tags import CLUSTER

Client = Callable[[str], Any]


def _environments(client: Client, cluster: str) -> Iterator[str]:
    pages = client("batch").get_paginator("describe_compute_environments").paginate()
    for one in (one for page in pages for one in page["computeEnvironments"]):
        if one.get("tags", {}).get(CLUSTER) == cluster and one.get("status") not in GONE:
            yield f"compute environment {one['computeEnvironmentName']} ({one.get('status')})"


def _queues(client: Client, cluster: str) -> Iterator[str]:
    pages = client("batch").get_paginator("describe_job_queues").paginate()
    for one in (one for page in pages for one in page["jobQueues"]):
        if one.get("tags", {}).get(CLUSTER) == cluster and one.get("status") not in GONE:
            yield f"job queue {one['jobQueueName']} ({one.get('status')})"


def _definitions(client: Client, cluster: str) -> Iterator[str]:
    pages = client("batch").get_paginator("describe_job_definitions").paginate(status="ACTIVE")
    for one in (one for page in pages for one in page["jobDefinitions"]):
        if one.get("tags", {}).get(CLUSTER) == cluster:
            yield f"job definition {one['jobDefinitionName']}:{one['revision']}"


def _repositories(client: Client, cluster: str) -> Iterator[str]:
    ecr = client("ecr")
    pages = ecr.get_paginator("describe_repositories").paginate()
    for one in (one for page in pages for one in page["repositories"]):
        tags = ecr.list_tags_for_resource(resourceArn=one["repositoryArn"])["tags"]
        if any(tag["Key"] == CLUSTER and tag["Value"] == cluster for tag in tags):
            yield f"repository {one['repositoryName']}"


def _machines(client: Client, cluster: str) -> Iterator[str]:
    names = (access.state_machine(cluster), access.budget_machine(cluster))
    pages = client("stepfunctions").get_paginator("list_state_machines").paginate()
    for one in (one for page in pages for one in page["stateMachines"]):
        if one["name"] in names:
            yield f"state machine {one['name']}"


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
    "compute environments": _environments,
    "job queues": _queues,
    "job definitions": _definitions,
    "repositories": _repositories,
    "state machines": _machines,
    "tables": _tables,
    "parameters": _parameters,
}
"""The kinds of leftovers of a stack with `scheduler: batch`, and how each is listed."""
