"""The model of `slurm-stacks:cluster`. Field names are a contract; descriptions go into the schema.

Its larger sections are modules of their own: `network`, `hosts`, `partitions`, `storage`, `slurm`, and
`jobs` for AWS Batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from infra.config.common_effects import ANOTHER_CLUSTER, OTHER_IMAGE, OTHER_RELEASE
from infra.config.fields import (
    ABSOLUTE_PATH,
    BOUNDARY,
    KMS_KEY,
    ROLE_PATH,
    ClusterName,
    Section,
    Text,
    Usd,
)
from infra.config.hosts import AccessConfig, ControllerConfig, ImageConfig, LoginConfig
from infra.config.jobs import BatchConfig
from infra.config.network import NetworkConfig
from infra.config.partitions import PartitionConfig
from infra.config.sharing import AccountConfig, QosConfig, UserConfig
from infra.config.slurm import PackageConfig, SlurmConfig
from infra.config.storage import StorageConfig
from infra.effects import Kind, Outcome, effect
from infra.instance_types.catalog import Override
from node.design.containers import IMAGES

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


class ContainersConfig(Section):
    """Containers for jobs. Nodes and login machines get what it takes."""

    runtime: Literal["oci", "pyxis"] = Field(
        description="oci: Slurm's own `srun --container` with crun, from the distribution's packages. pyxis: "
        "`srun --container-image` with NVIDIA's Enroot and Pyxis, from the packages below or the image."
    )
    packages: list[PackageConfig] = Field(
        default_factory=list,
        description="pyxis: the packages of Enroot, and of Pyxis for the machines' release of Slurm. Empty: "
        "the image has them.",
    )
    images: str = Field(
        IMAGES,
        pattern=ABSOLUTE_PATH,
        description="pyxis: the folder of layers that were fetched. A shared one spares other nodes the "
        "download.",
    )


class LocalConfig(Section):
    """How the local cloud behaves and what fails in it. `./cluster chaos` changes it while it runs."""

    isolation: Annotated[
        Literal["process", "container"],
        effect(
            local=Outcome(Kind.DATA, "another kind of machine is another cluster"),
            design=("cluster.isolation",),
        ),
    ] = Field(
        "process",
        description="process: a machine is a slurmd on its own port; container: it boots (systemd, "
        "cloud-init, sshd), with an address, a name, files and users of its own, as on a cloud; root only.",
    )
    suite: Annotated[
        str | None, effect(local=Outcome(Kind.DATA, OTHER_RELEASE), design=("image.source",))
    ] = Field(
        None,
        pattern=r"^[a-z]+$",
        description="container: the release that machines run: another one of this machine's distribution "
        "(trixie), or one that apt here has a source of (noble on Debian); null: this machine's own.",
    )
    boot_delay: Annotated[float, effect(local=Kind.LIVE)] = Field(
        0.0, ge=0, le=3600, description="Pretended boot time of a machine, seconds."
    )
    boot_spread: Annotated[float, effect(local=Kind.LIVE)] = Field(
        0.0,
        ge=0,
        le=3600,
        description="The most seconds by which a boot takes longer; different for each machine.",
    )
    quota_nodes: Annotated[int | None, effect(local=Kind.LIVE)] = Field(
        None, ge=0, description="Pretended quota: machines at once; null for none."
    )
    quota_gpus: Annotated[int | None, effect(local=Kind.LIVE)] = Field(
        None, ge=0, description="Pretended quota: devices of these machines at once; null for none."
    )
    capacity: Annotated[dict[str, Annotated[int, Field(ge=0)]], effect(local=Kind.LIVE)] = Field(
        default_factory=dict,
        description="Pool -> most machines at once. A pool is a partition's name, or partition/zone.",
    )
    never_register: Annotated[float, effect(local=Kind.LIVE)] = Field(
        0.0,
        ge=0,
        le=1,
        description="Share of machines that start and never register as a node: 0 none, 1 all.",
    )
    api_error: Annotated[
        Literal["quota", "capacity", "placement", "permission", "throttled", "config"] | None,
        effect(local=Kind.LIVE),
    ] = Field(
        None,
        description="The cloud's error: throttled and permission for every call, the others for launches.",
    )
    api_latency: Annotated[float, effect(local=Kind.LIVE)] = Field(
        0.0, ge=0, le=300, description="Additional seconds for every call."
    )
    list_lag: Annotated[float, effect(local=Kind.LIVE)] = Field(
        0.0, ge=0, le=3600, description="Seconds for which a new machine is missing from the cloud's list."
    )
    price_hour: Annotated[float | None, effect(local=Kind.LIVE, design=())] = Field(
        None, ge=0, description="Pretended USD for each node and hour, to try budgets."
    )


USERS_CHANGE = (
    "with `id`: a node that is up has them before its next job; who leaves the list is locked out, "
    "the home stays, and their running jobs go on; another id is refused"
)
LONGEST_SCRIPT = 16384
"""The most characters of a script in the stack file, which becomes part of every machine's settings."""


class HookConfig(Section):
    """Your script, which runs as root once on each machine of a role before the machine takes work."""

    role: Literal["controller", "login", "compute", "all"] = Field(
        description="The machines on which it runs."
    )
    source: str | None = Field(
        None,
        min_length=1,
        description="Path in this project, or an s3://, gs:// or https:// address of the script, where users "
        "of the cluster may not write.",
    )
    script: str | None = Field(
        None,
        min_length=1,
        max_length=LONGEST_SCRIPT,
        description="The text of the script, instead of source. Its first line must name the interpreter "
        "(#!/bin/bash). No secrets: every user of the machines can read it.",
    )
    args: list[str] = Field(default_factory=list, description="Arguments, which every user can read.")
    timeout: int = Field(600, ge=1, le=7200, description="Seconds it may take.")


class BudgetConfig(Section):
    """What the cluster may spend on nodes in its life. A launch that would exceed it starts no node."""

    max_usd: Annotated[Usd | None, effect(Kind.LIVE)] = Field(
        None, description="USD for compute nodes; null for no limit."
    )
    max_hours: Annotated[Usd | None, effect(Kind.LIVE)] = Field(
        None, description="Node-hours; null for no limit."
    )
    running_jobs: Annotated[Literal["keep", "cancel"] | None, effect(Kind.LIVE)] = Field(
        None,
        description="When the budget is used up: keep lets running jobs finish, whatever that costs; cancel "
        "ends them. The default is keep with Slurm, which starts nothing that the budget does not cover, and "
        "cancel with scheduler batch, where nothing else would end a job.",
    )


class AwsConfig(Section):
    """Settings of the whole cluster that only AWS has."""

    kms_key: Annotated[
        str | None,
        effect(aws=Outcome(Kind.DATA, "a disk's key is fixed when it is made: head, /home and /apps")),
    ] = Field(
        None,
        pattern=KMS_KEY,
        description="ARN of a customer-managed KMS key for all EBS disks; null: the account's default key.",
    )
    nat: Annotated[
        bool,
        effect(
            aws=Outcome(
                Kind.RENEWED, "nodes that are up lose their internet access if the gateway is removed"
            )
        ),
    ] = Field(
        True,
        description="true: nodes reach the internet by a NAT gateway. false: machines have public addresses "
        "instead, which are paid for by the hour; the security groups still let nobody in.",
    )
    permissions_boundary: Annotated[str | None, effect(aws=Kind.LIVE)] = Field(
        None,
        pattern=BOUNDARY,
        description="ARN of the managed policy that is the permissions boundary of every role; null: none.",
    )
    role_path: Annotated[
        str,
        effect(
            aws=Outcome(
                Kind.RENEWED, "nodes that are up lose their role, and with it mounted buckets and logs"
            )
        ),
    ] = Field(
        "/",
        pattern=ROLE_PATH,
        max_length=512,
        description="Path of every role and instance profile in IAM, like /platform/ml/.",
    )


class ClusterConfig(Section):
    """The cluster."""

    name: Annotated[ClusterName, ANOTHER_CLUSTER] = Field(
        description="The cluster's name, which begins the names of all it owns; the stack's name by default."
    )
    provider: Annotated[Literal["aws", "gcp", "local"], ANOTHER_CLUSTER] = Field(
        description="Where it runs: aws, gcp, or local (here)."
    )
    scheduler: Annotated[Literal["slurm", "batch"], ANOTHER_CLUSTER] = Field(
        "slurm", description="slurm, or batch: AWS Batch, described under `batch` instead of `partitions`."
    )
    tags: Annotated[
        dict[str, Text],
        effect(
            clouds=Outcome(
                Kind.RENEWED, "all that is no node has them at once; a node that is up keeps the former ones"
            )
        ),
    ] = Field(
        default_factory=dict,
        description="Tags (labels on Google Cloud) of all that the stack makes and of the nodes.",
    )
    access: AccessConfig = Field(default_factory=AccessConfig, description="How to reach the login machine.")
    controller: ControllerConfig = Field(default_factory=ControllerConfig, description="The controller.")
    login: LoginConfig = Field(default_factory=LoginConfig, description="Login machines.")
    partitions: list[PartitionConfig] = Field(default_factory=list, description="Slurm's partitions.")
    storage: StorageConfig = Field(default_factory=StorageConfig, description="Directories.")
    image: ImageConfig = Field(default_factory=ImageConfig, description="What machines boot from.")
    hooks: Annotated[
        list[HookConfig],
        effect(Outcome(Kind.NODES, "controller and login machines run theirs again at once")),
    ] = Field(default_factory=list, description="Post-install scripts.")
    containers: Annotated[
        ContainersConfig | None,
        effect(
            clouds=Outcome(Kind.NODES, "controller and login machines get theirs at once"),
            local=Outcome(Kind.DATA, OTHER_IMAGE),
        ),
    ] = Field(None, description="Containers for jobs; null: none.")
    health: Annotated[HealthConfig, effect(Outcome(Kind.NODES, "the interval changes at once"))] = Field(
        default_factory=HealthConfig, description="Checks of nodes with GPUs, Neuron devices or EFA."
    )
    budget: BudgetConfig = Field(default_factory=BudgetConfig, description="What it may spend.")
    network: NetworkConfig = Field(default_factory=NetworkConfig, description="Its network.")
    slurm: SlurmConfig = Field(default_factory=SlurmConfig, description="Slurm's timers.")
    accounts: Annotated[list[AccountConfig], effect(Kind.LIVE)] = Field(
        default_factory=list, description="Accounts of Slurm, with shares and limits."
    )
    users: Annotated[
        list[UserConfig],
        effect(
            Kind.LIVE,
            aws=Outcome(Kind.LIVE, USERS_CHANGE),
            local=Outcome(Kind.LIVE, USERS_CHANGE),
        ),
    ] = Field(default_factory=list, description="Users, with their accounts.")
    qos: Annotated[list[QosConfig], effect(Kind.LIVE)] = Field(
        default_factory=list, description="Quality-of-service levels of jobs."
    )
    aws: AwsConfig | None = Field(None, description="Settings of the whole cluster that only AWS has.")
    local: LocalConfig | None = Field(None, description="The local cloud's behaviour (provider local).")
    batch: Annotated[
        BatchConfig | None,
        effect(aws=Outcome(Kind.NOTHING, "only for scheduler: batch (see batch.md)"), design=()),
    ] = Field(None, description="AWS Batch (scheduler batch).")
    instance_types: Annotated[
        dict[str, Override], effect(Outcome(Kind.LIVE, "as the key that follows from it says"), design=())
    ] = Field(default_factory=dict, description="Instance type -> facts, which win over the snapshot's.")

    def keeps_state(self) -> bool:
        """Return whether Slurm's state is on a disk of its own.

        By default it has one only where the file itself asks for accounting: a disk costs money, and a
        default of ours shall not add it to a cluster that is up. The files of process machines are this
        machine's, so they outlive their controller without one.
        """
        if self.scheduler != "slurm" or self.has_process_machines():
            return False
        chosen = self.controller.state
        return bool(self.slurm.accounting) if chosen is None else chosen == "kept"

    def groups(self) -> Iterator[tuple[tuple[str | int, ...], PartitionConfig]]:
        """Yield each kind of nodes, and its location in the cluster's section.

        It is each pool, named as its nodes are, and each partition without pools.
        """
        for index, partition in enumerate(self.partitions):
            for number, group in enumerate(partition.by_pool()):
                pool: tuple[str | int, ...] = ("pools", number) if partition.pools else ()
                yield ("partitions", index, *pool), group

    def has_process_machines(self) -> bool:
        """Return whether machines are process trees of this machine."""
        return self.provider == "local" and (self.local is None or self.local.isolation == "process")
