"""The design's types: made by `infra.design`, read by every machine of a cluster.

Plain frozen dataclasses, for machines have the standard library only. Units: MiB or GiB, seconds, USD.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import PurePosixPath

from infra.node.batch import Batch
from infra.node.local_cloud import LocalCloud

SETTINGS_VERSION = "slurm-stacks/settings/v1"
SLURMDBD_PORT = 6819


@dataclass(frozen=True, slots=True)
class Accelerator:
    """What a node carries beside its CPUs, as Slurm's generic resource `gpu:<type>:<count>`."""

    type: str
    """Slurm's GRES type: v100, t4, a100, a10g, trainium."""
    count: int
    """Devices a node."""
    gres: str = "gpu"
    """The generic resource's name: `gpu`, or `neuron` for Trainium."""
    simulated: bool = False
    """True on the local stack: Slurm allocates and counts devices that are not there."""


@dataclass(frozen=True, slots=True)
class Host:
    """A machine that lives as long as the cluster does."""

    name: str
    role: str
    """controller | login"""
    tags: tuple[str, ...]
    """What the machine does (controller, login, nfs, public): behaviour follows these, never the cloud."""
    machine: str
    disk_gib: int
    image: str | None = None
    """A machine image of its own, None for the cluster's (`ClusterDesign.image`)."""
    price_hour: float | None = None
    """USD an hour; None where the snapshot knows no price."""


@dataclass(frozen=True, slots=True)
class Partition:
    """A Slurm partition: a fleet of equal nodes named `<name>-0` … `<name>-<max-1>`."""

    name: str
    machine: str
    cpus: int
    memory_mib: int
    """What Slurm may hand out: RealMemory, below what the machine reports."""
    min: int
    """Static nodes: the first `min` are up as long as the cluster is."""
    max: int
    """Static and dynamic nodes together."""
    accelerator: Accelerator | None = None
    spot: bool = False
    placement: str = "none"
    """none | cluster"""
    placement_group: str | None = None
    """AWS: an existing group by its name; None: one of the partition's own where there shall be one."""
    efa: int = 0
    """Elastic Fabric Adapter interfaces a node; 0 without."""
    reservation: str | None = None
    capacity_block: bool = False
    """AWS: the reservation is a Capacity Block for ML."""
    time_limit: str = "INFINITE"
    """Slurm's notation: [days-]hours:minutes:seconds, or INFINITE."""
    exclusive: bool = False
    default: bool = False
    image: str | None = None
    price_hour: float | None = None
    """USD a node and hour; None where the snapshot knows no price."""
    disk_gib: int = 0
    """The node's own root disk; 0 where nodes have none (processes)."""
    zones: tuple[str, ...] = ()
    """Zones in which nodes may start, tried in this order; empty for the cluster's."""
    secure_boot: bool = False
    """Google Cloud: signed kernel modules only."""
    placement_policy: str | None = None
    """Google Cloud: the placement policy of the reservation, which is not the cluster's own."""
    local_ssds: int = 0
    """Google Cloud: local SSDs of 375 GiB attached to a node, where a local scratch asks for them."""

    def nodes(self) -> list[str]:
        return [f"{self.name}-{i}" for i in range(self.max)]

    def static_nodes(self) -> list[str]:
        return self.nodes()[: self.min]


@dataclass(frozen=True, slots=True)
class Mount:
    """A directory that machines share, or a scratch of their own."""

    path: str
    kind: str
    """nfs | efs | filestore | fsx_lustre | nvme | bind (the local stack: a folder of this machine's)"""
    roles: tuple[str, ...] = ("controller", "login", "compute")
    served_by: str | None = None
    """The role that exports it (nfs), or None where a service does."""
    options: str = "defaults"
    size_gib: int | None = None
    deployment: str | None = None
    """fsx_lustre: SCRATCH_2, PERSISTENT_2, …; filestore: its tier."""
    storage_type: str | None = None
    """fsx_lustre: SSD | HDD."""
    throughput: int | None = None
    """fsx_lustre, persistent deployments: MB/s a TiB."""
    s3_import: str | None = None
    """fsx_lustre: the `s3://bucket/prefix` whose objects appear as files."""
    s3_export: str | None = None
    """fsx_lustre: the `s3://bucket/prefix` to which changed files go."""


@dataclass(frozen=True, slots=True)
class Hook:
    """A script of the user's, run once on each machine of a role before it takes work."""

    role: str
    """controller | login | compute | all"""
    source: str
    args: tuple[str, ...] = ()
    timeout: int = 600


@dataclass(frozen=True, slots=True)
class Budget:
    """What the cluster may spend in its life; None is no limit."""

    max_usd: float | None = None
    max_hours: float | None = None
    """Node-hours."""
    running_jobs: str = "keep"
    """What becomes of them when it is used up: keep | cancel."""


@dataclass(frozen=True, slots=True)
class SlurmSettings:
    """Slurm's own timers, in seconds."""

    suspend_time: int = 300
    """Idle time after which a node is given back."""
    suspend_timeout: int = 120
    """How long a power-down may take."""
    resume_timeout: int = 900
    """How long a node may take from launch to registration."""
    slurmd_timeout: int = 60
    """Silence after which a node is DOWN."""
    reconcile_interval: float = 30.0
    accounting: bool = False


@dataclass(frozen=True, slots=True)
class Access:
    """How a person reaches the login machine."""

    mode: str = "local"
    """ssm | iap | ssh | local (this machine)"""
    ssh_cidrs: tuple[str, ...] = ()
    """Networks that may reach port 22."""
    key: str | None = None
    """Name of an EC2 key pair."""


@dataclass(frozen=True, slots=True)
class Network:
    """The cluster's own network, or an existing one by its ids."""

    cidr: str | None = None
    public_cidr: str | None = None
    private_cidr: str | None = None
    zones: tuple[str, ...] = ()
    """Zones for nodes, tried in this order; empty for every zone that offers the machine."""
    vpc: str | None = None
    """Existing network: VPC id (aws) or network name (gcp)."""
    public_subnet: str | None = None
    private_subnets: tuple[str, ...] = ()
    nat: bool = True
    """AWS: a NAT gateway is the way out; False: machines have public addresses."""


@dataclass(frozen=True, slots=True)
class Image:
    """What machines boot from."""

    source: str | None = None
    """A distribution: ubuntu-24.04."""
    id: str | None = None
    """An existing image, instead of `source`."""
    bake: bool = False
    """Build images by the bootstrap's own steps first, upon `source` or `id`."""
    cuda: str | None = None
    """CUDA to install, e.g. "12.5"; None for the newest that the accelerator takes."""


@dataclass(frozen=True, slots=True)
class ClusterDesign:
    """All that is decided before anything exists: pure data from `infra.design.design`."""

    name: str
    stack: str
    provider: str
    """aws | gcp | local"""
    machines: str
    """How a machine is made: `vm` on a cloud; `process` or `container` on the local stack."""
    hosts: tuple[Host, ...]
    partitions: tuple[Partition, ...]
    mounts: tuple[Mount, ...]
    slurm: SlurmSettings = field(default_factory=SlurmSettings)
    hooks: tuple[Hook, ...] = ()
    budget: Budget = field(default_factory=Budget)
    region: str | None = None
    zone: str | None = None
    scheduler: str = "slurm"
    """slurm | batch"""
    project: str | None = None
    """Google Cloud project."""
    access: Access = field(default_factory=Access)
    network: Network = field(default_factory=Network)
    image: Image = field(default_factory=Image)
    local: LocalCloud = field(default_factory=LocalCloud)
    batch: Batch | None = None
    kms_key: str | None = None
    """AWS: the ARN of the key of all EBS disks; None: the account's default key."""
    trains: bool = True
    """Whether a training follows creation: then a cloud's controller makes its environment."""

    def partition(self, name: str) -> Partition:
        return next(p for p in self.partitions if p.name == name)

    def partition_of(self, node: str) -> Partition | None:
        """The partition that a node's name belongs to, None for a name that is not the design's."""
        prefix, _, index = node.rpartition("-")
        if not index.isdigit() or (len(index) > 1 and index.startswith("0")):
            return None
        return next((p for p in self.partitions if p.name == prefix and int(index) < p.max), None)

    def static_nodes(self) -> frozenset[str]:
        """The nodes that are always up, of every partition."""
        return frozenset(node for p in self.partitions for node in p.static_nodes())

    def controller(self) -> Host:
        return next(h for h in self.hosts if h.role == "controller")

    def login_hosts(self) -> list[Host]:
        """Where users log in: the login pool, or the controller where there is none."""
        return [h for h in self.hosts if h.role == "login"] or [self.controller()]


@dataclass(frozen=True, slots=True)
class BenchmarkDesign:
    """The training that follows creation."""

    script: str
    partition: str
    nodes: int
    gpus_per_node: int
    epochs: int
    profile: str
    """published | sync | local-sgd"""
    data: str
    """auto | mnist | synthetic"""
    batch: int = 64
    """Examples a worker and step."""


@dataclass(frozen=True, slots=True)
class Site:
    """What is known only once the cluster's first machine is there: addresses, ports, folders."""

    root: str
    """Prefix of the cluster's folders: `/` on a machine of its own, the run directory in process mode."""
    user: str
    """SlurmUser."""
    controller_host: str
    controller_address: str
    slurmctld_port: int = 6817
    slurmd_port: int = 6818
    """Process mode: the first of a consecutive range, one a node."""
    first_address: str | None = None
    """Process mode: of the node with the first port; the others follow. None: all share 127.0.0.1."""
    slurmdbd_port: int = SLURMDBD_PORT
    python: str = "/usr/bin/python3"
    apps: str = "/apps"
    """Shared software: training environments lie in `<apps>/envs/<lock digest>`."""
    shared: str = "/home"
    """Shared by every machine: benchmark runs lie in `<shared>/bench`."""
    driver: dict[str, str] = field(default_factory=dict)
    """The elastic driver's own settings: socket, region, subnets, template ids."""
    addresses: dict[str, str] = field(default_factory=dict)
    """Host -> address, of the machines that live as long as the cluster; none on the local stack."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings object that the cluster's machines read: the design and the deploy-time ids."""

    design: ClusterDesign
    site: Site
    api_version: str = SETTINGS_VERSION


@dataclass(frozen=True, slots=True)
class Folders:
    """Where things lie on a cluster's machine. One place, so that no two parts can disagree."""

    settings: Settings

    @property
    def root(self) -> PurePosixPath:
        return PurePosixPath(self.settings.site.root)

    @property
    def process(self) -> bool:
        return self.settings.design.machines == "process"

    def _of(self, process: str, own_machine: str) -> PurePosixPath:
        return self.root / (process if self.process else own_machine)

    @property
    def etc(self) -> PurePosixPath:
        """slurm.conf and friends."""
        return self._of("etc", "etc/slurm")

    @property
    def run(self) -> PurePosixPath:
        """Pid files and sockets."""
        return self._of("run", "run/slurm-stacks")

    @property
    def log(self) -> PurePosixPath:
        return self._of("log", "var/log/slurm")

    @property
    def state(self) -> PurePosixPath:
        """slurmctld's StateSaveLocation."""
        return self._of("state", "var/spool/slurmctld")

    @property
    def spool(self) -> PurePosixPath:
        """slurmd's spool; process mode has one folder a node below it."""
        return self._of("spool", "var/spool/slurmd")

    @property
    def lib(self) -> PurePosixPath:
        """The elastic daemon's spool and memory, boot reports."""
        return self._of("lib", "var/lib/slurm-stacks")

    @property
    def code(self) -> PurePosixPath:
        """The unpacked node archive."""
        return self._of("code/current", "opt/slurm-stacks/current")

    @property
    def munge_socket(self) -> PurePosixPath:
        return self._of("run/munge.sock", "run/munge/munge.socket.2")

    @property
    def munge_key(self) -> PurePosixPath:
        return self._of("munge.key", "etc/munge/munge.key")

    @property
    def daemon_socket(self) -> PurePosixPath:
        return self.run / "elastic.sock"

    @property
    def slurm_conf(self) -> PurePosixPath:
        return self.etc / "slurm.conf"
