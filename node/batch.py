"""The part of a design (`node.model`) that describes AWS Batch, for stacks that use it instead of Slurm."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Batch:
    """One multi-node parallel job definition of AWS Batch, and the compute environment that runs it."""

    compute_environment: str
    queue: str
    """The name of the job queue. It is also the name of the design's only partition."""
    job_definition: str
    nodes: int
    machines: tuple[str, ...]
    min_vcpus: int
    desired_vcpus: int
    max_vcpus: int
    container_image: str
    container_vcpus: int
    container_memory_mib: int
    container_gpus: int = 0
    command: tuple[str, ...] = ()
    job_role: str | None = None
    environment: dict[str, str] = field(default_factory=dict)
    volumes: dict[str, str] = field(default_factory=dict)
    """Folder on the machine -> folder in the container."""
    placement_group: str | None = None
    attempts: int = 1
    timeout: int | None = None
    """The time limit of the whole job, in seconds."""
    tags: dict[str, str] = field(default_factory=dict)
