"""The design's types. `infra.design` makes them, and every machine of a cluster reads them.

They are plain frozen dataclasses, because machines have only the standard library. Units: MiB or GiB,
seconds, USD.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from node.accelerator import Accelerator as Accelerator  # noqa: PLC0414  the design's types are here
from node.batch import Batch
from node.containers.model import Containers as Containers  # noqa: PLC0414
from node.containers.model import Package
from node.health.model import Health, JobScript
from node.local_cloud import LocalCloud
from node.sites import AwsSite, CloudSite, GcpSite, LocalSite, MountSource
from node.slurm.origin import Repository
from node.storage import Gp3 as Gp3  # noqa: PLC0414
from node.storage import Mount as Mount  # noqa: PLC0414

SETTINGS_VERSION = "slurm-stacks/settings/v1"
SLURMDBD_PORT = 6819
PROCESS, CONTAINER = "process", "container"
"""How the local stack isolates machines (`ClusterDesign.isolation`)."""
INLINE = "script"
"""The source of a hook whose text is in the stack file, as reports name it."""
KERAS_MNIST = "keras-mnist"
"""The built-in training."""
APPS, SHARED = "/apps", "/home"
"""Paths of the shared directories on all machines but processes."""


@dataclass(frozen=True, slots=True)
class Host:
    """A machine that exists as long as the cluster does."""

    name: str
    role: str
    """controller | login"""
    tags: tuple[str, ...]
    """What the machine does: controller, login, nfs, public. Code asks for these and never for the cloud."""
    instance_type: str
    disk_gib: int
    image: str | None = None
    """Its own machine image; `None` means the cluster's (`ClusterDesign.image`)."""
    price_hour: float | None = None
    """USD an hour; `None` if the snapshot knows no price."""
    gp3: Gp3 | None = None
    """AWS: the performance of its root disk."""
    open_metadata: bool = False
    """Whether every user of a login machine may ask the cloud's metadata address, not root alone."""


@dataclass(frozen=True, slots=True)
class Partition:
    """A Slurm partition of equal nodes, named `<name>-0` … `<name>-<max-1>`."""

    name: str
    instance_type: str
    cpus: int
    memory_mib: int
    """Slurm's RealMemory, which is below what the machine reports."""
    min: int
    max: int
    """How many nodes: the first `min` are static, up as long as the cluster is; `max` counts all."""
    accelerator: Accelerator | None = None
    spot: bool = False
    placement: str = "none"
    """none | cluster"""
    placement_group: str | None = None
    """AWS: name of an existing placement group; `None` means one of its own if `placement` is cluster."""
    efa: int = 0
    """Number of Elastic Fabric Adapter interfaces on each node."""
    reservation: str | None = None
    reservations: tuple[str, ...] = ()
    """AWS: ids or ARNs of several capacity reservations, of which the stack makes one group."""
    capacity_block: bool = False
    """AWS: whether the reservation is a Capacity Block for ML."""
    time_limit: str = "INFINITE"
    """The time limit in Slurm's notation: [days-]hours:minutes:seconds, or INFINITE."""
    exclusive: bool = False
    default: bool = False
    image: str | None = None
    price_hour: float | None = None
    """USD for each node and hour; `None` if the snapshot knows no price."""
    disk_gib: int = 0
    """The node's root disk; 0 for processes, which have none."""
    zones: tuple[str, ...] = ()
    """Zones in which nodes may start, tried in this order; empty means the cluster's."""
    secure_boot: bool = False
    """Google Cloud: whether nodes load signed kernel modules only."""
    placement_policy: str | None = None
    """Google Cloud: name of the placement policy that the reservation was made with."""
    disk_type: str | None = None
    min_cpu_platform: str | None = None
    """Google Cloud: type of a node's root disk (`None`: pd-balanced), the oldest processors it may have."""
    topology: bool = False
    """Whether Slurm chooses nodes by where the cloud says that their machines are."""
    local_ssds: int = 0
    """Google Cloud: number of local SSDs of 375 GiB attached to each node for a local scratch."""
    gp3: Gp3 | None = None
    """AWS: the performance of a node's root disk."""
    open_metadata: bool = False
    """Whether jobs may ask the cloud's metadata address, and so act with their node's identity."""

    def nodes(self) -> list[str]:
        return [f"{self.name}-{i}" for i in range(self.max)]

    @property
    def usable_gpus(self) -> int:
        """The number of a node's GPUs that compute. Simulated ones are only counted."""
        accelerator = self.accelerator
        if accelerator is None or accelerator.gres != "gpu" or accelerator.simulated:
            return 0
        return accelerator.count

    def static_nodes(self) -> list[str]:
        return self.nodes()[: self.min]


@dataclass(frozen=True, slots=True)
class Hook:
    """A user's script that runs once on each machine of a role before the machine takes work."""

    role: str
    """controller | login | compute | all"""
    source: str
    """A path in the project, an address, or `INLINE` if the stack file has the text itself."""
    args: tuple[str, ...] = ()
    timeout: int = 600
    text: str | None = None
    """The script's text if the stack file has it."""


@dataclass(frozen=True, slots=True)
class Budget:
    """What the cluster may spend in its life; `None` means no limit."""

    max_usd: float | None = None
    max_hours: float | None = None
    """The limit in node-hours."""
    running_jobs: str = "keep"
    """What happens to running jobs when the budget is used up: keep | cancel."""


@dataclass(frozen=True, slots=True)
class SlurmSettings:
    """Slurm's timers, in seconds, and whether it keeps accounts."""

    suspend_time: int = 300
    """How long a node may be idle before it is powered down."""
    suspend_timeout: int = 120
    """How long a power-down may take."""
    resume_timeout: int = 900
    """How long a node may take from its launch to its registration."""
    slurmd_timeout: int = 60
    """How long a slurmd may not answer before its node is DOWN."""
    reconcile_interval: float = 30.0
    accounting: bool = False
    prolog: JobScript | None = None
    epilog: JobScript | None = None
    source: str | None = None
    """The distribution whose source package of Slurm the images are built from: debian-13."""
    packages: tuple[Package, ...] = ()
    """Packages of Slurm, instead of the distribution's."""
    repository: Repository | None = None
    """An apt repository with packages of Slurm, instead of the distribution's."""


@dataclass(frozen=True, slots=True)
class Access:
    """How users reach the login machine."""

    mode: str = "local"
    """ssm | iap | ssh | local (this machine)"""
    ssh_cidrs: tuple[str, ...] = ()
    """The networks from which port 22 can be reached."""
    key: str | None = None
    """The name of an EC2 key pair."""


@dataclass(frozen=True, slots=True)
class Network:
    """The cluster's own network, or an existing one that is given by its ids."""

    cidr: str | None = None
    public_cidr: str | None = None
    private_cidr: str | None = None
    zones: tuple[str, ...] = ()
    """Zones for nodes, tried in this order; empty means every zone that offers the instance type."""
    vpc: str | None = None
    """Id of an existing VPC (aws), or name of an existing network (gcp)."""
    public_subnet: str | None = None
    private_subnets: tuple[str, ...] = ()
    nat: bool = True
    """AWS: whether nodes reach the internet by a NAT gateway; otherwise machines have public addresses."""


@dataclass(frozen=True, slots=True)
class Image:
    """The image from which machines boot."""

    source: str | None = None
    """The name of a distribution: ubuntu-24.04."""
    id: str | None = None
    """Id of an existing image, used instead of `source`."""
    bake: bool = False
    """Whether images are built from `source` or `id` first, by the steps of the bootstrap."""


@dataclass(frozen=True, slots=True)
class ClusterDesign:
    """Everything that is decided before any resource exists: pure data from `infra.design.design`."""

    name: str
    stack: str
    provider: str
    """aws | gcp | local"""
    isolation: str
    """How machines are isolated: `vm` on a cloud; `process` or `container` on the local stack."""
    hosts: tuple[Host, ...]
    partitions: tuple[Partition, ...]
    mounts: tuple[Mount, ...]
    slurm: SlurmSettings = field(default_factory=SlurmSettings)
    hooks: tuple[Hook, ...] = ()
    containers: Containers | None = None
    health: Health | None = None
    budget: Budget = field(default_factory=Budget)
    region: str | None = None
    zone: str | None = None
    scheduler: str = "slurm"
    """slurm | batch"""
    project: str | None = None
    """The id of the Google Cloud project."""
    access: Access = field(default_factory=Access)
    network: Network = field(default_factory=Network)
    image: Image = field(default_factory=Image)
    local: LocalCloud = field(default_factory=LocalCloud)
    batch: Batch | None = None
    kms_key: str | None = None
    """AWS: ARN of the KMS key for all EBS disks; `None` means the account's default key."""
    trains: bool = True
    """Whether a training follows the creation; if so, a cloud's controller makes its environment."""
    requirements: str | None = None
    """The requirements file of that environment, relative to the stack file. `None` means the one locked."""

    def fetched(self, role: str | None, scheme: str) -> list[str]:
        """The addresses with a scheme (`s3://`) that machines of a role fetch: hooks and packages.

        Without a role: what a machine fetches that becomes an image, which runs no hooks.
        """
        found = [hook.source for hook in self.hooks if role is not None and hook.role in (role, "all")]
        found += [package.source for package in self.containers.packages] if self.containers else []
        found += [package.source for package in self.slurm.packages]
        return list(dict.fromkeys(source for source in found if source.startswith(scheme)))

    def partition(self, name: str) -> Partition:
        return next(p for p in self.partitions if p.name == name)

    def partition_of(self, node: str) -> Partition | None:
        """The partition of a node; `None` for a name that is not in the design."""
        prefix, _, index = node.rpartition("-")
        if not index.isdigit() or (len(index) > 1 and index.startswith("0")):
            return None
        return next((p for p in self.partitions if p.name == prefix and int(index) < p.max), None)

    def nodes_of(self, names: str) -> frozenset[str]:
        """The nodes of partitions, whose names are joined by commas as in a job's."""
        wanted = names.split(",")
        return frozenset(node for p in self.partitions if p.name in wanted for node in p.nodes())

    def static_nodes(self) -> frozenset[str]:
        """The nodes of all partitions that are always up."""
        return frozenset(node for p in self.partitions for node in p.static_nodes())

    def controller(self) -> Host:
        return next(h for h in self.hosts if h.role == "controller")

    def login_hosts(self) -> list[Host]:
        """The machines where users log in: the login machines, or else the controller."""
        return [h for h in self.hosts if h.role == "login"] or [self.controller()]


@dataclass(frozen=True, slots=True)
class BenchmarkDesign:
    """The training that follows the creation of the cluster."""

    script: str
    """KERAS_MNIST, or the path of a program of the user's, relative to the stack file."""
    partition: str
    nodes: int
    gpus_per_node: int
    epochs: int
    profile: str
    """published | sync | local-sgd"""
    data: str
    """auto | mnist | synthetic"""
    batch: int = 64
    learning_rate: float = 0.2
    """Examples for each worker and step, and the rate for a batch of 64."""
    seed: int = 0
    average_every: int | None = None
    """local-sgd: the steps that a worker trains alone. `None` means measured."""
    files: tuple[str, ...] = ()
    """A user's program: the paths of what is staged beside it. This field and the next ones are for programs
    only, those from `epochs` to `average_every` for the built-in training only."""
    arguments: tuple[str, ...] = ()
    requirements: str | None = None
    """The file with the packages of its environment. `None` means the training environment."""
    tasks_per_node: int = 1
    container: str | None = None
    """The path of the OCI bundle in which its tasks run. `None` means on the node itself."""

    @property
    def own(self) -> bool:
        """Whether it is a program of the user's."""
        return self.script != KERAS_MNIST

    @property
    def staged(self) -> tuple[str, ...]:
        """The paths of a user's program that are staged; empty for the built-in training."""
        return (self.script, *self.files) if self.own else ()


@dataclass(frozen=True, slots=True)
class Site:
    """What is known only when the cluster's first machine exists: addresses, ports, folders."""

    root: str
    """Prefix of the cluster's folders: `/`, or the run directory in process mode."""
    user: str
    """Slurm's SlurmUser."""
    controller_host: str
    controller_address: str
    slurmctld_port: int = 6817
    slurmd_port: int = 6818
    """In process mode the first of a range of ports, one for each node."""
    first_address: str | None = None
    """Process mode: address of the node with the first port; others follow. `None`: all have 127.0.0.1."""
    blocks: dict[str, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    """In process mode, partition -> its blocks of ports (`node.slurm.blocks`)."""
    slurmdbd_port: int = SLURMDBD_PORT
    python: str = "/usr/bin/python3"
    apps: str = "/apps"
    """Folder of shared software; training environments are in `<apps>/envs/<digest of the lock file>`."""
    shared: str = "/home"
    """Folder that every machine shares; benchmark runs are in `<shared>/bench`."""
    bucket: str | None = None
    """The bucket's name. `None` on the local stack, where the bucket is a folder."""
    secret: str | None = None
    """The secret that holds the munge key. `None` for processes, which have the key in their own folder."""
    mounts: dict[str, MountSource] = field(default_factory=dict)  # path -> source, where a path is not enough
    cloud_dns: bool = False
    """Whether the names of nodes can be resolved before the nodes boot."""
    cgroups: str | None = None
    """The mount point of cgroups version 1 for Slurm. `None` means that Slurm finds the cgroups itself."""
    cloud: AwsSite | GcpSite | LocalSite = field(default_factory=LocalSite)
    """The settings of the provider's elastic driver and boot steps."""
    addresses: dict[str, str] = field(default_factory=dict)
    """Host -> address, for the machines that exist as long as the cluster; empty on the local stack."""

    def of(self, provider: type[CloudSite]) -> CloudSite:
        """What `cloud` says; a ValueError where it is another provider's."""
        if not isinstance(self.cloud, provider):
            raise ValueError(f"site.cloud: {provider.__name__} is expected, not {type(self.cloud).__name__}")
        return self.cloud


@dataclass(frozen=True, slots=True)
class Settings:
    """The object that the cluster's machines read: the design, and what is known after deployment."""

    design: ClusterDesign
    site: Site
    api_version: str = SETTINGS_VERSION
