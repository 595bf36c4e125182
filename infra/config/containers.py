"""The section `containers` of a stack file: what runs the containers of jobs."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from infra.config.fields import Section


class ContainersConfig(Section):
    """Containers for jobs. Nodes and login machines get what it takes."""

    runtime: Literal["oci"] = Field(
        description="oci: Slurm's own `srun --container` with crun, from the distribution's packages."
    )
