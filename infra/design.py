"""Makes a cluster's design from the stack's configuration and the facts of instance types.

No Pulumi, no network, no clock: the same input gives the same design on every machine, and nothing that is
given is changed. Providers iterate the design and decide nothing about Slurm.
"""

from __future__ import annotations

from dataclasses import replace

from infra import batch_design
from infra.config import ClusterConfig, StackConfig, distributions
from infra.config.cluster import AwsConfig, AwsPartition, OwnImageConfig, PartitionConfig
from infra.config.fields import clock, time_limit_seconds
from infra.config.local_cloud import LocalConfig
from infra.health import health
from infra.instance_types.catalog import GRES, NEURON_CORES, Catalog, InstanceType
from infra.mounts import gp3_of, mounts_of
from node import codec, model
from node.batch import Batch
from node.bootstrap import limits
from node.containers.model import Package
from node.local_cloud import LocalCloud

DEFAULT_MACHINE = {"aws": "m5.large", "gcp": "n1-standard-2", "local": "local.small"}
DEFAULT_DISK_GIB = 50
ACCESS_MODE = {"aws": "ssm", "gcp": "iap", "local": "local"}


def design(config: StackConfig, facts: Catalog) -> model.ClusterDesign:
    """The design of a stack's cluster.

    Args:
        config: A stack file without mistakes.
        facts: The snapshot. The stack's own facts are applied here.
    """
    cluster, facts = config.cluster, config.catalog(facts)
    local = cluster.local
    common = {
        "name": cluster.name,
        "stack": config.stack,
        "provider": cluster.provider,
        "isolation": (local.isolation if local else "process") if cluster.provider == "local" else "vm",
        "scheduler": cluster.scheduler,
    }
    mounts = mounts_of(cluster)
    batch = batch_design.batch(config, facts)
    partitions = (_queue(config, batch, facts),) if batch else _partitions(config, facts)
    made = model.ClusterDesign(
        **common,
        hosts=() if batch else _hosts(config, facts, mounts),
        partitions=partitions,
        mounts=mounts,
        slurm=model.SlurmSettings(),
        hooks=tuple(
            model.Hook(h.role, h.source or model.INLINE, tuple(h.args), h.timeout, h.script)
            for h in cluster.hooks
        ),
        health=health(cluster, partitions),
        containers=_containers(cluster),
        budget=_budget(cluster),
        region=config.region,
        zone=config.zone,
        project=config.project,
        access=model.Access(
            mode=cluster.access.mode or ACCESS_MODE[cluster.provider],
            ssh_cidrs=tuple(cluster.access.ssh_cidrs),
            key=cluster.access.key,
            user=distributions.chosen_row(cluster, facts).aws.user if cluster.provider == "aws" else None,
        ),
        network=_network(cluster),
        image=_image(cluster, facts),
        local=local_cloud(local),
        batch=batch,
        kms_key=(cluster.aws or AwsConfig()).kms_key,
        trains=_trains(config),
        requirements=config.benchmark.requirements if config.benchmark and _trains(config) else None,
    )
    return replace(made, slurm=_slurm(cluster, made))


def local_cloud(said: LocalConfig | None) -> LocalCloud:
    """The behaviour of the local cloud until `./cluster chaos` changes it."""
    settings = said.model_dump(exclude={"isolation", "suite", "price_hour"}) if said else {}
    return LocalCloud(**settings)


def benchmark_design(config: StackConfig, design: model.ClusterDesign) -> model.BenchmarkDesign | None:
    """The training that follows the creation; `None` if the stack has none."""
    benchmark = config.benchmark
    if benchmark is None or not _trains(config):
        return None
    partition = next(
        (p for p in design.partitions if p.name == benchmark.partition),
        next(p for p in design.partitions if p.default),
    )
    devices = partition.usable_gpus
    return model.BenchmarkDesign(
        script=benchmark.script,
        partition=partition.name,
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
    said = cluster.budget
    usual = "cancel" if cluster.scheduler == "batch" else "keep"
    return model.Budget(said.max_usd, said.max_hours, said.running_jobs or usual)


def _containers(cluster: ClusterConfig) -> model.Containers | None:
    config = cluster.containers
    if config is None:
        return None
    packages = tuple(Package(package.source, package.sha256) for package in config.packages)
    return model.Containers(config.runtime, packages, config.images)


def _queue(config: StackConfig, batch: Batch, facts: Catalog) -> model.Partition:
    memory = real_memory(facts.machines[batch.machines[0]])
    return batch_design.queue(config, batch, facts, memory)


def _trains(config: StackConfig) -> bool:
    return config.benchmark is not None and config.benchmark.enabled


def real_memory(machine: InstanceType) -> int:
    """The memory that Slurm may allocate, in MiB: less than the machine will report.

    A node that reports less than its RealMemory is drained as invalid, and kernel, firmware and daemons keep
    a part for themselves: 400 MiB and 30 MiB for each GiB, the rule of Google's slurm-gcp. Machines of the
    local stack are sizes to count with (slurmd takes them from the configuration), so they keep theirs.
    """
    if machine.provider == "local":
        return machine.memory_mib
    return machine.memory_mib - (400 + 30 * machine.memory_mib // 1024)


def slurm_time(limit: str) -> str:
    """A time limit in the design's notation: [days-]hours:minutes:seconds, or INFINITE."""
    seconds = time_limit_seconds(limit)
    if seconds is None:
        return "INFINITE"
    days, rest = divmod(seconds, 86400)
    return f"{days}-{clock(rest)}" if days else clock(rest)


def _hosts(config: StackConfig, facts: Catalog, mounts: tuple[model.Mount, ...]) -> tuple[model.Host, ...]:
    cluster = config.cluster
    machine = cluster.controller.instance_type or DEFAULT_MACHINE[cluster.provider]
    public = ("public",) if cluster.access.mode == "ssh" else ()
    tags = ["controller"]
    if any(m.served_by == "controller" for m in mounts):
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
        )
        for index in range(cluster.login.count)
    ]
    return tuple(hosts)


def _partitions(config: StackConfig, facts: Catalog) -> tuple[model.Partition, ...]:
    partitions = config.cluster.partitions
    chosen = next((p.name for p in partitions if p.default), partitions[0].name)
    return tuple(_partition(config, facts, p, default=p.name == chosen) for p in partitions)


def _partition(
    config: StackConfig, facts: Catalog, partition: PartitionConfig, *, default: bool
) -> model.Partition:
    machine = facts.machines[partition.instance_type]
    accelerator = _accelerator(config.cluster, partition, machine)
    attached = (accelerator.type, accelerator.count) if accelerator else None
    own = partition.aws or AwsPartition()
    local_ssds = machine.local_ssds if config.cluster.storage.local_scratch else 0
    price = facts.price(partition.instance_type, config.region, accelerator=attached, spot=partition.spot)
    reserved = partition.reservations()
    return model.Partition(
        name=partition.name,
        instance_type=partition.instance_type,
        cpus=machine.vcpus,
        memory_mib=real_memory(machine),
        min=partition.nodes.min,
        max=partition.nodes.max,
        accelerator=accelerator,
        spot=partition.spot,
        placement="cluster" if own.placement_group else partition.placement,
        placement_group=own.placement_group,
        efa=machine.efa if own.efa else 0,
        reservation=reserved[0] if len(reserved) == 1 else None,
        reservations=reserved if len(reserved) > 1 else (),
        capacity_block=own.capacity_block,
        time_limit=slurm_time(partition.time_limit),
        exclusive=partition.exclusive,
        default=default,
        image=_image_id(partition.image),
        price_hour=_local_price(config.cluster, partition) if config.cluster.provider == "local" else price,
        disk_gib=_disk(config.cluster, partition.disk_gib),
        zones=tuple(partition.zones or ()),
        gp3=gp3_of(own.gp3),
        secure_boot=bool(partition.gcp and partition.gcp.secure_boot),
        placement_policy=partition.gcp.placement_policy if partition.gcp else None,
        disk_type=partition.gcp.disk_type if partition.gcp else None,
        min_cpu_platform=partition.gcp.min_cpu_platform if partition.gcp else None,
        topology=partition.topology,
        local_ssds=local_ssds,
        open_metadata=partition.open_metadata,
    )


def _accelerator(
    cluster: ClusterConfig, partition: PartitionConfig, machine: InstanceType
) -> model.Accelerator | None:
    """The accelerators that the partition asks for, or those that are part of the instance type."""
    chosen = partition.accelerator or machine.accelerator
    if chosen is None:
        return None
    return model.Accelerator(
        type=chosen.type,
        count=chosen.count,
        gres=GRES.get(chosen.type, "gpu"),
        simulated=cluster.provider == "local",
        cores=NEURON_CORES.get(chosen.type, 0) if partition.aws and partition.aws.neuron_cores else 0,
    )


def _slurm(cluster: ClusterConfig, made: model.ClusterDesign) -> model.SlurmSettings:
    """Timers that fit the provider and the rest of the design; the stack file's own win."""
    if cluster.provider == "local":
        # Starting a process costs nothing, so idle nodes are powered down soon.
        boot = cluster.local.boot_delay + cluster.local.boot_spread if cluster.local else 0.0
        chosen = model.SlurmSettings(
            suspend_time=20,
            suspend_timeout=5,
            resume_timeout=60 + round(boot),
            slurmd_timeout=20,
            reconcile_interval=2.0,
        )
    else:
        longest = max(limits.boot(made, partition) for partition in made.partitions)
        chosen = model.SlurmSettings(resume_timeout=longest)
    own = cluster.slurm.model_dump(exclude_none=True, exclude={"accept_unmaintained"})
    return codec.from_json(model.SlurmSettings, codec.to_json(chosen) | own)


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
        own = (network.gcp.subnetwork,) if network.gcp.subnetwork else ()
        return model.Network(vpc=network.gcp.network, private_subnets=own, zones=zones)
    public, private = network.subnets()
    return model.Network(
        cidr=str(network.whole()),
        public_cidr=str(public),
        private_cidr=str(private),
        zones=zones,
        nat=(cluster.aws or AwsConfig()).nat,
    )


def _image(cluster: ClusterConfig, facts: Catalog) -> model.Image:
    if cluster.provider == "local":
        return model.Image(source=cluster.local.suite if cluster.local else None)
    image = cluster.image
    return model.Image(source=distributions.chosen(cluster, facts), id=image.id, bake=image.bake)


def _image_id(image: OwnImageConfig | None) -> str | None:
    return image.id if image else None


def _disk(cluster: ClusterConfig, said: int | None) -> int:
    return 0 if cluster.provider == "local" else said or DEFAULT_DISK_GIB


def _price(config: StackConfig, facts: Catalog, machine: str) -> float | None:
    return 0.0 if config.cluster.provider == "local" else facts.price(machine, config.region)


def _local_price(cluster: ClusterConfig, partition: PartitionConfig) -> float:
    """The pretended price of a node: the partition's, its instance type's, or that of all nodes."""
    facts = cluster.instance_types.get(partition.instance_type)
    prices = (
        partition.local.price_hour if partition.local else None,
        facts.price_hour if facts else None,
        cluster.local.price_hour if cluster.local else None,
    )
    return next((price for price in prices if price is not None), 0.0)
