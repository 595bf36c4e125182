"""The names by which the commands of `cli.providers.batch` find what a stack has made: pure functions."""

from __future__ import annotations

from node.design.batch import Batch
from node.design.model import ClusterDesign

OPERATIONS = "operations.aws.batch"
"""The module that the stack's commands run."""
CONTAINER = "workload/batch/Dockerfile"
"""The Dockerfile of the container, below the project's folder."""
CONTEXT = "workload"
"""The folder that the container is built from."""
MANIFESTS = "manifests/"
"""The prefix in the stack's bucket under which a new object starts a job."""


ANEW = {
    "compute_environment": "computeEnvironmentName",
    "placement_group": "computeResources.placementGroup",
}
"""Keys of `batch` whose change makes the environment anew, and with it the queue -> where Batch describes
their value. The provider changes the rest in place (terraform-provider-aws, batch/compute_environment.go)."""


def of(design: ClusterDesign) -> Batch:
    """Return the Batch part of a design. The design must have one."""
    assert design.batch is not None
    return design.batch


def parameter(cluster: str) -> str:
    """Return the SSM parameter with the address of the running job's file system.

    There is one where each job has its own file system.
    """
    return f"/slurm-stacks/{cluster}/file-system"


def state_machine(cluster: str) -> str:
    """Return the state machine that makes a file system, runs a job, and deletes the file system."""
    return f"{cluster}-job"


def budget_machine(cluster: str) -> str:
    """Return the state machine that counts running machines, and ends them when the budget is used up."""
    return f"{cluster}-budget"


def ledger(cluster: str) -> str:
    """Return the table with the vCPU-minutes that have been counted."""
    return f"{cluster}-budget"
