"""The names that a stack file gives in AWS Batch, and that something in the account may have already.

They are the stack file's own (`tf-queue`), so two stacks with different cluster names may have the same ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from cli.aws.account import explained
from cli.aws.batch.service import Client
from cli.aws.batch.waiters import GONE
from infra.aws.batch import access
from infra.aws.tags import CLUSTER, STACK
from infra.errors import EXIT_REFUSED, UserError
from node.model import ClusterDesign


def refuse_taken(client: Client, design: ClusterDesign) -> None:
    """Refuse names that something else in the account and region has.

    Raises:
        UserError: Exit 3; the message names each key, its value and whose it is.
    """
    if lines := list(taken(client, design)):
        listed = "\n".join(f"  {line}" for line in lines)
        raise UserError(
            f"nothing was made: these names are taken in {design.region}\n{listed}\n"
            f"Write others into Pulumi.{design.stack}.yaml.",
            EXIT_REFUSED,
        )


def taken(client: Client, design: ClusterDesign) -> Iterator[str]:
    """One line for each name that something has which is not of this cluster."""
    own, batch = access.of(design), client("batch")
    with explained():
        environments = batch.describe_compute_environments(computeEnvironments=[own.compute_environment])
        queues = batch.describe_job_queues(jobQueues=[own.queue])
    found: dict[str, tuple[str, list[Mapping[str, Any]]]] = {
        "compute_environment": (own.compute_environment, environments["computeEnvironments"]),
        "queue": (own.queue, queues["jobQueues"]),
    }
    for key, (name, there) in found.items():
        for one in there:
            tags = one.get("tags") or {}
            if one.get("status") not in GONE and tags.get(CLUSTER) != design.name:
                whose = f"cluster {tags[CLUSTER]}" if CLUSTER in tags else "something that is not made here"
                yield f"slurm-stacks:cluster.batch.{key}: {name} is of {whose}"


def stacks(client: Client, cluster: str) -> set[str]:
    """The stacks that the tags of a cluster's environments name."""
    with explained():
        pages = client("batch").get_paginator("describe_compute_environments").paginate()
        found = [one.get("tags") or {} for page in pages for one in page["computeEnvironments"]]
    return {str(tags[STACK]) for tags in found if tags.get(CLUSTER) == cluster and STACK in tags}
