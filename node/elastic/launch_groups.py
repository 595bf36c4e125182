"""Turns Slurm's resume requests into launch calls: as few as possible, and whole jobs together."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from node.design.model import ClusterDesign
from node.elastic.driver import LaunchGroup
from node.slurm.resume_request import ResumeRequest


def launch_groups(
    request: ResumeRequest, design: ClusterDesign, request_id: str
) -> tuple[list[LaunchGroup], list[str]]:
    """Return the launch calls for one ResumeProgram request.

    A job of several nodes becomes one all-or-nothing group for each partition. The nodes of all one-node
    jobs, and nodes that Slurm wants without a job (static nodes), share one best-effort group for each
    partition.

    Args:
        request: Slurm's request.
        design: The cluster's design.
        request_id: The same id if the same request is sent again.

    Returns:
        The groups, and the names of nodes that no partition of the design has.
    """
    unknown = [node for node in request.all_nodes if design.partition_of(node) is None]
    left = {node for node in request.all_nodes if node not in set(unknown)}
    result: list[LaunchGroup] = []
    for job in request.jobs:
        nodes = [node for node in job.nodes if node in left]
        if len(job.nodes) < 2 or not nodes:
            continue
        left.difference_update(nodes)
        for partition, members in _by_partition(nodes, design).items():
            result.append(_group(partition, members, True, request_id, job.job_id))
    jobs_of = {node: job.job_id for job in request.jobs for node in job.nodes}
    for partition, members in _by_partition(
        [node for node in request.all_nodes if node in left], design
    ).items():
        only = jobs_of.get(members[0]) if len(members) == 1 else None
        result.append(_group(partition, members, False, request_id, only))
    return result, unknown


def _by_partition(nodes: Iterable[str], design: ClusterDesign) -> dict[str, list[str]]:
    result: dict[str, list[str]] = {}
    for node in nodes:
        partition = design.partition_of(node)
        if partition is not None:
            result.setdefault(partition.name, []).append(node)
    return result


def _group(partition: str, nodes: list[str], whole: bool, request_id: str, job: int | None) -> LaunchGroup:
    content = "\n".join([request_id, partition, *nodes])
    token = hashlib.sha256(content.encode()).hexdigest()[:32]
    return LaunchGroup(partition, tuple(nodes), whole, token, job)
