"""Rules of partitions, images and instance types: names, what a type supports, what cannot be combined."""

from __future__ import annotations

import fnmatch
import re

from infra.config.cluster import ImageConfig, OwnImageConfig, PartitionConfig
from infra.config.fields import IN_WORDS, LONGEST_NAME, NAME
from infra.config.mistakes import Location
from infra.config.rules.context import CLUSTER, Context
from infra.instance_types.catalog import FEW, InstanceType

# In EC2's names the letter after the generation is the processor's maker: g is Graviton, AWS's own (m7g,
# c7gn), and Grace in p6e-gb200. A1 is older than that rule, and Apple's machines do not follow it.
_EC2_ARM = re.compile(r"[a-z]+[0-9]+[a-z-]*g[a-z0-9-]*\..+|a1\..+|mac(?!1\.).*")
_GOOGLE_ARM = ("t2a", "c4a", "n4a", "a4x")
"""Machine families with ARM processors of Ampere, Google and NVIDIA."""


def is_arm(name: str, provider: str) -> bool:
    """Return whether a cloud's instance type has ARM processors, by its name."""
    if provider == "aws":
        return _EC2_ARM.fullmatch(name) is not None
    return provider == "gcp" and name.partition("-")[0] in _GOOGLE_ARM


def check_instance_types(c: Context) -> None:
    """Check the instance types of the controller and the login machines."""
    if c.cluster.controller.instance_type is not None:
        check_instance_type(c, (*CLUSTER, "controller", "instance_type"), c.cluster.controller.instance_type)
    if c.cluster.login.instance_type is not None:
        check_instance_type(c, (*CLUSTER, "login", "instance_type"), c.cluster.login.instance_type)


def check_instance_type(c: Context, location: Location, name: str) -> None:
    """Check that an instance type can be used; if not, the mistake says what to use instead."""
    retired = c.facts.retired.get(name)
    if retired is not None and retired.provider == c.provider:
        instead = ", or ".join(f"{machine} ({what})" for machine, what in retired.replaced_by.items())
        c.add(
            "instance-type.retired",
            location,
            name,
            f"an instance type that still exists: {retired.why}",
            f"take {instead}",
        )
        return
    if is_arm(name, c.provider):
        c.add(
            "instance-type.arm",
            location,
            name,
            "an instance type with x86-64 processors",
            f"{name} has ARM processors, and Ubuntu's image, the cloud's agent and the training environment "
            "that machines here get are of x86-64",
        )
        return
    machine = c.facts.instance_type(name)
    unusable = c.facts.unusable.get(name)
    series = c.facts.series.get(name.partition("-")[0]) if c.provider == "gcp" else None
    why = unusable.why if unusable and unusable.provider == c.provider else series and series.unusable
    if why and machine is None:
        c.add(
            "instance-type.unusable",
            location,
            name,
            "an instance type that a cluster here can use",
            f"{name} is not one: {why}",
        )
    elif machine is None:
        _unknown(c, location, name)
    elif machine.provider != c.provider:
        few = c.facts.names(c.provider)
        which = f": {', '.join(few)}" if len(few) <= FEW else ""
        c.add(
            "instance-type.other-provider",
            location,
            name,
            f"an instance type of {c.provider}{which}",
            f"{name} is an instance type of {machine.provider}",
        )
    elif c.region is not None and not c.facts.offered(name, c.region):
        where = ", ".join(machine.regions or ())
        advice = f"{name} is offered in {where}"
        if machine.asked:
            advice = f"its facts are kept of {where} only; {_ask(c)}"
        c.add(
            "instance-type.other-region", location, name, f"an instance type that {c.region} offers", advice
        )


def _unknown(c: Context, location: Location, name: str) -> None:
    if c.provider != "local" and (advice := _family(c, name)):
        c.add("instance-type.family", location, name, "one instance type, not a family of them", advice)
        return
    near = c.near(name)
    advice = f"did you mean {' or '.join(near)}? " if near else ""
    if c.provider == "local":
        known = f"an instance type of local: {', '.join(c.facts.names(c.provider))}"
        c.add(
            "instance-type.unknown",
            location,
            name,
            known,
            f"{advice}another one: give its facts under {CLUSTER[0]}.instance_types",
        )
        return
    c.add(
        "instance-type.unknown",
        location,
        name,
        f"an instance type of {c.provider}; {len(c.facts.names(c.provider))} are known",
        f"{advice}another one: {_ask(c)}, or give its facts under {CLUSTER[0]}.instance_types",
    )


def _family(c: Context, name: str) -> str:
    """Return what to take where the name is a family's (`p3 family`, `n1`), or AWS Batch's `optimal`."""
    family = name.lower().removesuffix(" family").removesuffix(".*").rstrip("*.")
    if c.provider == "aws" and family == "optimal":
        slurm = ", and Slurm counts their CPUs before they start" if c.cluster.scheduler == "slurm" else ""
        return f"take one type: nodes of one job are equal{slurm}"
    start = family + {"aws": ".", "gcp": "-"}[c.provider]
    types = [known for known in c.facts.names(c.provider) if known.startswith(start)]
    gone = [retired for retired in c.facts.retired if retired.startswith(start)]
    if not types and gone:
        retired = c.facts.retired[gone[0]]
        instead = ", or ".join(f"{machine} ({what})" for machine, what in retired.replaced_by.items())
        return f"{retired.why}: take {instead}"
    if not types:
        return ""
    more = f" and {len(types) - FEW} more" if len(types) > FEW else ""
    return f"take one of it: {', '.join(types[:FEW])}{more}"


def _ask(c: Context) -> str:
    """Return how to learn a type's facts from the cloud, which `plan` does not ask."""
    cloud = {"aws": "AWS", "gcp": "Google Cloud"}[c.provider]
    command = f"./cluster doctor --stack {c.stack}"
    return f"`{command}` asks {cloud} about it, with your credentials, and keeps the answer"


TOPOLOGY_OF_AWS = (
    "g6e.*", "g7e.*", "hpc6a.48xlarge", "hpc6id.32xlarge", "hpc7a.*", "hpc7g.*", "hpc8a.96xlarge",
    "p3dn.24xlarge", "p4d.24xlarge", "p4de.24xlarge", "p5.48xlarge", "p5e.48xlarge", "p5en.48xlarge",
    "p6-b200.48xlarge", "p6-b300.48xlarge", "p6e-gb200.36xlarge", "trn1.2xlarge", "trn1.32xlarge",
    "trn1n.32xlarge", "trn2.48xlarge", "trn2u.48xlarge",
)  # fmt: skip
"""EC2's types with a topology (EC2 user guide, "Prerequisites for Amazon EC2 topology")."""
TOPOLOGY_PAGE_OF_AWS = (
    "https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-instance-topology-prerequisites.html"
)
TOPOLOGY_OF_GOOGLE = (
    "a3-highgpu-8g", "a3-megagpu-8g", "a3-ultragpu-8g", "a3-edgegpu-8g", "a4-*", "a4x-*", "h4d-*",
)  # fmt: skip
"""Google's types with a topology; others have one with a compact placement policy (Compute Engine's
documentation, "View the physical location of instances")."""
TOPOLOGY_PAGE_OF_GOOGLE = "https://docs.cloud.google.com/compute/docs/instances/view-instance-topology"


def check_topology(c: Context) -> None:
    for index, partition in enumerate(c.cluster.partitions):
        if not partition.topology:
            continue
        if reason := _no_topology(c, partition):
            allowed, advice = reason
            c.add("topology.unknown", (*CLUSTER, "partitions", index, "topology"), True, allowed, advice)


def _no_topology(c: Context, partition: PartitionConfig) -> tuple[str, str] | None:
    """Return why nobody tells where its nodes are, and what to do; `None` if the cloud tells."""
    kind = partition.instance_type
    if c.provider == "local":
        return "false: all machines of the local stack are on one host", "remove topology"
    if c.provider == "aws" and not _matches(kind, TOPOLOGY_OF_AWS):
        return (
            f"false: EC2 does not tell where a {kind} is",
            f"types of which it tells: {TOPOLOGY_PAGE_OF_AWS}",
        )
    policy = partition.gcp.placement_policy if partition.gcp is not None else None
    close = partition.placement == "cluster" or policy is not None
    if c.provider == "gcp" and not close and not _matches(kind, TOPOLOGY_OF_GOOGLE):
        return (
            f"false: Compute Engine does not tell where a {kind} without a placement policy is",
            f"write placement: cluster, or take a type of which it tells: {TOPOLOGY_PAGE_OF_GOOGLE}",
        )
    return None


def _matches(kind: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatchcase(kind, pattern) for pattern in patterns)


# login-0 and controller are hosts; DEFAULT, in any case of letters, has a meaning in slurm.conf.
RESERVED = ("controller", "login", "default")
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
NO_IMAGE = "nothing: local machines boot from no image"
IMAGE_IDS = {
    "aws": (r"ami-[0-9a-f]{8,17}", "ami-0123456789abcdef0"),
    "gcp": (
        r"(?!ami-[0-9a-f]+$)(projects/[a-z0-9:.-]+/global/images/)?(family/)?[a-z][a-z0-9-]*",
        "projects/…/global/images/…",
    ),
}


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
        _names(c, partition, at)
        if partition.nodes.min > partition.nodes.max:
            c.add(
                "partition.nodes-order",
                (*at, "nodes"),
                {"min": partition.nodes.min, "max": partition.nodes.max},
                "min up to max",
                "max counts static and dynamic nodes together",
            )
        if c.sound((*CLUSTER, "provider")):
            _on_provider(c, partition, at)


def _names(c: Context, partition: PartitionConfig, at: Location) -> None:
    if partition.name in RESERVED:
        c.add(
            "partition.name-reserved",
            (*at, "name"),
            partition.name,
            f"any name but {', '.join(RESERVED)}",
            "these mean something else",
        )
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
        found = ONE_RESERVATION.fullmatch(name) or (None if several else RESERVATION_GROUP.fullmatch(name))
        if found is None:
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
        elif found["region"] and c.region and found["region"] != c.region:
            allowed = f"a {'reservation' if ONE_RESERVATION.fullmatch(name) else 'group'} of {c.region}"
            c.add(
                "reservation.region", at, name, allowed, f"machines of {found['region']} are of no use here"
            )
        elif name.rpartition("/")[2] in {other.rpartition("/")[2] for other in members[:index]}:
            c.add("reservation.twice", at, name, "each reservation once", "remove it")


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


def check_image(c: Context, image: ImageConfig) -> None:
    """Check that the cluster's image is an id or a distribution, not both. Both can be baked."""
    at = (*CLUSTER, "image")
    if image.bake and c.provider != "local" and _all_have_own(c):
        c.add(
            "image.bake-unused",
            (*at, "bake"),
            True,
            "false where every machine has an image of its own",
            "remove bake, or the `image` of those machines that are to start from a baked one",
        )
    if image.id is not None and "source" in image.model_fields_set:
        c.add(
            "image.id-and-source",
            (*at, "source"),
            image.source,
            "an id or a source, not both",
            "remove one of the two",
        )
    if c.provider == "local" and image.bake:
        c.add("image.local", (*at, "bake"), True, NO_IMAGE, "remove it")
    if image.revision is not None and not image.bake:
        c.add(
            "image.revision-unused",
            (*at, "revision"),
            image.revision,
            "a revision only with image: {bake: true}",
            "remove it: other images are not built here",
        )
    if image.id is not None:
        check_image_id(c, image.id, (*at, "id"))


def _all_have_own(c: Context) -> bool:
    """Return whether every machine has its own image. Login machines always have the cluster's."""
    cluster = c.cluster
    images = [cluster.controller.image, *(partition.image for partition in cluster.partitions)]
    return None not in images and not cluster.login.count


def check_own_image(c: Context, image: OwnImageConfig | None, at: Location) -> None:
    if image is not None:
        check_image_id(c, image.id, (*at, "id"))


def check_image_id(c: Context, image: str, at: Location) -> None:
    """Check that an image's id has the cloud's form."""
    if c.provider == "local":
        c.add("image.local", at, image, NO_IMAGE, "remove it")
        return
    pattern, example = IMAGE_IDS[c.provider]
    if not re.fullmatch(pattern, image):
        c.add("image.id", at, image, f"an image's id, like {example}")
