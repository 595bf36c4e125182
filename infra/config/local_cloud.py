"""The section `local` of a stack file: the local cloud."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from infra.config.fields import Isolation, Section


class LocalConfig(Section):
    """How the local cloud behaves and what fails in it. `./cluster chaos` changes it while it runs."""

    isolation: Isolation = Field(
        "process",
        description="process: a machine is a slurmd on its own port; container: it boots (systemd, "
        "cloud-init, sshd), with an address, a name, files and users of its own, as on a cloud; root only.",
    )
    suite: str | None = Field(
        None,
        pattern=r"^[a-z]+$",
        description="container: the release of the distribution that machines run (trixie, noble); null: "
        "this machine's own.",
    )
    boot_delay: float = Field(0.0, ge=0, le=3600, description="Pretended boot time of a machine, seconds.")
    boot_spread: float = Field(
        0.0,
        ge=0,
        le=3600,
        description="The most seconds by which a boot takes longer; different for each machine.",
    )
    quota_nodes: int | None = Field(
        None, ge=0, description="Pretended quota: machines at once; null for none."
    )
    quota_gpus: int | None = Field(
        None, ge=0, description="Pretended quota: devices of these machines at once; null for none."
    )
    capacity: dict[str, Annotated[int, Field(ge=0)]] = Field(
        default_factory=dict,
        description="Pool -> most machines at once. A pool is a partition's name, or partition/zone.",
    )
    never_register: float = Field(
        0.0,
        ge=0,
        le=1,
        description="Share of machines that start and never register as a node: 0 none, 1 all.",
    )
    api_error: Literal["quota", "capacity", "placement", "permission", "throttled", "config"] | None = Field(
        None,
        description="The cloud's error: throttled and permission for every call, the others for launches.",
    )
    api_latency: float = Field(0.0, ge=0, le=300, description="Additional seconds for every call.")
    list_lag: float = Field(
        0.0, ge=0, le=3600, description="Seconds for which a new machine is missing from the cloud's list."
    )
    price_hour: float | None = Field(
        None, ge=0, description="Pretended USD for each node and hour, to try budgets."
    )
