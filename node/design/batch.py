"""What a design says of AWS Batch, for stacks that use it, not Slurm."""

from __future__ import annotations

from dataclasses import dataclass, field

# The part of a design (`node.design.model`) that describes AWS Batch, for stacks that use it, not Slurm.

CACHING_GIB = 48
"""The size of an image of machines that holds a container image as well: the published one had 12 GB, and
Docker needs its layers packed and unpacked."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One multi-node parallel job definition of AWS Batch, and the compute environment that runs it.

    Attributes:
        queue: The name of the job queue. It is also the name of the design's only partition.
        container_image: The image, or `None` for the one that is built and pushed to `repository`.
        volumes: Folder on the machine -> folder in the container.
        parameters: Values of the placeholders `Ref::name` in the command.
        timeout: The time limit of the whole job, in seconds.
        repository: The name of the repository that the stack makes; `None` if the image exists already.
        cached: Whether the baked image of the machines has the container image in Docker's cache.
        efa: Elastic Fabric Adapters of each node that the container gets.
        file_system: Stack: the file system lives as long as the stack. job: it is made for each job.
        vcpu_price_hour: USD an hour for a vCPU of the most expensive of `machines`; `None` if the price of
            one is not known.
    """

    compute_environment: str
    queue: str
    job_definition: str
    nodes: int
    machines: tuple[str, ...]
    min_vcpus: int
    desired_vcpus: int
    max_vcpus: int
    container_image: str | None
    container_vcpus: int
    container_memory_mib: int
    container_gpus: int = 0
    command: tuple[str, ...] = ()
    job_role: str | None = None
    environment: dict[str, str] = field(default_factory=dict)
    volumes: dict[str, str] = field(default_factory=dict)
    placement_group: str | None = None
    attempts: int = 1
    parameters: dict[str, str] = field(default_factory=dict)
    timeout: int | None = None
    repository: str | None = None
    cached: bool = False
    shared_memory_mib: int = 64
    efa: int = 0
    file_system: str = "stack"
    start_on_manifest: bool = False
    tags: dict[str, str] = field(default_factory=dict)
    vcpu_price_hour: float | None = None
