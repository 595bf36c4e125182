"""What `slurm-stacks:cluster` may say. Field names are a contract; descriptions go into the schema."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator

from infra.config.batch import BatchConfig
from infra.config.fields import (
    KEY_PAIR,
    KMS_KEY,
    PLACEMENT_GROUP,
    SUBNET,
    VPC,
    AcceleratorType,
    Cidr,
    ClusterName,
    CudaVersion,
    LocalMachines,
    Name,
    Section,
    TimeLimit,
    Usd,
    refusal,
)
from infra.config.storage import StorageConfig
from infra.machines import Override

MOST_NODES = 5000
LONGEST_SUSPEND = 366 * 86400
# slurmctld takes up to 65535 s, and the waiting prolog is given some more than resume_timeout.
LONGEST_TIMEOUT = 65000
Zones = Annotated[list[str], Field(description="Zones, tried in this order.")]


class AccessConfig(Section):
    """How a person reaches the login machine. Left out, it is what needs no open port on that cloud."""

    mode: Literal["ssm", "iap", "ssh"] | None = Field(
        None,
        description="ssm: AWS Session Manager. iap: Google's Identity-Aware Proxy. ssh: a public address and "
        "port 22 for `ssh_cidrs`. Default: ssm on AWS, iap on Google Cloud.",
    )
    ssh_cidrs: list[Cidr] = Field(
        default_factory=list,
        description="Networks that may reach port 22, e.g. 203.0.113.0/24. With mode ssh.",
    )
    allow_ssh_from_anywhere: bool = Field(
        False, description="Must be true as well where ssh_cidrs holds 0.0.0.0/0 or ::/0."
    )
    key: str | None = Field(
        None,
        pattern=KEY_PAIR,
        max_length=255,
        description="Name of an EC2 key pair that exists in the region (AWS). Google Cloud uses OS Login.",
    )


class ImageConfig(Section):
    """What machines boot from: a distribution, an image of your own, or one baked from the bootstrap."""

    source: Literal["ubuntu-24.04"] = Field("ubuntu-24.04", description="The distribution.")
    id: str | None = Field(
        None,
        description="An existing image instead: ami-… on AWS, projects/…/global/images/… on Google Cloud.",
    )
    bake: bool = Field(
        False,
        description="Build images by the bootstrap's steps first, upon `source` or `id`, so that nodes start "
        "in the time of a boot.",
    )
    cuda: CudaVersion | None = Field(
        None, description='CUDA version in quotes, e.g. "12.5"; null: the newest that the accelerator takes.'
    )


class OwnImageConfig(Section):
    """An image for these machines only."""

    id: str = Field(description="ami-… on AWS, projects/…/global/images/… on Google Cloud.")


class ControllerConfig(Section):
    """The machine that runs slurmctld and exports /home and /apps."""

    machine: str | None = Field(
        None, description="Machine type. Default: m5.large (aws), n1-standard-2 (gcp), local.small (local)."
    )
    disk_gib: int | None = Field(None, ge=10, le=16384, description="Root disk in GiB; 50 by default.")
    image: OwnImageConfig | None = Field(None, description="Its own image; null: the cluster's.")


class LoginConfig(Section):
    """Machines where users log in and submit jobs."""

    count: int = Field(0, ge=0, le=10, description="How many; 0: the controller is the login machine.")
    machine: str | None = Field(None, description="Machine type; the controller's by default.")
    disk_gib: int | None = Field(None, ge=10, le=16384, description="Root disk in GiB; 50 by default.")


class AcceleratorConfig(Section):
    """What a node carries beside its CPUs."""

    type: AcceleratorType = Field(
        description="v100, t4, a10g, a100, h100 or trainium; Slurm offers it as gpu:<type>, trainium as "
        "neuron:trainium. Google's long names (nvidia-tesla-v100) are understood."
    )
    count: int = Field(1, ge=1, le=16, description="Devices a node.")


class NodesConfig(Section):
    """How many nodes a partition has."""

    min: int = Field(0, ge=0, le=MOST_NODES, description="Static nodes: up as long as the cluster is.")
    max: int = Field(10, ge=1, le=MOST_NODES, description="Static and dynamic nodes together.")


class AwsPartition(Section):
    """What only AWS has."""

    efa: bool = Field(False, description="Elastic Fabric Adapter on every network card that takes one.")
    capacity_block: bool = Field(
        False,
        description="The reservation is a Capacity Block for ML: nodes start in it, and only while it lasts.",
    )
    placement_group: str | None = Field(
        None,
        pattern=PLACEMENT_GROUP,
        max_length=255,
        description="Name of an existing cluster placement group, e.g. the one that a reservation was made "
        "in; null: one of the partition's own where placement is cluster.",
    )


class GcpPartition(Section):
    """What only Google Cloud has."""

    secure_boot: bool = Field(False, description="Shielded VM with Secure Boot: signed kernel modules only.")
    placement_policy: Name | None = Field(
        None,
        description="Name of the placement policy that the partition's reservation was made with: its nodes "
        "are as close together as the reserved machines.",
    )


class LocalPartition(Section):
    """What only the local stack has."""

    price_hour: float | None = Field(
        None, ge=0, description="Pretended USD a node and hour, to try budgets; the cluster's by default."
    )


class PartitionConfig(Section):
    """A Slurm partition: a fleet of equal nodes, named <partition>-0, <partition>-1, …"""

    name: Name = Field(description="Small letters, digits, hyphens. Job scripts name it.")
    machine: str = Field(description="Machine type, e.g. c4.2xlarge, n1-standard-2, local.small.")
    accelerator: AcceleratorConfig | None = Field(
        None, description="Accelerators of a node; null on AWS: those that the machine has."
    )
    nodes: NodesConfig = Field(default_factory=NodesConfig, description="Fewest and most nodes.")
    default: bool | None = Field(
        None, description="Where jobs go that name no partition; the first partition if nobody says so."
    )
    spot: bool = Field(False, description="Spare capacity at a discount, which the cloud may take back.")
    placement: Literal["none", "cluster"] = Field(
        "none", description="cluster: nodes close together, for jobs of several nodes."
    )
    reservation: str | None = Field(
        None,
        description="Reserved capacity: cr-… or the ARN of a resource group of reservations (AWS), a "
        "reservation's name (Google Cloud).",
    )
    time_limit: TimeLimit = Field(
        "INFINITE", description='Longest run of a job, in quotes: "24:00:00", "2-00:00:00", or "INFINITE".'
    )
    exclusive: bool = Field(False, description="A job has its nodes for itself.")
    disk_gib: int | None = Field(
        None, ge=10, le=16384, description="Root disk of a node in GiB; 50 by default."
    )
    zones: Zones | None = Field(None, description="Zones for these nodes; the network's by default.")
    image: OwnImageConfig | None = Field(None, description="Its own image; null: the cluster's.")
    aws: AwsPartition | None = Field(None, description="Settings that only AWS has.")
    gcp: GcpPartition | None = Field(None, description="Settings that only Google Cloud has.")
    local: LocalPartition | None = Field(None, description="Settings that only the local stack has.")


class HookConfig(Section):
    """A script of yours, run as root once on each machine of a role before it takes work."""

    role: Literal["controller", "login", "compute", "all"] = Field(description="On which machines.")
    source: str = Field(
        min_length=1,
        description="Path in this project, or an s3://, gs:// or https:// address of the script.",
    )
    args: list[str] = Field(default_factory=list, description="Arguments.")
    timeout: int = Field(600, ge=1, le=7200, description="Seconds it may take.")


class BudgetConfig(Section):
    """What the cluster may spend on nodes in its life. Where a launch would exceed it no node starts."""

    max_usd: Usd | None = Field(None, description="USD for compute nodes; null for no limit.")
    max_hours: Usd | None = Field(None, description="Node-hours; null for no limit.")
    running_jobs: Literal["keep", "cancel"] = Field(
        "keep",
        description="When it is used up: keep lets running jobs end, whatever that costs; cancel ends them.",
    )


class AwsConfig(Section):
    """What only AWS has, for the whole cluster."""

    kms_key: str | None = Field(
        None,
        pattern=KMS_KEY,
        description="ARN of a customer-managed KMS key for all EBS disks; null: the account's default key.",
    )
    nat: bool = Field(
        True,
        description="A NAT gateway is the nodes' way out. false: machines have public addresses instead, "
        "each by the hour; the security groups let nobody in all the same.",
    )


class AwsNetwork(Section):
    """An existing VPC."""

    vpc: str | None = Field(None, pattern=VPC, description="Id of an existing VPC.")
    public_subnet: str | None = Field(
        None,
        pattern=SUBNET,
        description="Its public subnet, for the controller and login.",
    )
    private_subnets: list[Annotated[str, Field(pattern=SUBNET)]] = Field(
        default_factory=list, description="Its private subnets, for compute nodes."
    )


class GcpNetwork(Section):
    """An existing network."""

    network: str | None = Field(None, description="Name of an existing VPC network of the project.")
    subnetwork: str | None = Field(
        None, description="Name of its subnetwork in the region, with private Google access and Cloud NAT."
    )


class NetworkConfig(Section):
    """The cluster's own network, or an existing one under `aws` or `gcp`."""

    cidr: Cidr | None = Field(None, description="The network's addresses; 10.0.0.0/16 by default.")
    public_cidr: Cidr | None = Field(
        None, description="AWS: part for controller and login; chosen by default."
    )
    private_cidr: Cidr | None = Field(None, description="AWS: part for compute nodes; chosen by default.")
    peers: list[Cidr] = Field(
        default_factory=list,
        description="Networks that this one is or will be connected to (VPN, peering): must not overlap.",
    )
    zones: Zones = Field(
        default_factory=list,
        description="Zones for nodes, tried in this order; empty: all that fit (AWS), gcp:zone (Google "
        "Cloud).",
    )
    aws: AwsNetwork | None = Field(None, description="An existing VPC.")
    gcp: GcpNetwork | None = Field(None, description="An existing network.")


class SlurmConfig(Section):
    """Slurm's timers in seconds. What is left out is chosen for the provider."""

    suspend_time: int | None = Field(
        None, ge=1, le=LONGEST_SUSPEND, description="Idle seconds after which a node is given back."
    )
    suspend_timeout: int | None = Field(
        None, ge=1, le=LONGEST_TIMEOUT, description="Seconds that a power-down may take."
    )
    resume_timeout: int | None = Field(
        None,
        ge=1,
        le=LONGEST_TIMEOUT,
        description="Seconds from launch to registration of a node. On a cloud the sum of what its "
        "boot's steps may take, which is less with image: {bake: true}.",
    )
    slurmd_timeout: int | None = Field(
        None, ge=5, le=LONGEST_TIMEOUT, description="Seconds of silence after which a node is DOWN."
    )
    reconcile_interval: float | None = Field(
        None, ge=0.5, le=3600, description="Seconds between two comparisons of Slurm and the cloud."
    )
    accounting: bool | None = Field(
        None,
        description="Run slurmdbd and its database on the controller: `sacct` shows jobs that are over, and "
        "launchers that ask it work. Off by default. On the local stack it takes 90 MiB of memory and some "
        "seconds of the first `up`, which installs slurmdbd and MariaDB where they are missing.",
    )


class LocalConfig(Section):
    """How the local cloud behaves, and what goes wrong in it; `./cluster chaos` changes it while it runs."""

    machines: LocalMachines = Field(
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
        0.0, ge=0, le=3600, description="Up to so many seconds more, another number for each machine."
    )
    quota_nodes: int | None = Field(
        None, ge=0, description="Pretended quota: machines at once; null for none."
    )
    quota_gpus: int | None = Field(
        None, ge=0, description="Pretended quota: devices of these machines at once; null for none."
    )
    capacity: dict[str, Annotated[int, Field(ge=0)]] = Field(
        default_factory=dict,
        description="Machines at once that a pool has: a partition's name, or partition/zone.",
    )
    never_register: float = Field(
        0.0, ge=0, le=1, description="Share of machines that run and never become a node: 0 none, 1 all."
    )
    api_error: Literal["quota", "capacity", "placement", "permission", "throttled", "config"] | None = Field(
        None,
        description="How the cloud refuses: throttled and permission hit every call, the others launches.",
    )
    api_latency: float = Field(0.0, ge=0, le=300, description="Seconds that every call takes longer.")
    list_lag: float = Field(
        0.0, ge=0, le=3600, description="Seconds for which a new machine is missing from the cloud's list."
    )
    price_hour: float | None = Field(None, ge=0, description="Pretended USD a node and hour, to try budgets.")


class ClusterConfig(Section):
    """The cluster."""

    name: ClusterName = Field(
        description="The cluster's name, in the names of all it owns; the stack's name by default."
    )
    provider: Literal["aws", "gcp", "local"] = Field(description="Where it runs: aws, gcp, or local (here).")
    scheduler: Literal["slurm", "batch"] = Field(
        "slurm", description="slurm, or batch: AWS Batch, described under `batch` instead of `partitions`."
    )
    access: AccessConfig = Field(default_factory=AccessConfig, description="How to reach the login machine.")
    controller: ControllerConfig = Field(default_factory=ControllerConfig, description="The controller.")
    login: LoginConfig = Field(default_factory=LoginConfig, description="Login machines.")
    partitions: list[PartitionConfig] = Field(default_factory=list, description="Slurm's partitions.")
    storage: StorageConfig = Field(default_factory=StorageConfig, description="Directories.")
    image: ImageConfig = Field(default_factory=ImageConfig, description="What machines boot from.")
    hooks: list[HookConfig] = Field(default_factory=list, description="Post-install scripts.")
    budget: BudgetConfig = Field(default_factory=BudgetConfig, description="What it may spend.")
    network: NetworkConfig = Field(default_factory=NetworkConfig, description="Its network.")
    slurm: SlurmConfig = Field(default_factory=SlurmConfig, description="Slurm's timers.")
    aws: AwsConfig | None = Field(None, description="Settings of the whole cluster that only AWS has.")
    local: LocalConfig | None = Field(None, description="The local cloud's behaviour (provider local).")
    batch: BatchConfig | None = Field(None, description="AWS Batch (scheduler batch).")
    machines: dict[str, Override] = Field(
        default_factory=dict, description="Facts of machines that win over the snapshot, by machine type."
    )


class BenchmarkConfig(Section):
    """What `slurm-stacks:benchmark` may say: the training that follows creation."""

    enabled: bool = Field(True, description="false: bring the cluster up and down without a training.")
    script: Literal["keras-mnist"] = Field("keras-mnist", description="The training.")
    partition: str | None = Field(None, description="Where it runs; the default partition if left out.")
    nodes: int = Field(1, ge=1, description="Nodes of the job.")
    gpus_per_node: int | None = Field(
        None, ge=0, description="GPUs asked for on each node (--gres); all of the node's by default."
    )
    epochs: int = Field(8, ge=1, le=10000, description="Passes over the data.")
    profile: Literal["published", "sync", "local-sgd"] = Field(
        "sync",
        description="published: tf_keras fit as in the published runs. sync: our synchronous loop. "
        "local-sgd: workers average their weights every few steps.",
    )
    data: Literal["auto", "mnist", "synthetic"] = Field(
        "auto", description="auto: MNIST where it can be had, else synthetic digits; the result says which."
    )
    batch: int = Field(64, ge=1, le=60000, description="Examples a worker and step.")

    @field_validator("profile", mode="before")
    @classmethod
    def _not_yet(cls, value: object) -> object:
        if value == "local-sgd":
            raise refusal('"published" or "sync"', "local-sgd is not built yet: use sync")
        return value
