"""The section `health` of a stack file, and the users' own prolog and epilog."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from infra.config.fields import Section

LONGEST_SCRIPT_SECONDS = 600
"""The longest prolog. Jobs wait for it, and Slurm waits for it at most as long as for a node."""

Check = Literal["gpus", "ecc", "memory_rows", "thermal", "nvlink", "dcgm", "xid", "efa", "neuron"]


class HealthConfig(Section):
    """Checks of nodes with GPUs, Neuron devices or EFA: at boot, before each job, and at intervals."""

    enabled: bool | None = Field(
        None,
        description="Default: true where a partition has GPUs, Neuron devices or EFA. The local stack only "
        "pretends to have devices, so there it is false.",
    )
    interval_seconds: int | None = Field(
        None,
        ge=5,
        le=65000,
        description="Seconds between two checks of a node that is up; 300 by default.",
    )
    skip: list[Check] = Field(
        default_factory=list,
        description="Checks to leave out: gpus (all are there and answer), ecc, memory_rows, thermal, "
        "nvlink, dcgm, xid (the kernel's log), efa, neuron.",
    )


class JobScriptConfig(Section):
    """Your script, which runs as root on each node of a job."""

    source: str = Field(min_length=1, description="Path in this project.")
    timeout: int = Field(60, ge=1, le=LONGEST_SCRIPT_SECONDS, description="Seconds it may take.")
