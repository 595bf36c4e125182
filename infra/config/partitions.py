"""The models of a partition and of its nodes."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_validator

from infra.config.fields import (
    CPU_PLATFORM,
    PLACEMENT_GROUP,
    AcceleratorType,
    Features,
    Name,
    NetworkTags,
    Reservation,
    Section,
    SecurityGroups,
    Settings,
    TimeLimit,
    Zones,
)
from infra.config.hosts import OwnImageConfig
from infra.config.overrides import InstanceTemplateOverrides, LaunchTemplateOverrides
from infra.config.sharing import SlurmName
from infra.config.storage import Gp3Config
from infra.effects import Kind, Outcome, effect

UNDELETED = "can be deleted only without nodes: until then `up` says so; run it again later"


class GcpPartition(Section):
    """Settings of a partition that only Google Cloud has."""

    secure_boot: Annotated[bool, effect(gcp=Kind.RENEWED)] = Field(
        False, description="Shielded VM with Secure Boot: signed kernel modules only."
    )
    placement_policy: Annotated[Name | None, effect(gcp=Kind.RENEWED)] = Field(
        None,
        description="Name of the placement policy that the partition's reservation was made with. Its nodes "
        "are then as close together as the reserved machines.",
    )
    disk_type: Annotated[
        Literal["pd-standard", "pd-balanced", "pd-ssd"] | None,
        effect(gcp=Kind.RENEWED),
    ] = Field(None, description="Type of a node's root disk; pd-balanced by default.")
    min_cpu_platform: Annotated[str | None, effect(gcp=Kind.RENEWED)] = Field(
        None,
        pattern=CPU_PLATFORM,
        description='The oldest processors that a node may have, e.g. "Intel Skylake" on N1, '
        '"Intel Ice Lake" on N2; null: what the zone has free.',
    )
    network_tags: Annotated[NetworkTags, effect(gcp=Kind.RENEWED)] = Field(
        default_factory=list, description="Network tags of nodes, for firewall rules and routes of yours."
    )
    instance_template_overrides: Annotated[InstanceTemplateOverrides | None, effect(gcp=Kind.RENEWED)] = (
        Field(
            None,
            description="Fields of the nodes' instance template that have no key here, as Compute Engine "
            "names them.",
        )
    )


MOST_NODES = 5000
MOST_POOLS = 16
MOST_WEIGHT = 999
"""Less than the weight of a node that is to be used last (`node.slurm.control.LAST_WEIGHT`)."""
STEP = 10
"""By how much the weight of a pool is greater than that of the pool before it."""


class AcceleratorConfig(Section):
    """The accelerators of a node."""

    type: AcceleratorType = Field(
        description="v100, t4, a10g, a100, h100 or trainium; Slurm offers it as gpu:<type>, trainium as "
        "neuron:trainium. Google's long names (nvidia-tesla-v100) are understood."
    )
    count: int = Field(1, ge=1, le=16, description="Devices on each node.")


class NodesConfig(Section):
    """How many nodes a partition has."""

    min: Annotated[int, effect(Kind.LIVE, design=("partitions.min",))] = Field(
        0, ge=0, le=MOST_NODES, description="Static nodes, which are up as long as the cluster is."
    )
    max: Annotated[int, effect(Outcome(Kind.LIVE, less=Kind.ENDS), design=("partitions.max",))] = Field(
        10, ge=1, le=MOST_NODES, description="Static and dynamic nodes together."
    )


class AwsPartition(Section):
    """Settings of a partition that only AWS has."""

    efa: Annotated[bool, effect(aws=Kind.RENEWED)] = Field(
        False, description="Elastic Fabric Adapter on every network card that supports it."
    )
    capacity_block: Annotated[bool, effect(aws=Kind.RENEWED)] = Field(
        False,
        description="The reservation is a Capacity Block for ML: nodes start in it, and only while it lasts.",
    )
    placement_group: Annotated[str | None, effect(aws=Kind.RENEWED)] = Field(
        None,
        pattern=PLACEMENT_GROUP,
        max_length=255,
        description="Name of an existing cluster placement group, e.g. the one in which a reservation was "
        "made; null: the partition gets its own if placement is cluster.",
    )
    gp3: Annotated[Gp3Config | None, effect(aws=Kind.RENEWED)] = Field(
        None, description="The performance of a node's root disk."
    )
    neuron_cores: Annotated[bool, effect(aws=Kind.RENEWED, design=())] = Field(
        False,
        description="Trainium and Inferentia: jobs ask for NeuronCores (--gres=neuroncore:trainium:2), and "
        "share devices; false: for whole devices (--gres=neuron:trainium:1).",
    )
    security_groups: Annotated[SecurityGroups, effect(aws=Kind.RENEWED)] = Field(
        default_factory=list,
        description="More security groups of the VPC under network.aws; they only add what is allowed.",
    )
    launch_template_overrides: Annotated[LaunchTemplateOverrides | None, effect(aws=Kind.RENEWED)] = Field(
        None,
        description="Fields of the nodes' launch template that have no key here, as EC2 names them, in small "
        "letters with underscores.",
    )


class LocalPartition(Section):
    """Settings of a partition that only the local stack has."""

    price_hour: float | None = Field(
        None,
        ge=0,
        description="Pretended USD for each node and hour, to try budgets; the cluster's by default.",
    )


class PoolConfig(Section):
    """A pool of a partition: equal nodes, named <partition>-<pool>-0, and so on.

    What a pool does not say is the partition's. A change of a key does what it does in a partition.
    """

    name: Name = Field(description="Small letters, digits, hyphens, e.g. spot, ondemand.")
    instance_type: str | None = Field(None, description="Instance type.")
    accelerator: AcceleratorConfig | None = Field(None, description="Accelerators of a node.")
    spot: bool | None = Field(None, description="Spare capacity at a discount.")
    max: int | None = Field(
        None, ge=1, le=MOST_NODES, description="The most nodes; by default the partition's nodes.max."
    )
    zones: Zones | None = Field(None, description="Zones for these nodes.")
    reservation: Reservation = Field(None, description="Reserved capacity.")
    features: Features | None = Field(None, description="More features of its nodes, for --constraint.")
    weight: int | None = Field(
        None,
        ge=1,
        le=MOST_WEIGHT,
        description="Slurm's weight of its nodes: more than the pool's before it; by default the "
        "partition's, and 10 more for each pool before it.",
    )
    threads_per_core: Literal[1] | None = Field(None, description="1: a core each, without hyper-threading.")
    aws: AwsPartition | None = Field(
        None, description="Settings that only AWS has, instead of the partition's."
    )
    gcp: GcpPartition | None = Field(
        None, description="Settings that only Google Cloud has, instead of the partition's."
    )
    local: LocalPartition | None = Field(
        None, description="Settings that only the local stack has, instead of the partition's."
    )


def _schema(schema: dict[str, Any]) -> None:
    """Say in the JSON Schema that the pools may name the instance types."""
    schema["required"].remove("instance_type")
    without = [{"required": [key]} for key in ("pools", "nodes_of")]
    schema["if"], schema["then"] = {"not": {"anyOf": without}}, {"required": ["instance_type"]}


NO_MACHINES = ""
"""The instance type of a partition without nodes of its own."""
SHARED_KEYS = tuple(
    PoolConfig.model_fields.keys()
    & {
        "instance_type",
        "accelerator",
        "spot",
        "zones",
        "reservation",
        "features",
        "threads_per_core",
        "aws",
        "gcp",
        "local",
    }
)
"""The keys that a pool may have instead of its partition."""


class PartitionConfig(Section):
    """A Slurm partition of equal nodes, named <partition>-0, <partition>-1, and so on.

    With `pools` it has several kinds of nodes, named <partition>-<pool>-0, and so on.
    """

    model_config = ConfigDict(json_schema_extra=_schema)

    name: Annotated[
        Name,
        effect(Outcome(Kind.LIVE, "removing one ends the jobs on its nodes"), design=("partitions.pool",)),
    ] = Field(description="Small letters, digits, hyphens. Job scripts name it.")
    instance_type: Annotated[str, effect(Kind.RENEWED)] = Field(
        description="Instance type, e.g. c4.2xlarge, n1-standard-2, local.small."
    )
    pools: list[PoolConfig] = Field(
        default_factory=list,
        max_length=MOST_POOLS,
        description="Kinds of nodes, in the order in which they are wanted, e.g. spot first; each key that a "
        "pool leaves out is the partition's. A job gets its nodes from one pool.",
    )
    mixed: Annotated[bool, effect(Kind.LIVE)] = Field(
        False, description="Whether a job may have nodes of several pools at once."
    )
    accelerator: Annotated[AcceleratorConfig | None, effect(Kind.RENEWED)] = Field(
        None, description="Accelerators of a node; null on AWS: those of the instance type."
    )
    nodes_of: Annotated[Name | None, effect(Outcome(Kind.LIVE, "jobs that run go on where they are"))] = (
        Field(
            None,
            description="Another partition, whose nodes this one has, too, with all pools, in place of nodes "
            "of its own. Each has its own time_limit, allow_accounts, allow_qos, qos, exclusive, settings "
            "and default.",
        )
    )
    nodes: NodesConfig = Field(default_factory=NodesConfig, description="The least and the most nodes.")
    default: Annotated[bool | None, effect(Kind.LIVE)] = Field(
        None, description="Whether jobs that name no partition run here; by default in the first partition."
    )
    spot: Annotated[bool, effect(Kind.RENEWED)] = Field(
        False, description="Spare capacity at a discount, which the cloud may take back."
    )
    placement: Annotated[
        Literal["none", "cluster"],
        effect(
            aws=Outcome(Kind.RENEWED, f"a placement group {UNDELETED}"),
            gcp=Outcome(Kind.RENEWED, f"a placement policy {UNDELETED}"),
            local=Kind.LIVE,
        ),
    ] = Field("none", description="cluster: nodes close together, for jobs of several nodes.")
    reservation: Annotated[Reservation, effect(clouds=Kind.RENEWED)] = Field(
        None,
        description="Reserved capacity. AWS: cr-…, a list of several, of which the stack makes a group, or "
        "the ARN of a group. Google Cloud: a reservation's name, or projects/…/reservations/… for one that "
        "another project shares.",
    )
    topology: Annotated[bool, effect(Kind.LIVE)] = Field(
        False,
        description="Whether Slurm gives a job nodes that are close together in the cloud's network, and "
        "knows `sbatch --switches`: types of AWS and Google Cloud for large trainings.",
    )
    time_limit: Annotated[TimeLimit, effect(Outcome(Kind.LIVE, "jobs keep the limit they have"))] = Field(
        "INFINITE",
        description='Longest run of a job, in quotes and as Slurm reads it: "24:00:00" (hours, minutes, '
        'seconds), "2-12" (days and hours), "90" (minutes), or "INFINITE". Two parts ("24:00") are refused, '
        "which Slurm reads as minutes and seconds.",
    )
    allow_accounts: Annotated[list[SlurmName], effect(Kind.LIVE)] = Field(
        default_factory=list, description="Accounts whose jobs may run here; empty: all."
    )
    allow_qos: Annotated[list[SlurmName], effect(Kind.LIVE)] = Field(
        default_factory=list, description="QOS whose jobs may run here; empty: all."
    )
    qos: Annotated[SlurmName | None, effect(Kind.LIVE)] = Field(
        None, description="QOS whose limits hold for all jobs here (a partition QOS)."
    )
    exclusive: Annotated[bool, effect(Kind.LIVE)] = Field(
        False, description="Whether a job never shares its nodes with another job."
    )
    settings: Annotated[Settings, effect(Kind.LIVE)] = Field(
        default_factory=dict,
        description="Options of the partition's line in slurm.conf (`PriorityTier: 10`), by Slurm's names: "
        "all that have no key here.",
    )
    features: Annotated[Features, effect(Kind.LIVE)] = Field(
        default_factory=list,
        description="More features of its nodes, for --constraint. They have their instance type, spot or "
        "ondemand, the accelerator's type and efa anyway.",
    )
    weight: Annotated[int, effect(Kind.LIVE)] = Field(
        STEP,
        ge=1,
        le=MOST_WEIGHT - STEP * MOST_POOLS,
        description="Slurm's weight of nodes that start on demand: a job in a partition with nodes of "
        "several ones gets those of low weight first. Static nodes have 1.",
    )
    threads_per_core: Annotated[Literal[1] | None, effect(Kind.RENEWED)] = Field(
        None,
        description="1: without hyper-threading, so that each CPU of Slurm's is a core; nodes have half as "
        "many CPUs, unless the machine's cores have one thread anyway. null: as the cloud starts it.",
    )
    disk_gib: Annotated[
        int | None,
        effect(clouds=Kind.RENEWED, local=Outcome(Kind.RENEWED, "it is only counted, for `--tmp`")),
    ] = Field(None, ge=10, le=16384, description="Root disk of a node in GiB; 50 by default.")
    zones: Annotated[
        Zones | None,
        effect(
            aws=Outcome(Kind.NODES, "a removed zone: see network.zones", design=()),
            gcp=Outcome(Kind.NODES, design=()),
            local=Kind.LIVE,
        ),
    ] = Field(None, description="Zones for these nodes; the network's by default.")
    image: Annotated[OwnImageConfig | None, effect(clouds=Kind.RENEWED)] = Field(
        None, description="Its own image; null: the cluster's."
    )
    open_metadata: Annotated[bool, effect(clouds=Kind.RENEWED)] = Field(
        False,
        description="true: jobs may ask the cloud's metadata address (IMDS, the metadata server), and so act "
        "with their node's identity (boto3, gsutil, gs://); false: root's processes alone.",
    )
    aws: AwsPartition | None = Field(None, description="Settings that only AWS has.")
    gcp: GcpPartition | None = Field(None, description="Settings that only Google Cloud has.")
    local: Annotated[LocalPartition | None, effect(local=Kind.LIVE, design=("partitions.price_hour",))] = (
        Field(None, description="Settings that only the local stack has.")
    )

    @model_validator(mode="before")
    @classmethod
    def _of_first_pool(cls, given: Any) -> Any:
        """Take the first pool's instance type where the partition names none."""
        if not isinstance(given, dict) or "instance_type" in given:
            return given
        if given.get("nodes_of") is not None:
            return {**given, "instance_type": NO_MACHINES}
        pools = given.get("pools")
        first = pools[0] if isinstance(pools, list) and pools else None
        kind = first.get("instance_type") if isinstance(first, dict) else None
        return {**given, "instance_type": kind} if isinstance(kind, str) else given

    def by_pool(self) -> list[PartitionConfig]:
        """Return a partition for each pool, named as its nodes are; the partition itself if it has none.

        Static nodes are the first pool's. With the nodes of another partition there is none.
        """
        if self.nodes_of is not None:
            return []
        return [self._of_pool(pool, index) for index, pool in enumerate(self.pools)] or [self]

    def _of_pool(self, pool: PoolConfig, index: int) -> PartitionConfig:
        own = {key: value for key in SHARED_KEYS if (value := getattr(pool, key)) is not None}
        most = self.nodes.max if pool.max is None else pool.max
        nodes = NodesConfig(min=0 if index else self.nodes.min, max=most)
        weight = self.weight + STEP * index if pool.weight is None else pool.weight
        return self.model_copy(
            update={
                **own,
                "name": f"{self.name}-{pool.name}",
                "nodes": nodes,
                "weight": weight,
                "pools": [],
            }
        )

    def reservations(self) -> tuple[str, ...]:
        """Return the reservations. A launch template names a single one by its id, without its owner."""
        names = [self.reservation] if isinstance(self.reservation, str) else self.reservation or []
        return tuple(
            name.rpartition("capacity-reservation/")[2] if len(names) == 1 else name for name in names
        )
