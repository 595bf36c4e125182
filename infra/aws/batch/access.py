"""The names by which the commands of `cli.aws.batch` find what a stack has made: pure functions."""

from __future__ import annotations

from node.batch import Batch
from node.model import ClusterDesign

OPERATIONS = "cli.aws.batch.operations"
"""The module that the stack's commands run."""
CONTAINER = "workload/batch/Dockerfile"
"""The Dockerfile of the container, below the project's folder."""
CONTEXT = "workload"
"""The folder that the container is built from."""
MANIFESTS = "manifests/"
"""Below which an object in the stack's bucket starts a job."""


def of(design: ClusterDesign) -> Batch:
    """The design's part about Batch, of a stack that has one."""
    assert design.batch is not None
    return design.batch


def parameter(cluster: str) -> str:
    """The parameter that names the file system of the job that runs, where each job has its own."""
    return f"/slurm-stacks/{cluster}/file-system"


def state_machine(cluster: str) -> str:
    """The state machine that makes a file system, runs a job, and deletes the file system."""
    return f"{cluster}-job"


def budget_machine(cluster: str) -> str:
    """The state machine that counts what runs, and ends it when the budget is used up."""
    return f"{cluster}-budget"


def ledger(cluster: str) -> str:
    """The table with the vCPU-minutes that have been counted."""
    return f"{cluster}-budget"
