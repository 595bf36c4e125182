"""The design's types. `infra.design` makes them, and every machine of a cluster reads them.

They are plain frozen dataclasses, because machines have only the standard library. Units: MiB or GiB,
seconds, USD.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from node.health.model import Health, JobScript
from node.sites import AwsSite, CloudSite, GcpSite, LocalSite, MountSource

# The accelerators of a node, as the design describes them. Plain data, which every machine reads.

SUBNET_MANAGED = frozenset({"b200"})
"""GPUs whose NVSwitches NVIDIA's NVLink Subnet Manager programs, by the kernel's InfiniBand modules.

Without it nvidia-smi sees all GPUs, and every program fails with CUDA's error 802 (NVIDIA's Fabric Manager
user guide, section 1.3.2; NVIDIA/gpu-operator#2781 on p6-b200).
"""


@dataclass(frozen=True, slots=True)
class Accelerator:
    """The accelerators of a node: Slurm's generic resource `gpu:<type>:<count>`."""

    type: str
    """Slurm's GRES type: v100, t4, a100, a10g, trainium."""
    count: int
    """Devices on each node."""
    gres: str = "gpu"
    """The name of the generic resource: `gpu`, or `neuron` for Trainium."""
    simulated: bool = False
    """True on the local stack: Slurm counts and allocates devices that do not exist."""
    cores: int = 0
    """NeuronCores of a device, if jobs ask for cores; 0: they ask for devices."""

    @property
    def resource(self) -> str:
        """The generic resource that jobs ask for."""
        return f"{self.gres}core" if self.cores else self.gres

    @property
    def units(self) -> int:
        """How much of it a node has."""
        return self.count * (self.cores or 1)

    @property
    def subnet_managed(self) -> bool:
        """Whether the devices are of no use before a subnet manager has joined them."""
        return self.type in SUBNET_MANAGED and self.count > 1 and not self.simulated


# What the design says of the containers of jobs.

IMAGES = "/var/cache/enroot"
"""Where a node keeps the layers of images that it fetched, unless the stack file says otherwise."""


@dataclass(frozen=True, slots=True)
class Package:
    """A Debian package that machines install, known by its hash."""

    source: str
    """A path in the project, or an address."""
    sha256: str

    def archived(self) -> str:
        """Where a machine finds it: its address, or its path in the node archive."""
        return self.source if "://" in self.source else f"packages/{self.sha256}.deb"


@dataclass(frozen=True, slots=True)
class Containers:
    """What runs the containers of jobs."""

    runtime: str
    """oci: Slurm's `--container` with crun. pyxis: `--container-image` with Enroot and Pyxis."""
    packages: tuple[Package, ...] = ()
    """pyxis: the packages with Enroot and Pyxis; empty if the image has them."""
    images: str = IMAGES
    """pyxis: the folder of layers that were fetched."""


# The design's types of storage: what machines mount, and how fast a disk is.

BUCKETS = ("s3", "gcs")
"""The kinds of mounts that are buckets."""


@dataclass(frozen=True, slots=True)
class Gp3:
    """The performance of an EBS volume of type gp3. `None` means what every volume has."""

    iops: int | None = None
    throughput: int | None = None
    """MiB/s."""


@dataclass(frozen=True, slots=True)
class Mount:
    """A directory that machines share, or a scratch directory of each node."""

    path: str
    kind: str
    """nfs | efs | filestore | fsx_lustre | nvme | s3 | gcs | bind (local stack: a folder of this machine)"""
    roles: tuple[str, ...] = ("controller", "login", "compute")
    served_by: str | None = None
    """The role whose machine exports it (nfs); `None` if a service or somebody's own NFS server does."""
    options: str = "defaults"
    size_gib: int | None = None
    deployment: str | None = None
    """fsx_lustre: the deployment type (SCRATCH_2, PERSISTENT_2, …); filestore: the tier."""
    storage_type: str | None = None
    """fsx_lustre: SSD | HDD."""
    throughput: int | None = None
    """fsx_lustre with a persistent deployment type: MB/s for each TiB."""
    s3_import: str | None = None
    """fsx_lustre: the `s3://bucket/prefix` whose objects appear as files."""
    s3_export: str | None = None
    """fsx_lustre: the `s3://bucket/prefix` to which changed files are written."""
    name: str = ""
    """Its key below `storage` in the stack file: home, apps, scratch or local_scratch."""
    gp3: Gp3 | None = None
    """nfs on AWS: the performance of the controller's disk."""
    existing: str | None = None
    """What is there already, and stays when the cluster goes: `fs-…`, `vol-…`, the name of a disk or of a
    Filestore instance, `server:/path` of an NFS server, or the address of a bucket."""
    security_group: str | None = None
    """AWS, existing: the group of its network interfaces, in which the cluster opens its ports."""
    keep: bool = False
    """Whether it stays when the cluster is destroyed."""
    snapshot: bool = False
    """Whether a snapshot (nfs) or a backup (fsx_lustre) is made when the cluster is destroyed."""
    restore: str | None = None
    """The snapshot or the backup with which it begins."""

    def bucket(self) -> tuple[str, str]:
        """The name and the prefix of its bucket: a prefix ends with a slash, or is empty."""
        name, _, prefix = str(self.existing).partition("://")[2].partition("/")
        return name, f"{prefix}/" if prefix else ""

    @property
    def writable(self) -> bool:
        """Whether users may write to its bucket."""
        return "rw" in self.options.split(",")


# The part of a design that says how the local cloud behaves. Its agent follows these settings.


@dataclass(frozen=True, slots=True)
class LocalCloud:
    """The limits and the simulated failures of the local cloud. `None` means no limit."""

    boot_delay: float = 0.0
    """Seconds from the launch of a machine until it runs."""
    boot_spread: float = 0.0
    """The greatest additional delay in seconds. Each machine gets its own random delay up to this value."""
    quota_nodes: int | None = None
    """The number of compute machines at one time. A launch beyond it fails, as it would on a cloud."""
    quota_gpus: int | None = None
    """The number of the machines' devices at one time."""
    capacity: dict[str, int] = field(default_factory=dict)
    """Pool -> the number of machines at one time. A pool is a partition's name, or `partition/zone`."""
    never_register: float = 0.0
    """The share of compute machines (0 to 1) that run but never register as a node."""
    api_error: str | None = None
    """The error with which calls fail: quota | capacity | placement | permission | throttled | config."""
    api_latency: float = 0.0
    """Seconds that are added to every call."""
    list_lag: float = 0.0
    """Seconds for which a new machine is missing from the list."""


# The part of a design (`node.model`) that describes AWS Batch, for stacks that use it instead of Slurm.

CACHING_GIB = 48
"""The size of an image of machines that holds a container image as well: the published one had 12 GB, and
Docker needs its layers packed and unpacked."""


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
    container_image: str | None
    """The image, or `None` for the one that is built and pushed to `repository`."""
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
    parameters: dict[str, str] = field(default_factory=dict)
    """Values of the placeholders `Ref::name` in the command."""
    timeout: int | None = None
    """The time limit of the whole job, in seconds."""
    repository: str | None = None
    """The name of the repository that the stack makes; `None` if the image exists already."""
    cached: bool = False
    """Whether the baked image of the machines has the container image in Docker's cache."""
    shared_memory_mib: int = 64
    efa: int = 0
    """Elastic Fabric Adapters of each node that the container gets."""
    file_system: str = "stack"
    """stack: the file system lives as long as the stack. job: it is made for each job."""
    start_on_manifest: bool = False
    tags: dict[str, str] = field(default_factory=dict)
    vcpu_price_hour: float | None = None
    """USD an hour for a vCPU of the most expensive of `machines`; `None` if the price of one is not known."""


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
    """In process mode, partition -> its blocks of ports (`node.slurm.addressing`)."""
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
