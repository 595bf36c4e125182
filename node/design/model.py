"""The design's types. `infra.design` makes them, and every machine of a cluster reads them.

They are plain frozen dataclasses, because machines have only the standard library. Units: MiB or GiB,
seconds, USD.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from node.design.accelerators import Accelerator
from node.design.batch import Batch
from node.design.containers import Containers, Package
from node.design.directory import Directory
from node.design.health import Health, JobScript
from node.design.local_cloud import CloudBehaviour
from node.design.sharing import DEFAULT_ACCOUNT, Account, Priority, Qos, User
from node.design.sites import AwsSite, CloudSite, GcpSite, LocalSite, MountSource
from node.design.storage import Gp3, Mount

SETTINGS_VERSION = "slurm-stacks/settings/v2"
SLURMDBD_PORT = 6819
PROCESS, CONTAINER = "process", "container"
"""How the local stack isolates machines (`ClusterDesign.isolation`)."""
INLINE = "script"
"""The source of a hook whose text is in the stack file, as reports name it."""
KERAS_MNIST = "keras-mnist"
"""The built-in training."""
APPS, SHARED = "/apps", "/home"
"""Paths of the shared directories on all machines but processes."""
STATE = "/state"
"""Where the controller mounts the disk that outlives it."""


@dataclass(frozen=True, slots=True)
class Host:
    """A machine that exists as long as the cluster does.

    Attributes:
        role: controller | login
        tags: What the machine does: controller, login, nfs, public. Code asks for these and never for the
            cloud.
        image: Its own machine image; `None` means the cluster's (`ClusterDesign.image`).
        price_hour: USD an hour; `None` if the snapshot knows no price.
        gp3: AWS: the performance of its root disk.
        open_metadata: Whether every user of a login machine may ask the cloud's metadata address, not root
            alone.
        security_groups: AWS: ids of security groups besides the cluster's own.
        network_tags: Google Cloud: its network tags.
    """

    name: str
    role: str
    tags: tuple[str, ...]
    instance_type: str
    disk_gib: int
    image: str | None = None
    price_hour: float | None = None
    gp3: Gp3 | None = None
    open_metadata: bool = False
    security_groups: tuple[str, ...] = ()
    network_tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AwsPartition:
    """What only AWS has of a partition, as the stack file names it.

    Attributes:
        efa: Number of Elastic Fabric Adapter interfaces on each node.
        capacity_block: Whether the reservation is a Capacity Block for ML.
        placement_group: Name of an existing placement group; `None` means one of its own if `placement` is
            cluster.
        gp3: The performance of a node's root disk.
        security_groups: Ids of security groups besides the cluster's own.
        launch_template_overrides: Fields of the nodes' launch template that the stack file gives
            (`infra.config.overrides`), as JSON; empty for none.
    """

    efa: int = 0
    capacity_block: bool = False
    placement_group: str | None = None
    gp3: Gp3 | None = None
    security_groups: tuple[str, ...] = ()
    launch_template_overrides: str = ""


@dataclass(frozen=True, slots=True)
class GcpPartition:
    """What only Google Cloud has of a partition, as the stack file names it.

    Attributes:
        secure_boot: Whether nodes load signed kernel modules only.
        placement_policy: Name of the placement policy that the reservation was made with.
        disk_type: Type of a node's root disk; `None` means pd-balanced.
        min_cpu_platform: The oldest processors that a node may have; `None` means what the zone has free.
        network_tags: The nodes' network tags.
        instance_template_overrides: Fields of the nodes' instance template that the stack file gives
            (`infra.config.overrides`), as JSON; empty for none.
    """

    secure_boot: bool = False
    placement_policy: str | None = None
    disk_type: str | None = None
    min_cpu_platform: str | None = None
    network_tags: tuple[str, ...] = ()
    instance_template_overrides: str = ""


def split_label(label: str) -> tuple[str, str | None]:
    """Return Slurm's partition and the pool in a `Partition.label`; `None` means that it has no pools."""
    partition, _, pool = label.partition("/")
    return partition, pool or None


@dataclass(frozen=True, slots=True)
class Partition:
    """A Slurm partition of equal nodes, or one of its pools. Nodes are named `<name>-0` … `<name>-<max-1>`.

    A partition with several pools is as many of these, in the order in which they are wanted. What the
    elastic daemon and the drivers do is by pool, as each has machines of its own. Slurm knows the whole, by
    `slurm_name`.

    Attributes:
        pool: The pool's name, with which `name` ends; `None` means that the partition is one.
        mixed: Whether a job may have nodes of several of its partition's pools.
        threads_per_core: 1 if its nodes start without hyper-threading; `None`: as the cloud starts them.
        features: More features of its nodes than the cluster gives them.
        weight: Slurm's weight of the nodes that are not static.
        memory_mib: Slurm's RealMemory, which is below what the machine reports.
        max: How many nodes: the first `min` are static, up as long as the cluster is; `max` counts all.
        placement: none | cluster
        reservations: AWS: ids or ARNs of several capacity reservations, of which the stack makes one group.
        time_limit: The time limit in Slurm's notation: [days-]hours:minutes:seconds, or INFINITE.
        allow_accounts: Accounts whose jobs may run here; empty means all.
        qos: The partition QOS.
        settings: Options of its line in slurm.conf that the stack file gives.
        price_hour: USD for each node and hour; `None` if the snapshot knows no price.
        disk_gib: The node's root disk; 0 for processes, which have none.
        sockets: Slurm's sockets, by which the node's CPUs are divided.
        tmp_disk_mib: Slurm's TmpDisk, for `--tmp`: what jobs can use of the disk with temporary files, below
            what the machine reports; 0 if that is not known.
        zones: Zones in which nodes may start, tried in this order; empty means the cluster's.
        topology: Whether Slurm chooses nodes by where the cloud says that their machines are.
        local_ssds: Google Cloud: number of local SSDs of 375 GiB attached to each node for a local scratch.
        open_metadata: Whether jobs may ask the cloud's metadata address, and so act with their node's
            identity.
    """

    name: str
    instance_type: str
    cpus: int
    memory_mib: int
    min: int
    max: int
    accelerator: Accelerator | None = None
    spot: bool = False
    placement: str = "none"
    reservation: str | None = None
    reservations: tuple[str, ...] = ()
    time_limit: str = "INFINITE"
    exclusive: bool = False
    allow_accounts: tuple[str, ...] = ()
    allow_qos: tuple[str, ...] = ()
    qos: str | None = None
    settings: dict[str, str] = field(default_factory=dict)
    default: bool = False
    image: str | None = None
    price_hour: float | None = None
    disk_gib: int = 0
    zones: tuple[str, ...] = ()
    topology: bool = False
    local_ssds: int = 0
    open_metadata: bool = False
    sockets: int = 1
    tmp_disk_mib: int = 0
    pool: str | None = None
    mixed: bool = False
    threads_per_core: int | None = None
    features: tuple[str, ...] = ()
    weight: int = 10
    aws: AwsPartition = field(default_factory=AwsPartition)
    gcp: GcpPartition = field(default_factory=GcpPartition)

    @property
    def slurm_name(self) -> str:
        """The name by which Slurm and its users know the partition."""
        return self.name if self.pool is None else self.name.removesuffix(f"-{self.pool}")

    @property
    def label(self) -> str:
        """The name by which people know it where pools count: train/spot, or train without pools.

        No name has a slash, so `split_label` finds both in it, even of a pool that is gone.
        """
        return self.name if self.pool is None else f"{self.slurm_name}/{self.pool}"

    def nodes(self) -> list[str]:
        return node_names(self.name, self.max)

    @property
    def usable_gpus(self) -> int:
        """The number of a node's GPUs that compute. Simulated ones are only counted."""
        accelerator = self.accelerator
        if accelerator is None or accelerator.gres != "gpu" or accelerator.simulated:
            return 0
        return accelerator.count

    def static_nodes(self) -> list[str]:
        return self.nodes()[: self.min]

    def overrides(self) -> dict[str, Any]:
        """Return the fields of the nodes' template that the stack file gives."""
        given = self.aws.launch_template_overrides or self.gcp.instance_template_overrides
        fields: dict[str, Any] = json.loads(given or "{}")
        return fields


def node_names(partition: str, count: int) -> list[str]:
    """Return the names of a partition's first nodes."""
    return [f"{partition}-{i}" for i in range(count)]


@dataclass(frozen=True, slots=True)
class SharedPartition:
    """A Slurm partition without machines of its own: it has all nodes of another one.

    It has a line of its own in slurm.conf, and what the line says of its jobs. Its fields have the meaning of
    those of `Partition`.

    Attributes:
        nodes_of: The partition whose nodes it has, by the name that Slurm knows.
    """

    name: str
    nodes_of: str
    time_limit: str = "INFINITE"
    exclusive: bool = False
    allow_accounts: tuple[str, ...] = ()
    allow_qos: tuple[str, ...] = ()
    qos: str | None = None
    settings: dict[str, str] = field(default_factory=dict)
    default: bool = False

    @property
    def slurm_name(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Hook:
    """A user's script that runs once on each machine of a role before the machine takes work.

    Attributes:
        role: controller | login | compute | all
        source: A path in the project, an address, or `INLINE` if the stack file has the text itself.
        text: The script's text if the stack file has it.
    """

    role: str
    source: str
    args: tuple[str, ...] = ()
    timeout: int = 600
    text: str | None = None


@dataclass(frozen=True, slots=True)
class Budget:
    """What the cluster may spend in its life; `None` means no limit.

    Attributes:
        max_hours: The limit in node-hours.
        running_jobs: What happens to running jobs when the budget is used up: keep | cancel.
    """

    max_usd: float | None = None
    max_hours: float | None = None
    running_jobs: str = "keep"


@dataclass(frozen=True, slots=True)
class Backup:
    """When Slurm's state and accounting are saved, and where.

    Attributes:
        bucket: `s3://bucket/prefix` or `gs://bucket/folder`; on the local stack a folder of this machine.
        every_hours: The hours between two backups.
        keep: How many backups stay.
    """

    bucket: str
    every_hours: int = 24
    keep: int = 14

    def place(self) -> tuple[str, str]:
        """Return the bucket's address and the beginning of the names in it, which is empty or ends in /."""
        scheme, mark, rest = self.bucket.partition("://")
        if not mark:
            return self.bucket, ""
        name, _, prefix = rest.strip("/").partition("/")
        return f"{scheme}://{name}", f"{prefix}/" if prefix else ""


@dataclass(frozen=True, slots=True)
class Repository:
    """An apt repository with packages of Slurm.

    Attributes:
        url: The address in a `deb` line.
        suite: The suite in a `deb` line.
        components: The components in a `deb` line.
        key: The address of the key that signs the repository.
        fingerprint: The key's fingerprint.
    """

    url: str
    suite: str
    components: tuple[str, ...]
    key: str
    fingerprint: str


@dataclass(frozen=True, slots=True)
class SlurmSettings:
    """Slurm's timers, in seconds, and whether it keeps accounts.

    Attributes:
        suspend_time: How long a node may be idle before it is powered down.
        suspend_timeout: How long a power-down may take.
        resume_timeout: How long a node may take from its launch to its registration.
        slurmd_timeout: How long a slurmd may not answer before its node is DOWN.
        default_account: The account of users who have none.
        exclusive_accounts: Whether accounts, users and QOS that people added are taken away.
        priority: The weights of priority/multifactor; `None` means jobs are ordered by submission.
        settings: Options of slurm.conf that the stack file gives.
        source: The distribution whose source package of Slurm the images are built from: debian-13.
        packages: Packages of Slurm, instead of the distribution's.
        repository: An apt repository with packages of Slurm, instead of the distribution's.
    """

    suspend_time: int = 300
    suspend_timeout: int = 120
    resume_timeout: int = 900
    slurmd_timeout: int = 60
    reconcile_interval: float = 30.0
    accounting: bool = False
    default_account: str = DEFAULT_ACCOUNT
    exclusive_accounts: bool = False
    priority: Priority | None = None
    settings: dict[str, str] = field(default_factory=dict)
    prolog: JobScript | None = None
    epilog: JobScript | None = None
    source: str | None = None
    packages: tuple[Package, ...] = ()
    repository: Repository | None = None


@dataclass(frozen=True, slots=True)
class Access:
    """How users reach the login machine.

    Attributes:
        mode: ssm | iap | ssh | local (this machine)
        ssh_cidrs: The networks from which port 22 can be reached.
        key: The name of an EC2 key pair.
        user: The user of the image, as whom everybody logs in (AWS).
        users: Members of Google's IAM who may log in, as IAM writes them.
        directory: The directory whose users log in; `None` means none.
    """

    mode: str = "local"
    ssh_cidrs: tuple[str, ...] = ()
    key: str | None = None
    user: str | None = None
    users: tuple[str, ...] = ()
    directory: Directory | None = None


@dataclass(frozen=True, slots=True)
class Network:
    """The cluster's own network, or an existing one that is given by its ids.

    Attributes:
        zones: Zones for nodes, tried in this order; empty means every zone that offers the instance type.
        vpc: Id of an existing VPC (aws), or name of an existing network (gcp).
    """

    cidr: str | None = None
    public_cidr: str | None = None
    private_cidr: str | None = None
    zones: tuple[str, ...] = ()
    vpc: str | None = None
    public_subnet: str | None = None
    private_subnets: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Image:
    """The image from which machines boot.

    Attributes:
        source: The name of a distribution (ubuntu-24.04), or of its suite on the local stack (trixie).
        id: Id of an existing image, used instead of `source`.
        bake: Whether images are built from `source` or `id` first, by the steps of the bootstrap.
        revision: A word of the user's; another one has the images built again.
    """

    source: str | None = None
    id: str | None = None
    bake: bool = False
    revision: str | None = None


@dataclass(frozen=True, slots=True)
class AwsSettings:
    """What only AWS has of a whole cluster, as the stack file names it.

    Attributes:
        kms_key: ARN of the KMS key for all EBS disks; `None` means the account's default key.
        nat: Whether nodes reach the internet by a NAT gateway; otherwise machines have public addresses. Of
            somebody's own network it is not known, and true.
        permissions_boundary: ARN of the policy that bounds every role; `None` means none.
        role_path: The path of every role and instance profile.
    """

    kms_key: str | None = None
    nat: bool = True
    permissions_boundary: str | None = None
    role_path: str = "/"


@dataclass(frozen=True, slots=True)
class ClusterDesign:
    """Everything that is decided before any resource exists: pure data from `infra.design.design`.

    Attributes:
        provider: aws | gcp | local
        isolation: How machines are isolated: `vm` on a cloud; `process` or `container` on the local stack.
        scheduler: slurm | batch
        partitions: The groups of equal nodes, which have machines: partitions and pools.
        shared_partitions: Slurm's partitions that have the nodes of others.
        project: The id of the Google Cloud project.
        provider_settings: The settings of the cloud's Pulumi provider that the engineer's machine follows, as
            text (`infra.config.provider_settings`). Machines have an identity of their own, so it is not
            published.
        tags: The stack file's tags of all resources and nodes; on Google Cloud they are labels.
        trains: Whether a training follows the creation; if so, a cloud's controller makes its environment.
        requirements: The requirements file of that environment, relative to the stack file. `None` means the
            one locked.
    """

    name: str
    stack: str
    provider: str
    isolation: str
    hosts: tuple[Host, ...]
    partitions: tuple[Partition, ...]
    mounts: tuple[Mount, ...]
    slurm: SlurmSettings = field(default_factory=SlurmSettings)
    hooks: tuple[Hook, ...] = ()
    containers: Containers | None = None
    health: Health | None = None
    budget: Budget = field(default_factory=Budget)
    backup: Backup | None = None
    region: str | None = None
    zone: str | None = None
    scheduler: str = "slurm"
    project: str | None = None
    access: Access = field(default_factory=Access)
    network: Network = field(default_factory=Network)
    image: Image = field(default_factory=Image)
    local: CloudBehaviour = field(default_factory=CloudBehaviour)
    batch: Batch | None = None
    aws: AwsSettings = field(default_factory=AwsSettings)
    accounts: tuple[Account, ...] = ()
    users: tuple[User, ...] = ()
    qos: tuple[Qos, ...] = ()
    tags: dict[str, str] = field(default_factory=dict)
    trains: bool = True
    requirements: str | None = None
    provider_settings: str | None = None
    shared_partitions: tuple[SharedPartition, ...] = ()

    def fetched(self, role: str | None, scheme: str) -> list[str]:
        """Return the addresses with a scheme (`s3://`) that machines of a role fetch: hooks and packages.

        Without a role: what a machine fetches that becomes an image, which runs no hooks.
        """
        sources = [hook.source for hook in self.hooks if role is not None and hook.role in (role, "all")]
        sources += [package.source for package in self.containers.packages] if self.containers else []
        sources += [package.source for package in self.slurm.packages]
        return list(dict.fromkeys(source for source in sources if source.startswith(scheme)))

    def partition(self, name: str) -> Partition:
        """Return a partition, or a pool, by its name; of a partition with pools the first one."""
        exact = next((p for p in self.partitions if p.name == name), None)
        return exact or self.pools_of(name)[0]

    def slurm_partitions(self) -> dict[str, tuple[Partition, ...]]:
        """Return the name of each of Slurm's partitions -> its pools, in the order of the stack file.

        Last are the partitions that have the pools of others.
        """
        pools = self.pools()
        return pools | {shared.name: pools[shared.nodes_of] for shared in self.shared_partitions}

    def pools(self) -> dict[str, tuple[Partition, ...]]:
        """Return the name of each partition with machines of its own -> its pools."""
        pools: dict[str, tuple[Partition, ...]] = {}
        for partition in self.partitions:
            pools[partition.slurm_name] = (*pools.get(partition.slurm_name, ()), partition)
        return pools

    def terms(self) -> dict[str, Partition | SharedPartition]:
        """Return the name of each of Slurm's partitions -> what its line says of jobs, which pools share."""
        own: dict[str, Partition | SharedPartition] = {name: pools[0] for name, pools in self.pools().items()}
        return own | {shared.name: shared for shared in self.shared_partitions}

    def default_partition(self) -> str:
        """Return the partition of jobs that name none."""
        return next(name for name, partition in self.terms().items() if partition.default)

    def pools_of(self, name: str) -> tuple[Partition, ...]:
        """Return the pools of one of Slurm's partitions.

        Raises:
            KeyError: There is no partition of this name.
        """
        return self.slurm_partitions()[name]

    def most_nodes(self, name: str) -> int:
        """Return how many nodes of one of Slurm's partitions a job can have."""
        pools = self.pools_of(name)
        each = [pool.max for pool in pools]
        return sum(each) if pools[0].mixed else max(each)

    def partition_of(self, node: str) -> Partition | None:
        """Return the partition of a node; `None` for a name that is not in the design."""
        prefix, _, index = node.rpartition("-")
        if not index.isdigit() or (len(index) > 1 and index.startswith("0")):
            return None
        return next((p for p in self.partitions if p.name == prefix and int(index) < p.max), None)

    def nodes_of(self, names: str) -> frozenset[str]:
        """Return the nodes of partitions, whose names are joined by commas as in a job's."""
        pools = self.slurm_partitions()
        return frozenset(node for name in names.split(",") for p in pools.get(name, ()) for node in p.nodes())

    def static_nodes(self) -> frozenset[str]:
        """Return the nodes of all partitions that are always up."""
        return frozenset(node for p in self.partitions for node in p.static_nodes())

    def state(self) -> Mount | None:
        """Return the disk with Slurm's state; `None` if the state is on the controller's root disk."""
        return next((mount for mount in self.mounts if mount.kind == "disk"), None)

    def controller(self) -> Host:
        return next(h for h in self.hosts if h.role == "controller")

    def login_hosts(self) -> list[Host]:
        """Return the machines where users log in: the login machines, or else the controller."""
        return [h for h in self.hosts if h.role == "login"] or [self.controller()]


@dataclass(frozen=True, slots=True)
class BenchmarkDesign:
    """The training that follows the creation of the cluster.

    Attributes:
        script: KERAS_MNIST, or the path of a program of the user's, relative to the stack file.
        profile: published | sync | local-sgd
        data: auto | mnist | synthetic
        learning_rate: Examples for each worker and step, and the rate for a batch of 64.
        average_every: Local-sgd: the steps that a worker trains alone. `None` means measured.
        files: A user's program: the paths of what is staged beside it. This field and the next ones are for
            programs only, those from `epochs` to `average_every` for the built-in training only.
        requirements: The file with the packages of its environment. `None` means the training environment.
        container: The path of the OCI bundle in which its tasks run. `None` means on the node itself.
    """

    script: str
    partition: str
    nodes: int
    gpus_per_node: int
    epochs: int
    profile: str
    data: str
    batch: int = 64
    learning_rate: float = 0.2
    seed: int = 0
    average_every: int | None = None
    files: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    requirements: str | None = None
    tasks_per_node: int = 1
    container: str | None = None

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
    """What is known only when the cluster's first machine exists: addresses, ports, folders.

    Attributes:
        root: Prefix of the cluster's folders: `/`, or the run directory in process mode.
        user: Slurm's SlurmUser.
        slurmd_port: In process mode the first of a range of ports, one for each node.
        first_address: Process mode: address of the node with the first port; others follow. `None`: all have
            127.0.0.1.
        blocks: In process mode, partition -> its blocks of ports (`node.slurm.addressing`).
        apps: Folder of shared software; training environments are in `<apps>/envs/<digest of the lock file>`.
        shared: Folder that every machine shares; benchmark runs are in `<shared>/bench`.
        bucket: The bucket's name. `None` on the local stack, where the bucket is a folder.
        secret: The secret that holds the munge key. `None` for processes, which have the key in their own
            folder.
        cloud_dns: Whether the names of nodes can be resolved before the nodes boot.
        cgroups: The mount point of cgroups version 1 for Slurm. `None` means that Slurm finds the cgroups
            itself.
        cloud: The settings of the provider's elastic driver and boot steps.
        addresses: Host -> address, for the machines that exist as long as the cluster; empty on the local
            stack.
    """

    root: str
    user: str
    controller_host: str
    controller_address: str
    slurmctld_port: int = 6817
    slurmd_port: int = 6818
    first_address: str | None = None
    blocks: dict[str, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    slurmdbd_port: int = SLURMDBD_PORT
    python: str = "/usr/bin/python3"
    apps: str = "/apps"
    shared: str = "/home"
    bucket: str | None = None
    secret: str | None = None
    mounts: dict[str, MountSource] = field(default_factory=dict)  # path -> source, where a path is not enough
    cloud_dns: bool = False
    cgroups: str | None = None
    cloud: AwsSite | GcpSite | LocalSite = field(default_factory=LocalSite)
    addresses: dict[str, str] = field(default_factory=dict)

    def of(self, provider: type[CloudSite]) -> CloudSite:
        """Return what `cloud` says; a ValueError where it is another provider's."""
        if not isinstance(self.cloud, provider):
            raise ValueError(f"site.cloud: {provider.__name__} is expected, not {type(self.cloud).__name__}")
        return self.cloud


@dataclass(frozen=True, slots=True)
class Settings:
    """The object that the cluster's machines read: the design, and what is known after deployment."""

    design: ClusterDesign
    site: Site
    api_version: str = SETTINGS_VERSION
