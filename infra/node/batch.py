"""AWS Batch in the design, in the place of Slurm: see `infra.node.model`."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Batch:
    """AWS Batch instead of Slurm: one multi-node parallel job definition and where it runs."""

    compute_environment: str
    queue: str
    """Also the name of the design's one partition."""
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
    """Seconds for the whole job."""
    tags: dict[str, str] = field(default_factory=dict)
