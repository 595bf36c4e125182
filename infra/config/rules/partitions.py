"""Rules of partitions: names, what their instance type supports, and what cannot be combined."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

from infra.config.fields import IN_WORDS, LONGEST_NAME, NAME
from infra.config.mistakes import Location
from infra.config.partitions import PartitionConfig
from infra.config.rules.context import CLUSTER, Context
from infra.config.rules.images import check_own_image
from infra.config.rules.instance_types import check_instance_type
from infra.config.rules.shared_partitions import check_shared_partition
from infra.instance_types import threads
from infra.instance_types.catalog import InstanceType

# login-0 and controller are hosts; DEFAULT, in any case of letters, has a meaning in slurm.conf.
RESERVED = ("controller", "login", "default")
OWN_FEATURES = ("spot", "ondemand")
COMPACT_PLACEMENT_NODES = 150
MOST_SIMULATED = 8
_PLACE = r"(?P<region>[a-z]{2}(-[a-z]+)+-[0-9]):[0-9]{12}"
_ONE = rf"(arn:aws(-[a-z]+)*:ec2:{_PLACE}:capacity-reservation/)?cr-[0-9a-f]{{8,17}}"
ONE_RESERVATION = re.compile(_ONE)
"""A capacity reservation: its id, or its ARN if another account owns it."""
RESERVATION_GROUP = re.compile(
    rf"arn:aws(-[a-z]+)*:resource-groups:{_PLACE}:"
    r"group/([A-Za-z0-9_.-]{1,300}|[A-Za-z0-9_.-]{1,150}/[a-z0-9]{26})"
)
"""The ARN of a group in AWS Resource Groups."""
GOOGLES_NAME = r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?"
GOOGLES_RESERVATION = re.compile(rf"(projects/[a-z0-9:.-]+/reservations/)?{GOOGLES_NAME}")
"""A reservation's name, or its path if another project owns it (Compute Engine API: ReservationAffinity)."""
NO_METADATA = "nothing: the local stack has no metadata address, and its nodes no identity in a cloud"


def check_partitions(c: Context) -> None:
    partitions = c.cluster.partitions
    if not partitions and c.cluster.scheduler == "slurm":
        c.add(
            "partition.none",
            (*CLUSTER, "partitions"),
            "nothing: the list is empty",
            "at least one partition",
            "add one",
        )
    seen: set[str] = set()
    defaults = 0
    for index, partition in enumerate(partitions):
        at = (*CLUSTER, "partitions", index)
        if partition.name in seen:
            c.add(
                "partition.name-twice",
                (*at, "name"),
                partition.name,
                "a name of its own",
                "rename one of the two partitions",
            )
        seen.add(partition.name)
        defaults += bool(partition.default)
        if partition.default and defaults > 1:
            c.add(
                "partition.default-twice",
                (*at, "default"),
                True,
                "one default partition",
                "leave `default` out here",
            )
        if partition.nodes_of is not None:
            _reserved(c, partition, at)
            check_shared_partition(c, partition, at)
            continue
        _pools(c, partition, at)
        if partition.nodes.min > partition.nodes.max:
            c.add(
                "partition.nodes-order",
                (*at, "nodes"),
                {"min": partition.nodes.min, "max": partition.nodes.max},
                "min up to max",
                "max counts static and dynamic nodes together",
            )
    owners: dict[str, str] = {}
    for at, group in c.groups():
        whole = partitions[int(at[2])].name
        _names(c, group, at)
        _features(c, group, at)
        if (other := owners.setdefault(group.name, whole)) != whole:
            c.add(
                "partition.nodes-of-pool",
                (*at, "name"),
                group.name.removeprefix(f"{whole}-") if "pools" in at else group.name,
                "names by which no two nodes are called alike",
                f"nodes of partition {other} are {group.name}-0, too: rename one of them",
            )
        if c.sound((*CLUSTER, "provider")):
            _on_provider(c, group, at)


def _pools(c: Context, partition: PartitionConfig, at: Location) -> None:
    """Check what pools of a partition have in common: a job may get nodes of any of them."""
    if partition.mixed and len(partition.pools) < 2:
        c.add("pools.mixed-alone", (*at, "mixed"), True, "true with several pools", "remove it, or add pools")
    names = [pool.name for pool in partition.pools]
    for number, name in enumerate(names):
        if name in names[:number]:
            where = (*at, "pools", number, "name")
            c.add(
                "pools.name-twice", where, name, "a name of its own in the partition", "rename one of the two"
            )
    groups = partition.by_pool()
    _ascending(c, partition, groups, at)
    first, *others = groups
    for number, group in enumerate(others, 1):
        _alike(c, first, group, (*at, "pools", number), partition)


def _ascending(
    c: Context, partition: PartitionConfig, groups: Sequence[PartitionConfig], at: Location
) -> None:
    """Check the weights of pools, by which newer releases of Slurm choose the pool: the first is the least.

    Slurm before 23.11 goes by the order in topology.conf, so with other weights releases would differ.
    """
    for number, (before, group) in enumerate(itertools.pairwise(groups), 1):
        if group.weight > before.weight:
            continue
        own = partition.pools[number].weight is not None
        pool, other = (partition.pools[n] for n in (number, number - 1)[:: 1 if own else -1])
        allowed = "weights that ascend in the order of the pools, in which they are wanted"
        wrong = f"{other.name} has {(before if own else group).weight}: change the order of the pools instead"
        where = (*at, "pools", partition.pools.index(pool), "weight")
        c.add("pools.weight", where, (group if own else before).weight, allowed, wrong)
        return


def _features(c: Context, group: PartitionConfig, at: Location) -> None:
    """Check features that would say of nodes what only the cluster can say of them."""
    for number, name in enumerate(group.features):
        if name in OWN_FEATURES:
            allowed = "features of yours: each node is spot or ondemand by the key spot"
            c.add("features.own", (*at, "features", number), name, allowed, "remove it, or write spot: true")


def _alike(
    c: Context, first: PartitionConfig, other: PartitionConfig, at: Location, partition: PartitionConfig
) -> None:
    """Check that jobs that fit one pool of a partition fit another one."""
    one, two = c.instance_type(first.instance_type), c.instance_type(other.instance_type)
    if one is None or two is None:
        return
    name, own = partition.pools[0].name, partition.pools[int(at[-1])].name
    mine, its = _devices_of(first, one), _devices_of(other, two)
    if mine != its:
        key = "instance_type" if other.accelerator is None else "accelerator"
        allowed = f"the accelerators of pool {name}: {mine}"
        advice = f"a job that asks for them would fit one pool only (here: {its}): make it another partition"
        given = other.accelerator.model_dump() if other.accelerator else other.instance_type
        c.add("pools.accelerators", (*at, key), given, allowed, advice)
    efa = [bool(group.aws and group.aws.efa) for group in (first, other)]
    if partition.placement == "cluster" and efa[0] != efa[1]:
        having, without = (name, own)[:: 1 if efa[0] else -1]
        allowed = "with placement: cluster, pools that all have EFA, or that all have none"
        advice = f"{having} has it and {without} has not: a job of several nodes would get EFA by chance"
        c.add("pools.efa", (*at, "name"), own, allowed, advice)


def _devices_of(group: PartitionConfig, machine: InstanceType) -> str:
    """Return a node's accelerators as text."""
    chosen = group.accelerator or machine.accelerator
    return f"{chosen.count} {chosen.type}" if chosen is not None else "none"


def _reserved(c: Context, partition: PartitionConfig, at: Location) -> None:
    if partition.name in RESERVED:
        c.add(
            "partition.name-reserved",
            (*at, "name"),
            partition.name,
            f"any name but {', '.join(RESERVED)}",
            "these mean something else",
        )


def _names(c: Context, partition: PartitionConfig, at: Location) -> None:
    _reserved(c, partition, at)
    longest = f"{c.cluster.name}-{partition.name}-{partition.nodes.max - 1}"
    if len(longest) > LONGEST_NAME and c.sound((*CLUSTER, "name")):
        over = len(longest) - LONGEST_NAME
        c.add(
            "partition.name-too-long",
            (*at, "name"),
            partition.name,
            f"machine names of at most {LONGEST_NAME} characters",
            f"{longest} has {len(longest)}: shorten the cluster's or the partition's name by {over}",
        )


def _on_provider(c: Context, partition: PartitionConfig, at: Location) -> None:
    """Check what depends on the cloud."""
    for name in ("aws", "gcp", "local"):
        if name != c.provider and getattr(partition, name) is not None:
            c.add(
                "provider.other-settings",
                (*at, name),
                "nothing that applies",
                f"settings of {c.provider}",
                f"remove {name}:",
            )
    if partition.zones is not None:
        check_zones(c, partition.zones, (*at, "zones"))
    check_instance_type(c, (*at, "instance_type"), partition.instance_type)
    check_own_image(c, partition.image, (*at, "image"))
    _reservation(c, partition, at)
    if partition.open_metadata and c.provider == "local":
        c.add("metadata.local", (*at, "open_metadata"), True, NO_METADATA, "remove it")
    machine = c.instance_type(partition.instance_type)
    if machine is None:
        return
    if partition.spot and not machine.spot:
        c.add(
            "partition.no-spot",
            (*at, "spot"),
            True,
            f"false: {partition.instance_type} is never a spot machine",
            "write spot: false",
        )
    _accelerator(c, partition, machine, at)
    _threads(c, partition, machine, at)
    _efa_and_placement(c, partition, machine, at)


def _reservation(c: Context, partition: PartitionConfig, at: Location) -> None:
    value, where = partition.reservation, (*at, "reservation")
    if value is None:
        return
    if partition.spot:
        c.add(
            "reservation.spot",
            where,
            value,
            "a reservation, or spot",
            "reserved machines are on demand: remove one of the two",
        )
    if c.provider == "local":
        c.add("reservation.local", where, value, "nothing: the local stack reserves no machines", "remove it")
    elif c.provider == "aws":
        _of_ec2(c, value, where)
    elif c.provider == "gcp" and isinstance(value, list):
        c.add(
            "reservation.one-on-gcp",
            where,
            value,
            "one reservation on Google Cloud",
            "give each reservation a partition of its own",
        )
    elif c.provider == "gcp" and not GOOGLES_RESERVATION.fullmatch(str(value)):
        c.add(
            "reservation.gcp-form",
            where,
            value,
            "the name of a reservation in the zone, or projects/<project>/reservations/<name>",
            "the second is for a reservation that another project shares with this one",
        )


def _of_ec2(c: Context, value: str | list[str], where: Location) -> None:
    """Check reservations of EC2: one, several, or a group of the user's.

    A group holds reservations, the account's own and those that others share with it, but no other group (EC2
    user guide, "Capacity Reservation Resource Groups"). All of them are in name region.
    """
    several = isinstance(value, list)
    members = value if isinstance(value, list) else [value]
    for index, name in enumerate(members):
        at = (*where, index) if several else where
        match = ONE_RESERVATION.fullmatch(name) or (None if several else RESERVATION_GROUP.fullmatch(name))
        if match is None:
            group = "" if several else " or arn:aws:resource-groups:<region>:<account>:group/<name>"
            shared = "arn:aws:ec2:<region>:<account>:capacity-reservation/cr-…"
            advice = "see the EC2 console"
            if several and RESERVATION_GROUP.fullmatch(name):
                advice = "a group holds no other group: name that group alone, or its reservations here"
            c.add(
                "reservation.aws-form",
                at,
                name,
                f"cr-…, or {shared} if another account shares it{',' * bool(group)}{group}",
                advice,
            )
        elif match["region"] and c.region and match["region"] != c.region:
            allowed = f"a {'reservation' if ONE_RESERVATION.fullmatch(name) else 'group'} of {c.region}"
            c.add(
                "reservation.region", at, name, allowed, f"machines of {match['region']} are of no use here"
            )
        elif name.rpartition("/")[2] in {other.rpartition("/")[2] for other in members[:index]}:
            c.add("reservation.twice", at, name, "each reservation once", "remove it")


def _threads(c: Context, partition: PartitionConfig, machine: InstanceType, at: Location) -> None:
    """Check a partition whose nodes are to start without hyper-threading."""
    if partition.threads_per_core is None:
        return
    name = partition.instance_type
    if why := threads.why_not_one(name, c.provider, machine.vcpus):
        advice = "remove it, or take another instance type"
        c.add("threads.unsupported", (*at, "threads_per_core"), 1, f"nothing with {name}: {why}", advice)
    given: list[tuple[Location, int | None]] = []
    if partition.aws is not None and (template := partition.aws.launch_template_overrides) is not None:
        options = template.cpu_options
        where = ("aws", "launch_template_overrides", "cpu_options")
        given.append((where, options.threads_per_core if options else None))
    if partition.gcp is not None and (instance := partition.gcp.instance_template_overrides) is not None:
        features = instance.advanced_machine_features
        where = ("gcp", "instance_template_overrides", "advanced_machine_features")
        given.append((where, features.threads_per_core if features else None))
    for path, value in given:
        if value not in (None, 1):
            at_value = (*at, *path, "threads_per_core")
            c.add("threads.differ", at_value, value, "1, as threads_per_core of the partition", "remove it")


def _accelerator(c: Context, partition: PartitionConfig, machine: InstanceType, at: Location) -> None:
    accelerator, where = partition.accelerator, (*at, "accelerator")
    if accelerator is None:
        return
    if c.provider == "gcp" and machine.accelerator is None:
        _attached(c, partition, machine, where)
    elif c.provider == "local":
        if accelerator.count > MOST_SIMULATED:
            c.add(
                "accelerator.simulated-count",
                (*where, "count"),
                accelerator.count,
                f"at most {MOST_SIMULATED} simulated devices a node",
            )
    elif machine.accelerator is None:
        having = c.facts.matching(
            partition.instance_type,
            c.provider,
            lambda m: m.accelerator,
            best=lambda m: m.accelerator is not None and m.accelerator.type == accelerator.type,
        )
        c.add(
            "accelerator.none",
            where,
            {"type": accelerator.type, "count": accelerator.count},
            f"no accelerator: {partition.instance_type} has none",
            f"machines with some: {having}",
        )
    elif accelerator.type != machine.accelerator.type:
        built_in = machine.accelerator
        c.add(
            "accelerator.type",
            (*where, "type"),
            accelerator.type,
            f"{built_in.type}: what {partition.instance_type} has",
            f"write type: {built_in.type}",
        )
    elif accelerator.count > machine.accelerator.count:
        most = machine.accelerator.count
        c.add(
            "accelerator.count",
            (*where, "count"),
            accelerator.count,
            f"at most {most} on {partition.instance_type}",
            f"write count: {most}",
        )


def _attached(c: Context, partition: PartitionConfig, machine: InstanceType, where: Location) -> None:
    """Check GPUs that Google attaches to a machine."""
    accelerator = partition.accelerator
    if accelerator is None:
        return
    gpu = c.facts.attachable_to(partition.instance_type, accelerator.type)
    if gpu is None:
        family = partition.instance_type.partition("-")[0]
        offered = [t for t, g in c.facts.attachable.items() if family in g.families]
        if offered:
            c.add(
                "accelerator.attached-type",
                (*where, "type"),
                accelerator.type,
                f"one of {', '.join(offered)} on {family.upper()} machines",
            )
        else:
            c.add(
                "accelerator.attached-machine",
                where,
                {"type": accelerator.type, "count": accelerator.count},
                "GPUs on N1 machines only",
                f"{partition.instance_type} takes none: take e.g. n1-standard-4",
            )
        return
    if accelerator.count not in gpu.max_vcpus:
        counts = ", ".join(map(str, gpu.max_vcpus))
        c.add(
            "accelerator.attached-count",
            (*where, "count"),
            accelerator.count,
            f"{counts} of {accelerator.type} on a machine",
        )
    elif machine.vcpus > gpu.max_vcpus[accelerator.count]:
        c.add(
            "accelerator.attached-vcpus",
            (*where, "count"),
            accelerator.count,
            f"with {accelerator.count} {accelerator.type} a machine of at most "
            f"{gpu.max_vcpus[accelerator.count]} vCPUs",
            f"{partition.instance_type} has {machine.vcpus}: take a smaller machine or more GPUs",
        )


def _efa_and_placement(c: Context, partition: PartitionConfig, machine: InstanceType, at: Location) -> None:
    efa = partition.aws is not None and partition.aws.efa and c.provider == "aws"
    if efa and machine.efa == 0:
        having = c.facts.matching(partition.instance_type, "aws", lambda m: m.efa)
        c.add(
            "partition.no-efa",
            (*at, "aws", "efa"),
            True,
            f"false: {partition.instance_type} has no EFA",
            f"machines with EFA: {having}",
        )
    group = partition.aws.placement_group if partition.aws is not None and c.provider == "aws" else None
    placed = partition.placement == "cluster" or group is not None
    where = (*at, "aws", "placement_group") if group is not None else (*at, "placement")
    placement = group or "cluster"
    if placed and not machine.placement:
        what = {"gcp": "a compact placement policy (N1 and E2 take none)"}.get(
            c.provider, "a cluster placement group"
        )
        advice = "remove it" if group is not None else "write placement: none"
        c.add(
            "placement.unsupported",
            where,
            placement,
            f"none: {partition.instance_type} does not take {what}",
            advice,
        )
    elif placed and c.provider == "gcp" and partition.nodes.max > COMPACT_PLACEMENT_NODES:
        c.add(
            "placement.too-many-nodes",
            where,
            "cluster",
            f"at most {COMPACT_PLACEMENT_NODES} nodes close together",
            "lower nodes.max",
        )
    zones = partition.zones if partition.zones is not None else c.cluster.network.zones
    if (placed or efa) and len(set(zones)) > 1:
        # Neither works across zones.
        which = where if placed else (*at, "aws", "efa")
        value = placement if placed else True
        c.add(
            "placement.several-zones",
            which,
            value,
            "one zone only",
            f"nodes may start in {', '.join(zones)}: give this partition one zone",
        )


def check_zones(c: Context, zones: list[str], at: Location) -> None:
    """Check that zones are in the region; the local cloud pretends to have any zone."""
    for index, zone in enumerate(zones):
        if c.provider == "local":
            if not re.fullmatch(NAME, zone) or len(zone) > LONGEST_NAME:
                c.add("zone.form", (*at, index), zone, f"a zone's name: {IN_WORDS[NAME]}")
            elif zone in zones[:index]:
                c.add("zone.twice", (*at, index), zone, "each zone once", "remove it")
            continue
        wanted = r"[a-z]" if c.provider == "aws" else r"-[a-z]"
        if c.region and not re.fullmatch(re.escape(c.region) + wanted, zone):
            example = f"{c.region}a" if c.provider == "aws" else f"{c.region}-a"
            c.add("zone.region", (*at, index), zone, f"a zone of {c.region}, like {example}")
