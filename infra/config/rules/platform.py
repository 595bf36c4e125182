"""Rules of what platform teams set: tags, security groups, network tags, and fields of nodes' templates."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from infra.config.mistakes import Location
from infra.config.overrides import BlockDeviceMapping, Ebs
from infra.config.partitions import PartitionConfig
from infra.config.rules.context import CLUSTER, Context
from node.elastic.drivers.ec2.names import NODES_TAGS

AWS_KEY = re.compile(r"[A-Za-z0-9+=._:@-]{1,128}")
"""A tag's key. EC2 allows slashes and spaces only where machines do not read their tags from the metadata
service (its user guide, "Access to tags"), and IAM allows no commas (botocore, tagKeyType)."""
AWS_VALUE = re.compile(r"[A-Za-z0-9 +=._:/@-]{0,256}")
"""A tag's value, in the characters that all services allow (botocore: TagValue)."""
AWS_VALUE_WORDS = "a value of at most 256 letters, digits, spaces and + - = . _ : / @"
NOT_IN_METADATA = (".", "..", "_index")
"""Keys that the metadata service uses for itself."""
OURS = ("Name", "slurm-stacks:cluster", "slurm-stacks:stack", "slurm-stacks:role", "slurm-stacks:partition")
"""The tags of a node, besides those with its launch's names."""
MOST_TAGS = 50 - len(OURS) - NODES_TAGS
"""AWS allows 50 on a resource, and a node has the most of ours."""
MOST_BATCH_TAGS = 50 - len(OURS)
OF_IMAGE_BUILDER = ("CreatedBy", "Ec2ImageBuilderArn", "Tags")
"""Keys that EC2 Image Builder sets itself and refuses (botocore, imagebuilder: resourceTags)."""
GOOGLE_KEY = re.compile(r"[a-z][a-z0-9_-]{0,62}")
GOOGLE_VALUE = re.compile(r"[a-z0-9_-]{0,63}")
GOOGLE_VALUE_WORDS = "a label's value: small letters, digits, _ and -, at most 63"
GOOGLE_OURS = 6
"""The most labels of a resource that are not the stack file's: five of ours, one of Pulumi's provider."""
MOST_LABELS = 64 - GOOGLE_OURS
ONE_THREAD = ("t2d",)
"""Google's series whose cores have one thread each."""


@dataclass(frozen=True, slots=True)
class VolumeType:
    """The ranges of a type of EBS's volumes (botocore, EC2: LaunchTemplateEbsBlockDeviceRequest).

    Attributes:
        gib: The least and the greatest size.
        iops: The least and the greatest number of IOPS; `None` if it takes none.
        throughput: Whether it takes a throughput.
        needs_iops: Whether it has no IOPS of its own.
    """

    gib: tuple[int, int]
    iops: tuple[int, int] | None = None
    throughput: bool = False
    needs_iops: bool = False


VOLUME_TYPES = {
    "gp2": VolumeType((1, 16_384)),
    "gp3": VolumeType((1, 65_536), (3_000, 80_000), throughput=True),
    "io1": VolumeType((4, 16_384), (100, 64_000), needs_iops=True),
    "io2": VolumeType((4, 65_536), (100, 256_000), needs_iops=True),
    "st1": VolumeType((125, 16_384)),
    "sc1": VolumeType((125, 16_384)),
    "standard": VolumeType((1, 1_024)),
}
MOST_THROUGHPUT = 2_000
"""The greatest throughput of a gp3 volume, in MiB/s."""
OF_FAMILIES = {
    "amd_sev_snp": ("m6a", "r6a", "c6a"),
    "nested_virtualization": ("c8i", "m8i", "r8i", "c8i-flex", "m8i-flex", "r8i-flex"),
}
"""CPU option -> the families that have it (botocore, EC2: LaunchTemplateCpuOptionsRequest)."""
AMD_SERIES = ("n2d", "c2d", "t2d", "c3d", "c4d", "n4d", "h4d", "g4")
BEFORE_TDX = ("n1", "n2", "e2", "c2", "m1", "m2", "a2", "g2")
"""Google's series with processors of Intel's that are older than Sapphire Rapids, the first with TDX."""
SCRIPTS = (
    "startup-script", "startup-script-url", "shutdown-script", "shutdown-script-url", "user-data",
    "enable-oslogin", "block-project-ssh-keys", "serial-port-enable", "ssh-keys",
)  # fmt: skip
"""Keys of the metadata of a machine that the cluster sets, or that would let others in."""


def check_platform(c: Context) -> None:
    if c.provider == "local":
        _local(c)
    else:
        (_aws_tags if c.provider == "aws" else _google_labels)(c)
    _groups(c)
    for at, partition in c.groups():
        if c.provider == "aws":
            _launch_template(c, partition, at)
        if c.provider == "gcp":
            _instance_template(c, partition, at)


def _local(c: Context) -> None:
    if c.cluster.tags:
        c.add(
            "tags.local",
            (*CLUSTER, "tags"),
            c.cluster.tags,
            "nothing: the local stack makes nothing that has tags",
            "remove tags:",
        )


def _aws_tags(c: Context) -> None:
    tags, at = c.cluster.tags, (*CLUSTER, "tags")
    _characters(c, tags, at)
    if c.cluster.batch is not None:
        _characters(c, c.cluster.batch.tags, (*CLUSTER, "batch", "tags"))
    for key, value in tags.items():
        if key.lower().startswith("aws:"):
            c.add("tags.reserved", (*at, key), value, "keys that do not begin with aws:", "rename it")
        if c.cluster.image.bake and key in OF_IMAGE_BUILDER:
            c.add(
                "tags.image-builder",
                (*at, key),
                value,
                f"with image: {{bake: true}} keys other than {', '.join(OF_IMAGE_BUILDER)}",
                "EC2 Image Builder sets these itself: rename it",
            )
    _own(c, "slurm-stacks:", OURS)
    # IAM compares keys of one role without regard to case.
    for first, second in _same_but_for_case(tags):
        c.add(
            "tags.case",
            (*at, second),
            tags[second],
            f"keys that differ in more than capital letters, which IAM ignores: {first}",
            "remove one of the two",
        )
    if len(tags) > MOST_TAGS:
        advice = f"AWS allows 50 on a resource, and a node has up to {50 - MOST_TAGS} of the cluster's"
        c.add("tags.too-many", at, len(tags), f"at most {MOST_TAGS} tags", advice)
    elif c.cluster.batch is not None and len(all_tags := tags | c.cluster.batch.tags) > MOST_BATCH_TAGS:
        allowed = f"at most {MOST_BATCH_TAGS} tags, together with `tags` of the cluster"
        c.add("tags.too-many", (*CLUSTER, "batch", "tags"), len(all_tags), allowed)


def _characters(c: Context, tags: Mapping[str, str], at: Location) -> None:
    for key, value in tags.items():
        if not AWS_KEY.fullmatch(key) or key in NOT_IN_METADATA:
            allowed = (
                "a key of at most 128 letters, digits and + - = . _ : @ (machines read their tags from the "
                "metadata service, which has no other)"
            )
            c.add("tags.key", (*at, key), key, allowed, _renamed(key))
        if not AWS_VALUE.fullmatch(value):
            c.add("tags.value", (*at, key), value, AWS_VALUE_WORDS)


def _google_labels(c: Context) -> None:
    tags, at = c.cluster.tags, (*CLUSTER, "tags")
    for key, value in tags.items():
        if not GOOGLE_KEY.fullmatch(key):
            allowed = "a label's key: small letters, digits, _ and -, a letter first, at most 63"
            meant = re.sub(r"[^a-z0-9_-]", "-", key.lower()).lstrip("-_0123456789")[:63]
            advice = f"write for example {meant}" if meant else "rename it"
            c.add("tags.label-key", (*at, key), key, allowed, advice)
        elif key.startswith("goog"):
            c.add("tags.reserved", (*at, key), value, "keys that do not begin with goog", "rename it")
        if not GOOGLE_VALUE.fullmatch(value):
            meant = re.sub(r"[^a-z0-9_-]", "-", value.lower())[:63]
            c.add("tags.label-value", (*at, key), value, GOOGLE_VALUE_WORDS, f'write "{meant}"')
    _own(c, "slurm-stacks-", ())
    if len(tags) > MOST_LABELS:
        advice = f"Google Cloud allows 64 on a resource, of which up to {GOOGLE_OURS} are the cluster's"
        c.add("tags.too-many", at, len(tags), f"at most {MOST_LABELS} labels", advice)


def _own(c: Context, prefix: str, names: tuple[str, ...]) -> None:
    """Refuse the tags by which `down` and the elastic daemon find the cluster's machines."""
    lower = [name.lower() for name in names]
    for key, value in c.cluster.tags.items():
        if key.lower().startswith(prefix) or key.lower() in lower:
            c.add(
                "tags.ours",
                (*CLUSTER, "tags", key),
                value,
                f"keys other than {' and '.join([*(n for n in names[:1]), f'{prefix}…'])}, which the cluster "
                "sets itself",
                "by these `down` finds what to end: rename it",
            )


def _same_but_for_case(tags: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    seen: dict[str, str] = {}
    for key in tags:
        if (first := seen.setdefault(key.lower(), key)) != key:
            yield first, key


def _renamed(key: str) -> str:
    meant = re.sub(r"[^A-Za-z0-9_:.=+@-]", "-", key).strip("-")
    return f"write for example {meant}" if meant and meant not in (key, "_index") else "rename it"


def _groups(c: Context) -> None:
    """Check that security groups are on AWS, in an existing VPC, and network tags on Google Cloud."""
    groups: list[tuple[str, Location, list[str]]] = []
    for name in ("controller", "login"):
        machine = getattr(c.cluster, name)
        groups += [(key, (*CLUSTER, name, key), getattr(machine, key)) for key in _CLOUD_OF]
    for where, partition in c.groups():
        if partition.aws is not None and c.provider == "aws":
            at = (*where, "aws", "security_groups")
            groups.append(("security_groups", at, partition.aws.security_groups))
    if c.cluster.batch is not None:
        groups.append(
            ("security_groups", (*CLUSTER, "batch", "security_groups"), c.cluster.batch.security_groups)
        )
    network = c.cluster.network.aws
    for key, at, values in groups:
        if not values:
            continue
        if c.provider != _CLOUD_OF[key]:
            cloud = {"aws": "AWS", "gcp": "Google Cloud"}[_CLOUD_OF[key]]
            c.add("groups.provider", at, values, f"nothing: only {cloud} has them", f"remove {key}")
        elif key == "security_groups" and (network is None or network.vpc is None):
            c.add(
                "groups.own-vpc",
                at,
                values,
                "security groups only with an existing VPC, to which groups belong",
                "give network: {aws: {vpc: …}} with the groups' VPC, or remove it",
            )


_CLOUD_OF = {"security_groups": "aws", "network_tags": "gcp"}


def _launch_template(c: Context, partition: PartitionConfig, at: Location) -> None:
    overrides = partition.aws.launch_template_overrides if partition.aws is not None else None
    if overrides is None:
        return
    where, machine = (*at, "aws", "launch_template_overrides"), c.instance_type(partition.instance_type)
    for number, mapping in enumerate(overrides.block_device_mappings):
        _volume(c, mapping, (*where, "block_device_mappings", number))
    options = overrides.cpu_options
    if options is not None and (options.core_count is None) != (options.threads_per_core is None):
        c.add(
            "override.cpu-options",
            (*where, "cpu_options"),
            options.model_dump(exclude_none=True),
            "core_count and threads_per_core together, as EC2 takes them",
        )
    cpus = overrides.cpus()
    if cpus is not None and machine is not None and cpus > machine.vcpus:
        allowed = f"at most {machine.vcpus} CPUs on {partition.instance_type}"
        c.add("override.cpus", (*where, "cpu_options"), cpus, allowed, "lower core_count")
    family = partition.instance_type.partition(".")[0]
    for key, families in OF_FAMILIES.items():
        if options is not None and getattr(options, key) == "enabled" and family not in families:
            c.add(
                "override.cpu-family",
                (*where, "cpu_options", key),
                "enabled",
                f"a machine of the families {', '.join(families)}",
                f"{partition.instance_type} does not have it: remove it",
            )
    if overrides.instance_market_options is not None and not partition.spot:
        c.add(
            "override.not-spot",
            (*where, "instance_market_options"),
            overrides.instance_market_options.model_dump(),
            "a price of spot capacity only with spot: true",
            "write spot: true, or remove it",
        )


def _volume(c: Context, mapping: BlockDeviceMapping, at: Location) -> None:
    kinds = [mapping.ebs, mapping.no_device, mapping.virtual_name]
    if sum(kind is not None for kind in kinds) != 1:
        c.add("override.device", at, mapping.device_name, "one of ebs, no_device and virtual_name")
    if mapping.ebs is not None:
        _ebs(c, mapping.ebs, (*at, "ebs"))


def _ebs(c: Context, volume: Ebs, at: Location) -> None:
    """Refuse what EC2 refuses of a volume at the launch only: the template is made, and no node starts."""
    if volume.volume_size is None and volume.snapshot_id is None:
        c.add("override.volume-size", at, "nothing", "a volume_size in GiB, or a snapshot_id")
    kind, limits = volume.volume_type, VOLUME_TYPES[volume.volume_type]
    if limits.needs_iops and volume.iops is None:
        c.add(
            "override.volume-iops", (*at, "volume_type"), kind, f"{kind} with iops", "give iops, or take gp3"
        )
    for key, value, allowed in (
        ("volume_size", volume.volume_size, limits.gib),
        ("iops", volume.iops, limits.iops),
        ("throughput", volume.throughput, (125, MOST_THROUGHPUT) if limits.throughput else None),
    ):
        if value is None or (allowed is not None and allowed[0] <= value <= allowed[1]):
            continue
        words = (
            f"{allowed[0]} to {allowed[1]} with volume_type {kind}" if allowed else f"no {key} with {kind}"
        )
        c.add("override.volume-range", (*at, key), value, words, "change it, or take another volume_type")
    if volume.volume_initialization_rate is not None and volume.snapshot_id is None:
        c.add(
            "override.volume-rate",
            (*at, "volume_initialization_rate"),
            volume.volume_initialization_rate,
            "a rate only for a volume that is made from a snapshot",
            "give snapshot_id, or remove it",
        )


def _instance_template(c: Context, partition: PartitionConfig, at: Location) -> None:
    overrides = partition.gcp.instance_template_overrides if partition.gcp is not None else None
    if overrides is None:
        return
    where, machine = (*at, "gcp", "instance_template_overrides"), c.instance_type(partition.instance_type)
    for key, value in overrides.metadata.items():
        if key in SCRIPTS or key.startswith("slurm-stacks-"):
            c.add(
                "override.metadata",
                (*where, "metadata", key),
                value,
                "keys that the cluster does not set itself",
                "hooks run your scripts, and OS Login knows the users' keys",
            )
    for key in overrides.resource_manager_tags:
        if not re.fullmatch(r"tagKeys/[0-9]+", key):
            allowed = "the id of a tag's key in Resource Manager, tagKeys/…"
            c.add("override.resource-tag", (*where, "resource_manager_tags", key), key, allowed)
    series = partition.instance_type.partition("-")[0]
    confidential = overrides.confidential_instance_config
    if confidential is not None and confidential.is_on:
        # Without a type Compute Engine takes SEV.
        kind = confidential.confidential_instance_type or "SEV"
        without = series in (*AMD_SERIES, *BEFORE_TDX) if kind == "TDX" else series not in AMD_SERIES
        if without:
            c.add(
                "override.confidential",
                (*where, "confidential_instance_config", "confidential_instance_type"),
                kind,
                "TDX on newer processors of Intel's (c3, a3); SEV and SEV_SNP on AMD's (n2d, c2d, c3d)",
                f"{partition.instance_type} does not have it: take another machine type",
            )
    features = overrides.advanced_machine_features
    if features is None or machine is None:
        return
    if series in ONE_THREAD and features.threads_per_core is not None:
        c.add(
            "override.one-thread",
            (*where, "advanced_machine_features", "threads_per_core"),
            features.threads_per_core,
            f"nothing on {series.upper()} machines, whose cores have one thread",
            "remove it",
        )
    cpus = overrides.cpus(machine.vcpus)
    if cpus is not None and cpus > machine.vcpus:
        allowed = f"at most {machine.vcpus} CPUs on {partition.instance_type}"
        where = (*where, "advanced_machine_features")
        c.add("override.cpus", where, cpus, allowed, "lower visible_core_count")
