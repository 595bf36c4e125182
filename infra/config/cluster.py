"""The models of `slurm-stacks:cluster`. Field names are a contract; descriptions go into the schema.

`infra.config.storage` and `infra.config.jobs` have its two largest sections.
"""

from __future__ import annotations

import ipaddress
from typing import Annotated, Literal

from pydantic import Field

from infra.config.fields import (
    ABSOLUTE_PATH,
    APT_WORD,
    BACKUPS,
    BOUNDARY,
    CPU_PLATFORM,
    FINGERPRINT,
    HTTPS,
    KEY_PAIR,
    KMS_KEY,
    MEMBER,
    PLACEMENT_GROUP,
    ROLE_PATH,
    SHA256,
    SUBNET,
    VPC,
    AcceleratorType,
    Cidr,
    ClusterName,
    Day,
    Distribution,
    Name,
    NetworkTags,
    Reservation,
    Section,
    SecurityGroups,
    Text,
    TimeLimit,
    Usd,
)
from infra.config.jobs import BatchConfig
from infra.config.overrides import InstanceTemplateOverrides, LaunchTemplateOverrides
from infra.config.storage import GROWS, Gp3Config, StorageConfig
from infra.effects import HERE, Kind, Outcome, effect
from infra.instance_types.catalog import Override
from node.design.containers import IMAGES

Net = ipaddress.IPv4Network | ipaddress.IPv6Network
DEFAULT_CIDR = "10.0.0.0/16"
Zones = Annotated[list[str], Field(description="Zones, tried in this order.")]

# What a change does, where several keys say the same.
OTHER_CLUSTER = "another cluster; the one that is up is destroyed"
OTHER_RELEASE = "another release of Slurm is another cluster"
OTHER_IMAGE = "another image is another cluster"
ANOTHER_CLUSTER = effect(Outcome(Kind.DATA, OTHER_CLUSTER))
MOVES = "with network.aws it changes its subnet: a new head"
UNDELETED = "can be deleted only without nodes: until then `up` says so; run it again later"
KEEP_IMAGE = (
    "the controller and login machines keep their image until you replace them: `pulumi up --replace`"
)
KEEP_DISK = "the controller and login machines keep their disk until you replace it: `pulumi up --replace`"
OF_NODES = effect(aws=Outcome(Kind.RENEWED, KEEP_IMAGE), gcp=Outcome(Kind.RENEWED, KEEP_DISK))
ROOT_DISK = effect(
    aws=Outcome(
        Kind.LIVE, "EBS volumes only grow; a root file system grows at its machine's next boot", Kind.NEVER
    ),
    gcp=Outcome(Kind.LIVE, GROWS, Kind.NEVER),
    local=Outcome(Kind.NOTHING, HERE),
)
ORIGIN = effect(
    clouds=Outcome(Kind.NEVER, "heads and nodes have one Slurm: down, then up"),
    local=Outcome(Kind.DATA, OTHER_IMAGE),
)
WHOLE_SUBNETWORK = Outcome(Kind.NOTHING, "the subnetwork has all of network.cidr", design=())


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

    cidr: Annotated[Cidr | None, effect(clouds=Outcome(Kind.MOVED, "it is a new network"))] = Field(
        None, description="The network's addresses; 10.0.0.0/16 by default."
    )
    public_cidr: Annotated[
        Cidr | None,
        effect(
            aws=Outcome(Kind.MOVED, "to addresses that a subnet has now: not possible"), gcp=WHOLE_SUBNETWORK
        ),
    ] = Field(None, description="AWS: part for controller (its upper half) and login; chosen by default.")
    private_cidr: Annotated[
        Cidr | None,
        effect(
            aws=Outcome(
                Kind.MOVED,
                "with a Lustre file system of the cluster's own, or to addresses that a subnet has now: not "
                "possible",
            ),
            gcp=WHOLE_SUBNETWORK,
        ),
    ] = Field(None, description="AWS: part for compute nodes; chosen by default.")
    peers: Annotated[list[Cidr], effect(Kind.NOTHING, design=())] = Field(
        default_factory=list,
        description="Networks that this one is or will be connected to (VPN, peering): must not overlap.",
    )
    zones: Annotated[
        Zones,
        effect(
            aws=Outcome(
                Kind.NODES,
                "if the head's zone is removed, head, /home and /apps are recreated empty",
                design=(),
            ),
            gcp=Outcome(Kind.NODES, "the head stays in gcp:zone", design=()),
        ),
    ] = Field(
        default_factory=list,
        description="Zones for nodes, tried in this order; empty: all that fit (AWS), gcp:zone (Google "
        "Cloud).",
    )
    aws: Annotated[
        AwsNetwork | None,
        effect(
            aws=Outcome(
                Kind.MOVED,
                "another network; Lustre is recreated in another VPC, /home and /apps in another zone",
            ),
            design=("network.vpc", "network.public_subnet", "network.private_subnets"),
        ),
    ] = Field(None, description="An existing VPC.")
    gcp: Annotated[
        GcpNetwork | None,
        effect(
            gcp=Outcome(Kind.MOVED, "another network; in another VPC network Filestore is recreated"),
            design=("network.vpc", "network.private_subnets"),
        ),
    ] = Field(None, description="An existing network.")

    def whole(self) -> Net:
        """Return all of the network's addresses."""
        return ipaddress.ip_network(self.cidr or DEFAULT_CIDR)

    def subnets(self) -> tuple[Net, Net]:
        """Return the public part, for controller and login, and the private part, for nodes.

        A part that the stack file does not give is the lower or the upper half of the network.
        """
        public, private = self.whole().subnets(1)
        if self.public_cidr is not None:
            public = ipaddress.ip_network(self.public_cidr)
        if self.private_cidr is not None:
            private = ipaddress.ip_network(self.private_cidr)
        return public, private


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


class PackageConfig(Section):
    """A Debian package that machines install, known by its hash."""

    source: str = Field(
        description="A path in this project, or an address: s3:// on AWS, gs:// on Google Cloud, https:// on "
        "both. It ends in .deb."
    )
    sha256: str = Field(pattern=SHA256, description="The SHA-256 of the file: sha256sum FILE.")


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
LONGEST_SUSPEND = 366 * 86400
# slurmctld accepts up to 65535 s, and the prolog that waits gets more than resume_timeout.
LONGEST_TIMEOUT = 65000
LONGEST_SCRIPT = 16384
"""The most characters of a script in the stack file, which becomes part of every machine's settings."""


class AccessConfig(Section):
    """How users reach the login machine. The default is the way that needs no open port on that cloud."""

    mode: Annotated[
        Literal["ssm", "iap", "ssh"] | None,
        effect(
            aws=Outcome(Kind.LIVE, f"the head gets a public address, or gives it up; {MOVES}"),
            gcp=Outcome(Kind.LIVE, "the login machine gets a public address, or gives it up"),
        ),
    ] = Field(
        None,
        description="ssm: AWS Session Manager. iap: Google's Identity-Aware Proxy. ssh: a public address and "
        "port 22 for `ssh_cidrs`. Default: ssm on AWS, iap on Google Cloud.",
    )
    ssh_cidrs: Annotated[list[Cidr], effect(clouds=Kind.LIVE)] = Field(
        default_factory=list,
        description="With mode ssh: networks that may reach port 22, e.g. 203.0.113.0/24.",
    )
    allow_ssh_from_anywhere: Annotated[bool, effect(Kind.NOTHING, design=())] = Field(
        False, description="Must also be true if ssh_cidrs contains 0.0.0.0/0 or ::/0."
    )
    key: Annotated[
        str | None, effect(aws=Outcome(Kind.TAKEOVER, "EC2 gives a machine its key pair at the launch"))
    ] = Field(
        None,
        pattern=KEY_PAIR,
        max_length=255,
        description="Name of an EC2 key pair that exists in the region (AWS). Google Cloud uses OS Login.",
    )
    users: Annotated[list[Annotated[str, Field(pattern=MEMBER, max_length=254)]], effect(gcp=Kind.LIVE)] = (
        Field(
            default_factory=list,
            description="Google Cloud: members of IAM who may log in, e.g. user:ada@example.com. They get "
            "their roles on this cluster's bucket and service accounts; those in the project are granted "
            "once.",
        )
    )


class ImageConfig(Section):
    """What machines boot from: a distribution, your own image, or images that are built first."""

    source: Annotated[
        Distribution | None,
        effect(clouds=Outcome(Kind.NEVER, OTHER_RELEASE), design=("image.source", "access.user")),
    ] = Field(
        None,
        description="The distribution. Default: debian-13, whose Slurm is maintained, unless the stack needs "
        "what only ubuntu-24.04 has (accelerators, EFA, FSx for Lustre, Session Manager, your own images).",
    )
    id: Annotated[str | None, OF_NODES] = Field(
        None,
        description="An existing image of Ubuntu 24.04, instead of the distribution's: ami-… on AWS, "
        "projects/…/global/images/… on Google Cloud.",
    )
    bake: Annotated[bool, OF_NODES] = Field(
        False,
        description="Build images from `source` or `id` first, with the nodes' software, so that nodes start "
        "faster.",
    )
    revision: Annotated[str | None, OF_NODES] = Field(
        None,
        pattern=r"^[a-z0-9][a-z0-9.-]{0,30}$",
        description="Any word, such as the day: another one has `up` build the baked images again, with the "
        "packages that there are by then.",
    )


class OwnImageConfig(Section):
    """An image for these machines only."""

    id: str = Field(
        description="An image of Ubuntu 24.04: ami-… on AWS, projects/…/global/images/… on Google Cloud."
    )


class BackupConfig(Section):
    """Backups of Slurm's state and accounting to a bucket, by a timer on the controller."""

    bucket: str = Field(
        pattern=BACKUPS,
        description="s3://bucket/prefix on AWS, gs://bucket/folder on Google Cloud, a folder of this machine "
        "on the local stack. It is there already, and `down` leaves it.",
    )
    every_hours: int = Field(24, ge=1, le=24 * 31, description="Hours between two backups.")
    keep: int = Field(14, ge=1, le=1000, description="How many stay; older ones are deleted.")


class ControllerConfig(Section):
    """The machine that runs slurmctld and exports /home and /apps."""

    instance_type: Annotated[str | None, effect(clouds=Kind.PAUSE, local=Kind.LIVE)] = Field(
        None, description="Instance type. Default: m5.large (aws), n1-standard-2 (gcp), local.small (local)."
    )
    disk_gib: Annotated[int | None, ROOT_DISK] = Field(
        None, ge=10, le=16384, description="Root disk in GiB; 50 by default."
    )
    gp3: Annotated[Gp3Config | None, effect(aws=Kind.LIVE)] = Field(
        None, description="AWS: the performance of the root disk."
    )
    security_groups: Annotated[SecurityGroups, effect(aws=Kind.LIVE)] = Field(
        default_factory=list,
        description="AWS: more security groups of the VPC under network.aws; they only add what is allowed.",
    )
    network_tags: Annotated[NetworkTags, effect(gcp=Kind.LIVE)] = Field(
        default_factory=list, description="Google Cloud: network tags, for firewall rules of yours."
    )
    image: Annotated[
        OwnImageConfig | None,
        effect(aws=Outcome(Kind.NOTHING, KEEP_IMAGE), gcp=Outcome(Kind.NOTHING, KEEP_DISK)),
    ] = Field(None, description="Its own image; null: the cluster's.")
    state: Annotated[
        Literal["kept", "machine"] | None,
        effect(
            Outcome(
                Kind.LIVE,
                "kept: slurmctld stops while its files are copied; machine: the disk and all on it are "
                "deleted",
            ),
            design=(),
        ),
    ] = Field(
        None,
        description="Where Slurm's queue, its accounting and the machine's SSH host keys are. kept: on a "
        "disk of their own, with which another controller takes over: jobs go on. machine: on the root "
        "disk, and lost with the machine. Default: kept if the file has slurm: {accounting: true}, else "
        "machine.",
    )
    backup: Annotated[
        BackupConfig | None,
        effect(Outcome(Kind.LIVE, "what is in the bucket stays"), design=("cluster.backup",)),
    ] = Field(None, description="Scheduled backups of Slurm's state and accounting; null: none.")


class LoginConfig(Section):
    """Machines where users log in and submit jobs."""

    count: Annotated[
        int,
        effect(
            Kind.LIVE,
            aws=Outcome(
                Kind.LIVE,
                f"from or to 0 with access.mode ssh, the head gives up or gets its address; {MOVES}",
            ),
            design=(),
        ),
    ] = Field(0, ge=0, le=10, description="How many; 0: the controller is the login machine.")
    instance_type: Annotated[str | None, effect(clouds=Kind.PAUSE, local=Kind.LIVE)] = Field(
        None, description="Instance type; the controller's by default."
    )
    disk_gib: Annotated[int | None, ROOT_DISK] = Field(
        None, ge=10, le=16384, description="Root disk in GiB; 50 by default."
    )
    gp3: Annotated[Gp3Config | None, effect(aws=Kind.LIVE)] = Field(
        None, description="AWS: the performance of the root disk."
    )
    security_groups: Annotated[SecurityGroups, effect(aws=Kind.LIVE)] = Field(
        default_factory=list, description="AWS: more security groups, as of the controller."
    )
    network_tags: Annotated[NetworkTags, effect(gcp=Kind.LIVE)] = Field(
        default_factory=list, description="Google Cloud: network tags, as of the controller."
    )
    open_metadata: Annotated[bool, effect(clouds=Kind.LIVE)] = Field(
        False,
        description="true: programs of every user there may ask the cloud's metadata address, and so act "
        "with the login machines' identity; false: root's alone. A controller's is never open.",
    )


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


class PartitionConfig(Section):
    """A Slurm partition of equal nodes, named <partition>-0, <partition>-1, and so on."""

    name: Annotated[
        Name, effect(Outcome(Kind.LIVE, "removing one ends the jobs on its nodes"), design=())
    ] = Field(description="Small letters, digits, hyphens. Job scripts name it.")
    instance_type: Annotated[str, effect(Kind.RENEWED)] = Field(
        description="Instance type, e.g. c4.2xlarge, n1-standard-2, local.small."
    )
    accelerator: Annotated[AcceleratorConfig | None, effect(Kind.RENEWED)] = Field(
        None, description="Accelerators of a node; null on AWS: those of the instance type."
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
    exclusive: Annotated[bool, effect(Kind.LIVE)] = Field(
        False, description="Whether a job never shares its nodes with another job."
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

    def reservations(self) -> tuple[str, ...]:
        """Return the reservations. A launch template names a single one by its id, without its owner."""
        names = [self.reservation] if isinstance(self.reservation, str) else self.reservation or []
        return tuple(
            name.rpartition("capacity-reservation/")[2] if len(names) == 1 else name for name in names
        )


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


class RepositoryConfig(Section):
    """An apt repository with packages of Slurm, and the key that signs it."""

    url: str = Field(pattern=HTTPS, description="The address in a deb line.")
    suite: str = Field(pattern=APT_WORD, description="The suite in a deb line; / for a flat repository.")
    components: list[str] = Field(
        default_factory=list, description="The components in a deb line; empty for a flat repository."
    )
    key: str = Field(pattern=HTTPS, description="The address of the key, in ASCII armour.")
    fingerprint: str = Field(
        pattern=FINGERPRINT, description="The key's fingerprint: gpg --show-keys --fingerprint FILE."
    )


class SlurmOriginConfig(Section):
    """At most one of these keys says where Slurm comes from. Without one it is the distribution's."""

    source: Annotated[Literal["debian-13"] | None, ORIGIN] = Field(
        None,
        description="Build Debian 13's source package of Slurm, which its security team maintains, for the "
        "image's distribution while the images are baked (image: {bake: true}).",
    )
    packages: Annotated[list[PackageConfig], ORIGIN] = Field(
        default_factory=list,
        description="Packages of one release of Slurm, instead of the distribution's: built from Debian's or "
        "Ubuntu's source (slurmctld, slurmd, slurm-client, what they need) or from SchedMD's (slurm-smd-…).",
    )
    repository: Annotated[RepositoryConfig | None, ORIGIN] = Field(
        None, description="An apt repository that has these packages, instead."
    )


class SlurmConfig(SlurmOriginConfig):
    """Slurm's timers in seconds, whose defaults depend on the provider, your scripts, and Slurm's origin."""

    suspend_time: Annotated[int | None, effect(Kind.LIVE)] = Field(
        None, ge=1, le=LONGEST_SUSPEND, description="Idle seconds after which a node is powered down."
    )
    suspend_timeout: Annotated[int | None, effect(Kind.LIVE)] = Field(
        None, ge=1, le=LONGEST_TIMEOUT, description="Seconds that a power-down may take."
    )
    resume_timeout: Annotated[int | None, effect(Kind.LIVE)] = Field(
        None,
        ge=1,
        le=LONGEST_TIMEOUT,
        description="Seconds from the launch of a node to its registration. On a cloud the default is the "
        "sum of what the boot's steps may take, which is less with image: {bake: true}.",
    )
    slurmd_timeout: Annotated[int | None, effect(Kind.LIVE)] = Field(
        None, ge=5, le=LONGEST_TIMEOUT, description="Seconds of silence after which a node is DOWN."
    )
    reconcile_interval: Annotated[float | None, effect(Kind.LIVE)] = Field(
        None,
        ge=0.5,
        le=3600,
        description="Seconds between two comparisons of Slurm's nodes with the cloud's machines.",
    )
    accounting: Annotated[
        bool | None,
        effect(
            Outcome(
                Kind.LIVE,
                "slurmdbd and its database start or stop; they are on by default where machines boot",
            )
        ),
    ] = Field(
        None,
        description="Run slurmdbd and its database on the controller: `sacct` shows jobs that are over, and "
        "clients that ask it work (docs/clients.md). By default true on clouds and on local machines that "
        "boot, but false on a Slurm that nobody maintains (docs/versions.md) and with slurm.packages or "
        "slurm.repository; false on process machines, where it takes 70 MiB of memory, about 7 s of the "
        "controller's first start and 2 s of each further one, and the first `up` installs slurmdbd and "
        "MariaDB where they are missing.",
    )
    accept_unmaintained: Annotated[Day | None, effect(Kind.NOTHING, design=())] = Field(
        None,
        description="You accept what is published until this day against a release of Slurm that nobody "
        "maintains (docs/versions.md): without it such a stack has no accounting and no containers for jobs.",
    )
    prolog: Annotated[JobScriptConfig | None, effect(Kind.NODES)] = Field(
        None, description="Runs on each node of a job before it, after our own checks; null: none."
    )
    epilog: Annotated[JobScriptConfig | None, effect(Kind.NODES)] = Field(
        None, description="Runs on each node of a job after it; null: none."
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

    def has_process_machines(self) -> bool:
        """Return whether machines are process trees of this machine."""
        return self.provider == "local" and (self.local is None or self.local.isolation == "process")
