"""A cluster's design, from the stack's configuration and the facts of instance types.

No Pulumi, no network, no clock: the same input gives the same design on every machine, and nothing that is
given is changed. Providers iterate the design and decide nothing about Slurm.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar, cast

from infra.config import StackConfig, accounting, distributions, overrides, slurm_options
from infra.config.cluster import AwsConfig, ClusterConfig, LocalConfig
from infra.config.fields import Section, clock, time_limit_seconds
from infra.config.hosts import DirectoryConfig, OwnImageConfig
from infra.config.partitions import AwsPartition, GcpPartition, PartitionConfig
from infra.config.storage import BucketConfig, Gp3Config, LocalScratch, SharedStorage, StateStorage
from infra.instance_types import threads
from infra.instance_types.catalog import GRES, LOCAL_SSD_GIB, NEURON_CORES, Catalog, InstanceType
from infra.slurm_releases import options
from node.design import accelerators, containers, model, sharing, time_limits
from node.design.batch import Batch
from node.design.containers import Package
from node.design.directory import Directory
from node.design.health import Health
from node.design.local_cloud import CloudBehaviour
from node.design.storage import Gp3, Mount
from node.system import codec

T = TypeVar("T")
DEFAULT_MACHINE = {"aws": "m5.large", "gcp": "n1-standard-2", "local": "local.small"}
DEFAULT_DISK_GIB = 50
SYSTEM_GIB = 8
"""What the system, Slurm, drivers and logs may need of a node's root disk."""
ACCESS_MODE = {"aws": "ssm", "gcp": "iap", "local": "local"}
DEFAULT_NFS_GIB = 50
DEFAULT_STATE_GIB = {"aws": 20, "gcp": 20, "local": 2}
MOUNT_OPTIONS = {
    # Hard mounts wait for a controller that does not answer, so that jobs do not fail.
    "nfs": "rw,hard,nfsvers=4.2,_netdev",
    # Somebody's own server: client and server agree on a version.
    "export": "rw,hard,_netdev",
    "efs": "rw,hard,nfsvers=4.1,rsize=1048576,wsize=1048576,timeo=600,_netdev",
    "filestore": "rw,hard,nfsvers=3,timeo=600,_netdev",
    "fsx_lustre": "relatime,flock,_netdev",
    "nvme": "noatime,nofail",
    # An error of the disk ends all writing, and so does another machine that has mounted it (MMP).
    "disk": "noatime,errors=remount-ro",
}


def design(config: StackConfig, facts: Catalog) -> model.ClusterDesign:
    """Return the design of a stack's cluster.

    Args:
        config: A stack file without mistakes.
        facts: The snapshot. The stack's own facts are applied here.
    """
    cluster, facts = config.cluster, config.catalog(facts)
    local = cluster.local
    common: dict[str, Any] = {
        "name": cluster.name,
        "stack": config.stack,
        "provider": cluster.provider,
        "isolation": (local.isolation if local else "process") if cluster.provider == "local" else "vm",
        "scheduler": cluster.scheduler,
    }
    mounts = mounts_of(cluster)
    batch = _batch(config, facts)
    partitions = (_batch_queue(config, batch, facts),) if batch else _partitions(config, facts)
    draft = model.ClusterDesign(
        **common,
        hosts=() if batch else _hosts(config, facts, mounts),
        partitions=partitions,
        shared_partitions=() if batch else _shared_partitions(config),
        mounts=mounts,
        slurm=model.SlurmSettings(),
        hooks=tuple(
            model.Hook(h.role, h.source or model.INLINE, tuple(h.args), h.timeout, h.script)
            for h in cluster.hooks
        ),
        health=_health(cluster, partitions),
        containers=_containers(cluster),
        budget=_budget(cluster),
        backup=_backup(cluster),
        region=config.region,
        provider_settings=config.provider_settings,
        zone=config.zone,
        project=config.project,
        access=model.Access(
            mode=cluster.access.mode or ACCESS_MODE[cluster.provider],
            ssh_cidrs=tuple(cluster.access.ssh_cidrs),
            key=cluster.access.key,
            user=distributions.chosen_row(cluster, facts).aws.user if cluster.provider == "aws" else None,
            users=tuple(cluster.access.users),
            directory=_directory(cluster.access.directory),
        ),
        network=_network(cluster),
        image=_image(cluster, facts),
        local=local_cloud(local),
        batch=batch,
        aws=_of_aws(cluster),
        accounts=_shared(sharing.Account, cluster.accounts),
        users=_shared(sharing.User, cluster.users),
        qos=_shared(sharing.Qos, cluster.qos),
        tags=dict(cluster.tags),
        trains=_trains(config),
        requirements=config.benchmark.requirements if config.benchmark and _trains(config) else None,
    )
    return replace(draft, slurm=_slurm(cluster, facts, draft))


def local_cloud(config: LocalConfig | None) -> CloudBehaviour:
    """Return the behaviour of the local cloud until `./cluster chaos` changes it."""
    settings = config.model_dump(exclude={"isolation", "suite", "price_hour"}) if config else {}
    return CloudBehaviour(**settings)


def benchmark_design(config: StackConfig, design: model.ClusterDesign) -> model.BenchmarkDesign | None:
    """Return the training that follows the creation; `None` if the stack has none."""
    benchmark = config.benchmark
    if benchmark is None or not _trains(config):
        return None
    known, named = design.slurm_partitions(), benchmark.partition
    name = named if named in known else design.default_partition()
    devices = known[name][0].usable_gpus
    return model.BenchmarkDesign(
        script=benchmark.script,
        partition=name,
        nodes=benchmark.nodes,
        gpus_per_node=devices if benchmark.gpus_per_node is None else benchmark.gpus_per_node,
        epochs=benchmark.epochs,
        profile=benchmark.profile,
        data=benchmark.data,
        batch=benchmark.batch,
        learning_rate=benchmark.learning_rate,
        seed=benchmark.seed,
        average_every=benchmark.average_every,
        files=tuple(benchmark.files),
        arguments=tuple(str(argument) for argument in benchmark.arguments),
        requirements=benchmark.requirements,
        tasks_per_node=benchmark.tasks_per_node,
        container=benchmark.container,
    )


def _budget(cluster: ClusterConfig) -> model.Budget:
    config = cluster.budget
    usual = "cancel" if cluster.scheduler == "batch" else "keep"
    return model.Budget(config.max_usd, config.max_hours, config.running_jobs or usual)


def _containers(cluster: ClusterConfig) -> containers.Containers | None:
    config = cluster.containers
    if config is None:
        return None
    packages = tuple(Package(package.source, package.sha256) for package in config.packages)
    return containers.Containers(config.runtime, packages, config.images)


def _trains(config: StackConfig) -> bool:
    return config.benchmark is not None and config.benchmark.enabled


def real_memory(machine: InstanceType) -> int:
    """Return the memory that Slurm may allocate, in MiB: less than the machine will report.

    A node that reports less than its RealMemory is drained as invalid, and kernel, firmware and daemons keep
    a part for themselves: 400 MiB and 30 MiB for each GiB, the rule of Google's slurm-gcp. Machines of the
    local stack are sizes to count with (slurmd takes them from the configuration), so they keep theirs.
    """
    if machine.provider == "local":
        return machine.memory_mib
    return machine.memory_mib - (400 + 30 * machine.memory_mib // 1024)


def tmp_disk(cluster: ClusterConfig, partition: PartitionConfig, machine: InstanceType) -> int:
    """Return the disk for temporary files that Slurm may promise, in MiB; 0 if it is not known.

    A node whose file system is smaller than its TmpDisk is drained as invalid. A file system has less than
    its disk (partition table, inodes, journal), and ext4 keeps a twentieth for root: a tenth is left out.
    Nodes of the local stack have no disk of their own, and count with a cloud's, as they do with memory.
    """
    if cluster.provider != "local" and cluster.storage.local_scratch is not None:
        size = machine.nvme_gib or machine.local_ssds * LOCAL_SSD_GIB
        return size * 1024 * 9 // 10
    if cluster.image.id is not None or partition.image is not None:
        # Its /tmp may be a file system of its own, of any size.
        return 0
    size = partition.disk_gib or DEFAULT_DISK_GIB
    return max(0, size * 1024 * 9 // 10 - SYSTEM_GIB * 1024)


def slurm_time(limit: str) -> str:
    """Return a time limit in the design's notation: [days-]hours:minutes:seconds, or INFINITE."""
    seconds = time_limit_seconds(limit)
    if seconds is None:
        return "INFINITE"
    days, rest = divmod(seconds, 86400)
    return f"{days}-{clock(rest)}" if days else clock(rest)


def _hosts(config: StackConfig, facts: Catalog, mounts: tuple[Mount, ...]) -> tuple[model.Host, ...]:
    cluster = config.cluster
    machine = cluster.controller.instance_type or DEFAULT_MACHINE[cluster.provider]
    public = ("public",) if cluster.access.mode == "ssh" else ()
    tags = ["controller"]
    if any(m.kind == "nfs" and m.served_by == "controller" for m in mounts):
        tags.append("nfs")
    if cluster.login.count == 0:
        tags += ["login", *public]
    hosts = [
        model.Host(
            name="controller",
            role="controller",
            tags=tuple(tags),
            instance_type=machine,
            disk_gib=_disk(cluster, cluster.controller.disk_gib),
            image=_image_id(cluster.controller.image),
            price_hour=_price(config, facts, machine),
            gp3=gp3_of(cluster.controller.gp3),
            security_groups=tuple(cluster.controller.security_groups),
            network_tags=tuple(cluster.controller.network_tags),
        )
    ]
    login = cluster.login.instance_type or machine
    hosts += [
        model.Host(
            name=f"login-{index}",
            role="login",
            tags=("login", *public),
            instance_type=login,
            disk_gib=_disk(cluster, cluster.login.disk_gib),
            price_hour=_price(config, facts, login),
            gp3=gp3_of(cluster.login.gp3),
            open_metadata=cluster.login.open_metadata,
            security_groups=tuple(cluster.login.security_groups),
            network_tags=tuple(cluster.login.network_tags),
        )
        for index in range(cluster.login.count)
    ]
    return tuple(hosts)


def _partitions(config: StackConfig, facts: Catalog) -> tuple[model.Partition, ...]:
    chosen = _default_partition(config)
    return tuple(
        replace(
            _partition(config, facts, group, default=p.name == chosen),
            pool=group.name.removeprefix(f"{p.name}-") if p.pools else None,
            mixed=p.mixed,
        )
        for p in config.cluster.partitions
        for group in p.by_pool()
    )


def _shared_partitions(config: StackConfig) -> tuple[model.SharedPartition, ...]:
    """Return the partitions that have the nodes of others."""
    chosen = _default_partition(config)
    return tuple(
        model.SharedPartition(nodes_of=p.nodes_of, **_terms(p, default=p.name == chosen))
        for p in config.cluster.partitions
        if p.nodes_of is not None
    )


def _default_partition(config: StackConfig) -> str:
    partitions = config.cluster.partitions
    return next((p.name for p in partitions if p.default), partitions[0].name)


def _terms(partition: PartitionConfig, *, default: bool) -> dict[str, Any]:
    """Return the fields of a partition's own line in slurm.conf, without its nodes."""
    return {
        "name": partition.name,
        "time_limit": slurm_time(partition.time_limit),
        "exclusive": partition.exclusive,
        "allow_accounts": tuple(partition.allow_accounts),
        "allow_qos": tuple(partition.allow_qos),
        "qos": partition.qos,
        "settings": slurm_options.canonical(partition.settings, options.PARTITION),
        "default": default,
    }


def _partition(
    config: StackConfig, facts: Catalog, partition: PartitionConfig, *, default: bool
) -> model.Partition:
    machine = facts.machines[partition.instance_type]
    accelerator = _accelerator(config.cluster, partition, machine)
    attached = (accelerator.type, accelerator.count) if accelerator else None
    aws = partition.aws or AwsPartition()
    gcp = partition.gcp or GcpPartition()
    local_ssds = machine.local_ssds if config.cluster.storage.local_scratch else 0
    price = facts.price(partition.instance_type, config.region, accelerator=attached, spot=partition.spot)
    reserved = partition.reservations()
    return model.Partition(
        **_terms(partition, default=default),
        instance_type=partition.instance_type,
        cpus=_cpus(config.cluster, partition, machine),
        memory_mib=real_memory(machine),
        min=partition.nodes.min,
        max=partition.nodes.max,
        accelerator=accelerator,
        spot=partition.spot,
        placement="cluster" if aws.placement_group else partition.placement,
        reservation=reserved[0] if len(reserved) == 1 else None,
        reservations=reserved if len(reserved) > 1 else (),
        image=_image_id(partition.image),
        price_hour=_local_price(config.cluster, partition) if config.cluster.provider == "local" else price,
        disk_gib=_disk(config.cluster, partition.disk_gib),
        zones=tuple(partition.zones or ()),
        topology=partition.topology,
        local_ssds=local_ssds,
        open_metadata=partition.open_metadata,
        sockets=_sockets(facts.sockets(partition.instance_type), _cpus(config.cluster, partition, machine)),
        tmp_disk_mib=tmp_disk(config.cluster, partition, machine),
        threads_per_core=1 if _loses_threads(config.cluster, partition) else None,
        features=tuple(dict.fromkeys(partition.features)),
        weight=partition.weight,
        aws=_section(
            model.AwsPartition,
            aws,
            efa=machine.efa if aws.efa else 0,
            gp3=gp3_of(aws.gp3),
            launch_template_overrides=overrides.as_json(aws.launch_template_overrides),
        ),
        gcp=_section(
            model.GcpPartition,
            gcp,
            instance_template_overrides=overrides.as_json(gcp.instance_template_overrides),
        ),
    )


def _section(kind: type[T], given: Section, **computed: Any) -> T:
    """Return a section of the design that has what the section of the stack file has under the same names.

    Args:
        computed: The fields with another value than the stack file's.
    """
    names = {field.name for field in fields(cast(Any, kind))} - computed.keys()
    made: Any = codec.from_json(kind, given.model_dump(include=names))
    return cast(T, replace(made, **computed))


def _shared(kind: type[T], given: Sequence[Section]) -> tuple[T, ...]:
    """Return accounts, users or QOS of the design, whose fields have the stack file's names."""
    return tuple(_section(kind, item) for item in given)


def _directory(config: DirectoryConfig | None) -> Directory | None:
    if config is None:
        return None
    values = config.model_dump()
    return Directory(**{**values, "uris": tuple(config.uris)})


def _sockets(sockets: int, cpus: int) -> int:
    """Return the sockets of a node: one if its CPUs cannot be divided by the machine's."""
    return 1 if cpus % sockets else sockets


def _loses_threads(cluster: ClusterConfig, partition: PartitionConfig) -> bool:
    """Return whether nodes start with one thread a core, while their machine's cores have two."""
    return partition.threads_per_core == 1 and not threads.has_one(partition.instance_type, cluster.provider)


def _cpus(cluster: ClusterConfig, partition: PartitionConfig, machine: InstanceType) -> int:
    """Return a node's CPUs: the machine's, or those that the stack file leaves of them."""
    overridden: int | None = None
    if partition.aws is not None and partition.aws.launch_template_overrides is not None:
        overridden = partition.aws.launch_template_overrides.cpus()
    if partition.gcp is not None and partition.gcp.instance_template_overrides is not None:
        features = partition.gcp.instance_template_overrides.advanced_machine_features
        overridden = partition.gcp.instance_template_overrides.cpus(machine.vcpus)
        if features is not None and _loses_threads(cluster, partition):
            overridden = features.visible_core_count
    usual = machine.vcpus // 2 if _loses_threads(cluster, partition) else machine.vcpus
    return usual if overridden is None else overridden


def _accelerator(
    cluster: ClusterConfig, partition: PartitionConfig, machine: InstanceType
) -> accelerators.Accelerator | None:
    """Return the accelerators that the partition asks for, or those that are part of the instance type."""
    chosen = partition.accelerator or machine.accelerator
    if chosen is None:
        return None
    return accelerators.Accelerator(
        type=chosen.type,
        count=chosen.count,
        gres=GRES.get(chosen.type, "gpu"),
        simulated=cluster.provider == "local",
        cores=NEURON_CORES.get(chosen.type, 0) if partition.aws and partition.aws.neuron_cores else 0,
    )


def _slurm(cluster: ClusterConfig, facts: Catalog, draft: model.ClusterDesign) -> model.SlurmSettings:
    """Return what fits the provider and the rest of the design; what the stack file says wins."""
    if cluster.provider == "local":
        # Starting a process costs nothing, so idle nodes are powered down soon.
        boot = cluster.local.boot_delay + cluster.local.boot_spread if cluster.local else 0.0
        timers = model.SlurmSettings(
            suspend_time=20,
            suspend_timeout=5,
            resume_timeout=60 + round(boot),
            slurmd_timeout=20,
            reconcile_interval=2.0,
        )
    else:
        longest = max(time_limits.boot(draft, partition) for partition in draft.partitions)
        timers = model.SlurmSettings(resume_timeout=longest)
    given = cluster.slurm.model_dump(exclude_none=True, exclude={"accept_unmaintained"})
    given["accounting"] = accounting.is_on(cluster, facts)
    given["settings"] = slurm_options.canonical(cluster.slurm.settings, options.SLURM)
    shared = cluster.accounts or cluster.qos or any(user.of_accounting() for user in cluster.users)
    if given["accounting"] and shared:
        given.setdefault("priority", {})
    return codec.from_json(model.SlurmSettings, codec.to_json(timers) | given)


def _of_aws(cluster: ClusterConfig) -> model.AwsSettings:
    """Return what only AWS has; somebody's own network reaches the internet in a way of its own."""
    given = cluster.aws or AwsConfig()
    own = cluster.provider == "aws" and cluster.network.aws is None
    return _section(model.AwsSettings, given, nat=given.nat or not own)


def _network(cluster: ClusterConfig) -> model.Network:
    network, provider = cluster.network, cluster.provider
    if provider == "local":
        return model.Network()
    zones = tuple(network.zones)
    if network.aws is not None and provider == "aws":
        return model.Network(
            vpc=network.aws.vpc,
            public_subnet=network.aws.public_subnet,
            private_subnets=tuple(network.aws.private_subnets),
            zones=zones,
        )
    if network.gcp is not None and provider == "gcp":
        subnetworks = (network.gcp.subnetwork,) if network.gcp.subnetwork else ()
        return model.Network(vpc=network.gcp.network, private_subnets=subnetworks, zones=zones)
    public, private = network.subnets()
    return model.Network(
        cidr=str(network.whole()),
        public_cidr=str(public),
        private_cidr=str(private),
        zones=zones,
    )


def _image(cluster: ClusterConfig, facts: Catalog) -> model.Image:
    if cluster.provider == "local":
        return model.Image(source=cluster.local.suite if cluster.local else None)
    image = cluster.image
    return model.Image(
        source=distributions.chosen(cluster, facts), id=image.id, bake=image.bake, revision=image.revision
    )


def _image_id(image: OwnImageConfig | None) -> str | None:
    return image.id if image else None


def _disk(cluster: ClusterConfig, size: int | None) -> int:
    return 0 if cluster.provider == "local" else size or DEFAULT_DISK_GIB


def _price(config: StackConfig, facts: Catalog, machine: str) -> float | None:
    return 0.0 if config.cluster.provider == "local" else facts.price(machine, config.region)


def _local_price(cluster: ClusterConfig, partition: PartitionConfig) -> float:
    """Return the pretended price of a node: the partition's, its instance type's, or that of all nodes."""
    facts = cluster.instance_types.get(partition.instance_type)
    prices = (
        partition.local.price_hour if partition.local else None,
        facts.price_hour if facts else None,
        cluster.local.price_hour if cluster.local else None,
    )
    return next((price for price in prices if price is not None), 0.0)


def gp3_of(config: Gp3Config | None) -> Gp3 | None:
    """Return the performance of a disk; `None` means what every gp3 volume has."""
    return Gp3(config.iops, config.throughput_mibs) if config is not None else None


def mounts_of(cluster: ClusterConfig) -> tuple[Mount, ...]:
    """Return the directories that machines mount.

    On the local stack process machines share this machine's directories, so nothing is mounted. Containers
    get folders of the run directory where a cloud has NFS.
    """
    if cluster.provider == "local":
        if cluster.has_process_machines():
            return ()
        return (
            *(Mount(path=path, kind="bind") for path in ("/apps", "/home")),
            *_state_mount(cluster),
        )
    storage = cluster.storage
    # AWS Batch has no controller that could export directories.
    default = SharedStorage() if cluster.scheduler == "slurm" else None
    shared = {"home": storage.home or default, "apps": storage.apps or default, "scratch": storage.scratch}
    mounts = [_shared_mount(name, part) for name, part in shared.items() if part is not None]
    users = "controller" if cluster.login.count == 0 else "login"
    mounts += [
        _bucket_mount(index, bucket, (users, "compute")) for index, bucket in enumerate(storage.buckets)
    ]
    if isinstance(storage.local_scratch, LocalScratch):
        path = storage.local_scratch.path
        options = MOUNT_OPTIONS["nvme"]
        mounts.append(Mount(path, "nvme", ("compute",), name="local_scratch", options=options))
    return (*mounts, *_state_mount(cluster))


def _state_mount(cluster: ClusterConfig) -> tuple[Mount, ...]:
    if not cluster.keeps_state():
        return ()
    part = cluster.storage.state or StateStorage()
    mount = Mount(
        path=model.STATE,
        kind="disk",
        roles=("controller",),
        served_by="controller",
        options=MOUNT_OPTIONS["disk"],
        size_gib=part.size_gib or (None if part.existing else DEFAULT_STATE_GIB[cluster.provider]),
        name="state",
        gp3=gp3_of(part.gp3),
        existing=part.existing,
        keep=part.keep,
        snapshot=part.snapshot,
        restore=part.restore,
    )
    return (mount,)


def _bucket_mount(index: int, bucket: BucketConfig, roles: tuple[str, ...]) -> Mount:
    return Mount(
        path=bucket.path,
        kind="s3" if bucket.bucket.startswith("s3://") else "gcs",
        roles=roles,
        name=f"buckets[{index}]",
        options="ro" if bucket.read_only else "rw",
        existing=bucket.bucket.rstrip("/"),
    )


def _shared_mount(name: str, part: SharedStorage) -> Mount:
    lustre = part.kind == "fsx_lustre" and part.existing is None
    exported = part.kind == "nfs" and not part.is_export()
    deployment = {"fsx_lustre": part.lustre_deployment(), "filestore": part.tier or "BASIC_HDD"}.get(
        part.kind
    )
    if part.existing is not None:
        # Its owner chose what it is.
        deployment = None
    return Mount(
        path=part.mounted_at(name),
        kind=part.kind,
        name=name,
        # A file server of somebody's is mounted from there; a disk is exported by the controller.
        served_by="controller" if exported else None,
        options=MOUNT_OPTIONS["export" if part.is_export() else part.kind],
        size_gib=part.size_gib or (DEFAULT_NFS_GIB if exported and part.existing is None else None),
        deployment=deployment,
        storage_type=(part.storage_type or "SSD") if lustre else None,
        throughput=part.throughput,
        s3_import=part.s3_import,
        s3_export=part.s3_export,
        gp3=gp3_of(part.gp3),
        existing=part.existing,
        security_group=part.security_group,
        keep=part.keep,
        snapshot=part.snapshot,
        restore=part.restore,
    )


def _backup(cluster: ClusterConfig) -> model.Backup | None:
    config = cluster.controller.backup
    return None if config is None else model.Backup(config.bucket, config.every_hours, config.keep)


def _health(cluster: ClusterConfig, partitions: Sequence[model.Partition]) -> Health | None:
    """Return the checks; `None` means that no node is checked."""
    config = cluster.health
    if not any(p.accelerator or p.aws.efa for p in partitions) or cluster.scheduler == "batch":
        return None
    real = any(p.aws.efa or (p.accelerator and not p.accelerator.simulated) for p in partitions)
    if not (real if config.enabled is None else config.enabled):
        return None
    checks = Health(skip=tuple(config.skip))
    seconds = config.interval_seconds
    return checks if seconds is None else replace(checks, interval_seconds=seconds)


def _batch(config: StackConfig, facts: Catalog) -> Batch | None:
    """Return the job definition and its environment; `None` for a Slurm cluster."""
    cluster, settings = config.cluster, config.cluster.batch
    if settings is None or cluster.scheduler != "batch":
        return None
    machine = facts.machines[settings.instance_types[0]]
    devices = machine.accelerator.count if machine.accelerator else 0
    container = settings.container
    return Batch(
        compute_environment=settings.compute_environment or f"{cluster.name}-ce",
        queue=settings.queue or f"{cluster.name}-queue",
        job_definition=settings.job_definition or f"{cluster.name}-job",
        nodes=settings.nodes,
        machines=tuple(settings.instance_types),
        min_vcpus=settings.vcpus.min,
        desired_vcpus=settings.vcpus.desired,
        max_vcpus=settings.vcpus.max,
        container_image=container.image,
        container_vcpus=container.vcpus,
        container_memory_mib=container.memory_mib,
        container_gpus=devices if container.gpus is None else container.gpus,
        command=tuple(container.command),
        job_role=container.job_role,
        environment=dict(container.environment),
        volumes={v.source: v.path or v.source for v in container.volumes},
        placement_group=settings.placement_group,
        attempts=settings.attempts,
        parameters=dict(settings.parameters),
        repository=None if container.image else container.repository or cluster.name,
        cached=container.cached,
        shared_memory_mib=container.shared_memory_mib or max(64, container.memory_mib // 8),
        efa=machine.efa if settings.efa else 0,
        file_system=settings.file_system,
        start_on_manifest=settings.start_on_manifest,
        timeout=settings.timeout,
        tags=dict(settings.tags),
        vcpu_price_hour=_vcpu_price(config, settings.instance_types, facts),
    )


def _vcpu_price(config: StackConfig, types: list[str], facts: Catalog) -> float | None:
    """Return the price of a vCPU of the dearest type; `None` if the price of one is not known."""
    prices = [(facts.price(name, config.region), facts.machines[name].vcpus) for name in types]
    known = [price / vcpus for price, vcpus in prices if price is not None]
    return max(known) if len(known) == len(prices) else None


def _batch_queue(config: StackConfig, batch: Batch, facts: Catalog) -> model.Partition:
    """Return the queue as a partition, so that costs and outputs can treat it like any other."""
    machine, settings = facts.machines[batch.machines[0]], config.cluster.batch
    built_in = machine.accelerator
    return model.Partition(
        name=batch.queue,
        instance_type=batch.machines[0],
        cpus=machine.vcpus,
        memory_mib=real_memory(machine),
        min=-(-batch.min_vcpus // machine.vcpus),
        max=batch.max_vcpus // machine.vcpus,
        accelerator=accelerators.Accelerator(type=built_in.type, count=built_in.count) if built_in else None,
        placement="cluster" if batch.placement_group else "none",
        exclusive=True,
        default=True,
        price_hour=facts.price(batch.machines[0], config.region),
        disk_gib=settings.disk_gib if settings else 0,
        aws=model.AwsPartition(
            efa=batch.efa, security_groups=tuple(settings.security_groups) if settings else ()
        ),
    )
