"""What machines start from: their image, their metadata, and one launch template for each partition.

A template has all that the elastic driver does not say when it launches nodes, reserved capacity included.
`infra.aws.cluster` fills `AwsRoleResources` from the other components, so that the head and the templates can
be tested without them.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pulumi
import pulumi_aws as aws

from infra import bundle
from infra.aws.tags import reservation_group, tags
from infra.clouds.cluster import RoleResources
from infra.clouds.userdata import BootScript
from infra.config import distributions
from node.design.model import ClusterDesign, Host, Image, Partition

METADATA: dict[str, Any] = {
    "http_endpoint": "enabled",
    "http_tokens": "required",
    "http_put_response_hop_limit": 1,
    # A machine reads its cluster, its role and its number in the launch there, without a call to AWS.
    "instance_metadata_tags": "enabled",
}
"""The metadata options of a machine: only its own processes reach its role's credentials."""
OPEN_HOPS = 2
"""The hop limit of machines whose metadata address is open to every user: a container with a network of its
own, such as Docker makes it, is one hop further."""
BOOT_SCRIPT = BootScript(start=bundle.ROOT / "node" / "aws" / "run_loader.py", limit=16 * 1024)
"""The user data of every machine. EC2's limit is in bytes, before base64."""
ONE_EACH = 2
"""The number of EFA cards with which each card has one interface only."""
TAGGED = ("instance", "volume", "network-interface")
RESERVATION_POOL = "AWS::EC2::CapacityReservationPool"
"""Makes a group one that launches can target."""
GENERIC, MEMBERS, MEMBER = (
    "AWS::ResourceGroups::Generic",
    "allowed-resource-types",
    "AWS::EC2::CapacityReservation",
)
"""Makes a group one that takes capacity reservations only (EC2 user guide, "Create a group")."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AwsRoleResources(RoleResources):
    """The resources that the machines of a role share.

    Attributes:
        profile: The instance profile's name.
        group: The security group's id.
        subnet: The subnet of machines of the head. Nodes are launched in any of the private subnets.
    """

    profile: pulumi.Input[str]
    group: pulumi.Input[str]
    subnet: pulumi.Input[str] | None = None


ResourcesByRole = Mapping[str, AwsRoleResources]
"""controller | login | compute | image -> its resources."""


@dataclass(frozen=True, slots=True)
class ImageBuild:
    """The resources of the machines that become images.

    Attributes:
        profile: The instance profile's name.
        group: The security group's id.
        subnet: The id of a private subnet.
        bucket: The bucket's name.
        parent: The id of the image that the machines start from.
    """

    profile: pulumi.Input[str]
    group: pulumi.Input[str]
    subnet: pulumi.Input[str]
    bucket: pulumi.Input[str]
    parent: pulumi.Input[str]


@dataclass(frozen=True, slots=True)
class TemplateOverrides:
    """The fields of a launch template that the stack file gives a partition (`infra.config.overrides`).

    Attributes:
        fields: Fields that the cluster does not set.
        placement: Fields beside the placement group's.
        volumes: Volumes beside the root disk.
        max_price: The most USD an hour for spot capacity.
    """

    fields: dict[str, Any]
    placement: dict[str, Any]
    volumes: list[aws.ec2.LaunchTemplateBlockDeviceMappingArgs]
    max_price: str | None

    @classmethod
    def of(cls, partition: Partition) -> TemplateOverrides:
        """Return the overrides of a partition."""
        fields = partition.overrides()
        if partition.threads_per_core is not None:
            # EC2 takes both numbers, or none (botocore, EC2: LaunchTemplateCpuOptionsRequest).
            ours = {"core_count": partition.cpus, "threads_per_core": partition.threads_per_core}
            fields["cpu_options"] = {**ours, **fields.get("cpu_options", {})}
        volumes = fields.pop("block_device_mappings", [])
        market = fields.pop("instance_market_options", {})
        placement = fields.pop("placement", {})
        return cls(
            {key: _as_text(value) if key in TEXTS else value for key, value in fields.items()},
            placement,
            [_volume(volume) for volume in volumes],
            market.get("spot_options", {}).get("max_price"),
        )


TEXTS = ("ebs_optimized",)
"""Fields of a template that Pulumi's SDK takes as "true" and "false"."""


def _as_text(value: bool) -> str:
    return str(value).lower()


def _volume(mapping: dict[str, Any]) -> aws.ec2.LaunchTemplateBlockDeviceMappingArgs:
    ebs = dict(mapping.get("ebs", {}))
    for key in ("delete_on_termination", "encrypted"):
        if key in ebs:
            ebs[key] = _as_text(ebs[key])
    return aws.ec2.LaunchTemplateBlockDeviceMappingArgs(
        device_name=mapping["device_name"],
        ebs=aws.ec2.LaunchTemplateBlockDeviceMappingEbsArgs(**ebs) if ebs else None,
        no_device=mapping.get("no_device"),
        virtual_name=mapping.get("virtual_name"),
    )


def groups_of_nodes(design: ClusterDesign) -> list[str]:
    """Return the security groups that the stack file gives nodes, each once."""
    return list(dict.fromkeys(group for p in design.partitions for group in p.aws.security_groups))


def image_id(image: Image, opts: pulumi.InvokeOptions | None = None) -> pulumi.Input[str]:
    """Return the cluster's image, or the image from which baked images are built.

    The parameter is read at each `up`. New nodes get the newest image, and the head ignores the change.
    """
    if image.id is not None:
        return image.id
    name = distributions.of(image.source).aws.parameter
    # `value` would be a secret, and so would every launch template with it.
    return aws.ssm.get_parameter_output(name=name, opts=opts).insecure_value


def root_device(
    image: Image, own_image: str | None = None, opts: pulumi.InvokeOptions | None = None
) -> pulumi.Input[str]:
    """Return the name of the root disk in an image.

    Under a wrong name a node would get a second disk, and its root disk would keep the size and the lack of
    encryption that the image's maker gave it.

    Args:
        image: The cluster's image.
        own_image: The id of the machine's own image, which wins over the cluster's.
    """
    if (identity := own_image or image.id) is None:
        return distributions.of(image.source).aws.root_device
    filters = [aws.ec2.GetAmiFilterArgs(name="image-id", values=[identity])]
    return aws.ec2.get_ami_output(filters=filters, opts=opts).root_device_name


class AwsLaunchTemplates(pulumi.ComponentResource):
    """The launch templates of nodes. The nodes themselves are not resources of the stack.

    A template names no subnet, because the driver tries one zone after another. It names no host either: all
    instances of one launch are alike, and each finds its name by its number in the launch.

    Attributes:
        templates: partition -> the id of its launch template. The driver launches the default version, which
            is always the newest.

    Args:
        resources: The resources of compute machines.
    """

    def __init__(
        self,
        name: str,
        design: ClusterDesign,
        resources: AwsRoleResources,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("slurm-stacks:index:AwsLaunchTemplates", name, None, opts)
        self._name = name
        self._design = design
        self._user_data = pulumi.Output.from_input(resources.bucket).apply(
            lambda bucket: _base64(BOOT_SCRIPT.render(design, bucket, "compute"))
        )
        self.templates: dict[str, pulumi.Output[str]] = {
            partition.name: self._template(partition, resources).id for partition in design.partitions
        }
        self.register_outputs({"templates": self.templates})

    def _template(self, partition: Partition, resources: AwsRoleResources) -> aws.ec2.LaunchTemplate:
        design, resource = self._design, f"{self._name}-{partition.name}"
        own_tags = tags(design, f"{design.name}-{partition.name}", role="compute", partition=partition.name)
        overrides = TemplateOverrides.of(partition)
        return aws.ec2.LaunchTemplate(
            resource,
            name=f"{design.name}-{partition.name}",
            description=f"nodes of partition {partition.label}, cluster {design.name}",
            update_default_version=True,
            image_id=resources.start_from(partition.name, partition.image),
            instance_type=partition.instance_type,
            key_name=design.access.key,
            user_data=self._user_data,
            iam_instance_profile=aws.ec2.LaunchTemplateIamInstanceProfileArgs(name=resources.profile),
            metadata_options=aws.ec2.LaunchTemplateMetadataOptionsArgs(**metadata(partition)),
            instance_initiated_shutdown_behavior="terminate",
            block_device_mappings=[
                aws.ec2.LaunchTemplateBlockDeviceMappingArgs(
                    device_name=root_device(design.image, partition.image, pulumi.InvokeOptions(parent=self)),
                    ebs=aws.ec2.LaunchTemplateBlockDeviceMappingEbsArgs(
                        volume_size=partition.disk_gib,
                        volume_type="gp3",
                        iops=partition.aws.gp3.iops if partition.aws.gp3 else None,
                        throughput=partition.aws.gp3.throughput if partition.aws.gp3 else None,
                        encrypted="true",
                        kms_key_id=design.aws.kms_key,
                        delete_on_termination="true",
                    ),
                ),
                *overrides.volumes,
            ],
            network_interfaces=[
                aws.ec2.LaunchTemplateNetworkInterfaceArgs(
                    **interface, security_groups=[resources.group, *partition.aws.security_groups]
                )
                for interface in interfaces(partition.aws.efa, public=not design.aws.nat)
            ],
            placement=self._placement(partition, overrides),
            instance_market_options=_market(partition, overrides),
            capacity_reservation_specification=reservation_specification(
                f"{resource}-reserved", design, partition, self
            ),
            tag_specifications=[
                aws.ec2.LaunchTemplateTagSpecificationArgs(resource_type=kind, tags=own_tags)
                for kind in TAGGED
            ],
            tags=own_tags,
            **overrides.fields,
            opts=pulumi.ResourceOptions(parent=self),
        )

    def _placement(
        self, partition: Partition, overrides: TemplateOverrides
    ) -> aws.ec2.LaunchTemplatePlacementArgs | None:
        """Return the placement group of a partition whose nodes are close together, and its hosts.

        The group is the partition's own, or an existing one.
        """
        if partition.placement != "cluster":
            return aws.ec2.LaunchTemplatePlacementArgs(**overrides.placement) if overrides.placement else None
        if partition.aws.placement_group is not None:
            return aws.ec2.LaunchTemplatePlacementArgs(
                group_name=partition.aws.placement_group, **overrides.placement
            )
        design = self._design
        group = aws.ec2.PlacementGroup(
            f"{self._name}-{partition.name}-placement-group",
            name=f"{design.name}-{partition.name}",
            strategy="cluster",
            tags=tags(design, f"{design.name}-{partition.name}", partition=partition.name),
            opts=pulumi.ResourceOptions(parent=self),
        )
        return aws.ec2.LaunchTemplatePlacementArgs(group_name=group.name, **overrides.placement)


def metadata(machine: Partition | Host) -> dict[str, Any]:
    """Return the metadata options of a partition's nodes or of a host."""
    return {**METADATA, "http_put_response_hop_limit": OPEN_HOPS} if machine.open_metadata else METADATA


def interfaces(efa: int, *, public: bool = False) -> list[dict[str, Any]]:
    """Return the network interfaces of a machine, without security groups and subnets.

    With one network card, an EFA interface is an ordinary interface with the fabric beside it. With several,
    AWS's layout is one ordinary interface, and on each card one interface for the fabric alone, which takes
    no address (EC2 guide, efa-acc-inst-types). With two cards each has one interface, and the first is both,
    because there are cards that take no more (DescribeInstanceTypes: hpc6id).

    Args:
        efa: The number of EFA interfaces.
        public: Whether the machine gets a public address, as it needs where there is no NAT gateway.
    """
    first: dict[str, Any] = {
        "device_index": 0,
        "network_card_index": 0,
        "delete_on_termination": "true",
    }
    if efa <= 1:
        kind = {"interface_type": "efa"} if efa else {}
        return [{**first, **kind, "associate_public_ip_address": "true" if public else "false"}]
    # With several interfaces EC2 gives no public address, and refuses any setting about one.
    fabric = [
        {**first, "interface_type": "efa-only", "network_card_index": card, "device_index": int(card == 0)}
        for card in range(efa)
    ]
    if efa == ONE_EACH:
        return [{**first, "interface_type": "efa"}, *fabric[1:]]
    return [{**first, "interface_type": "interface"}, *fabric]


def _market(
    partition: Partition, overrides: TemplateOverrides
) -> aws.ec2.LaunchTemplateInstanceMarketOptionsArgs | None:
    if partition.aws.capacity_block:
        # EC2 refuses a launch into a capacity block without this market type (botocore, ec2: MarketType).
        return aws.ec2.LaunchTemplateInstanceMarketOptionsArgs(market_type="capacity-block")
    if not partition.spot:
        return None
    return aws.ec2.LaunchTemplateInstanceMarketOptionsArgs(
        market_type="spot",
        spot_options=aws.ec2.LaunchTemplateInstanceMarketOptionsSpotOptionsArgs(
            # A persistent request would start interrupted nodes again without Slurm knowing.
            spot_instance_type="one-time",
            instance_interruption_behavior="terminate",
            max_price=overrides.max_price,
        ),
    )


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def reservation_specification(
    name: str, design: ClusterDesign, partition: Partition, parent: pulumi.Resource
) -> aws.ec2.LaunchTemplateCapacityReservationSpecificationArgs | None:
    """Limit a partition to its reserved capacity.

    With a looser preference a node would start on demand, without notice, when the reservation is full.

    Several reservations become a group of the stack's own, because a launch names one reservation or one
    group.

    Args:
        name: The beginning of the names of the group and its members in the stack.
    """
    group: pulumi.Input[str] | None = None
    if partition.reservations:
        group = _reservation_group(name, design, partition, parent)
    elif partition.reservation is None:
        return None
    elif partition.reservation.startswith("arn:"):
        group = partition.reservation
    return aws.ec2.LaunchTemplateCapacityReservationSpecificationArgs(
        capacity_reservation_preference="capacity-reservations-only",
        capacity_reservation_target=aws.ec2.LaunchTemplateCapacityReservationSpecificationCapacityReservationTargetArgs(
            capacity_reservation_id=partition.reservation if group is None else None,
            capacity_reservation_resource_group_arn=group,
        ),
    )


def _reservation_group(
    name: str, design: ClusterDesign, partition: Partition, parent: pulumi.Resource
) -> pulumi.Output[str]:
    """Return the ARN of the group of a partition's reservations."""
    opts, invoke = pulumi.ResourceOptions(parent=parent), pulumi.InvokeOptions(parent=parent)
    group = aws.resourcegroups.Group(
        name,
        name=reservation_group(design.name, partition.name),
        description=f"reserved capacity of partition {partition.label} in cluster {design.name}",
        configurations=[
            aws.resourcegroups.GroupConfigurationArgs(type=RESERVATION_POOL),
            aws.resourcegroups.GroupConfigurationArgs(
                type=GENERIC,
                parameters=[
                    aws.resourcegroups.GroupConfigurationParameterArgs(name=MEMBERS, values=[MEMBER])
                ],
            ),
        ],
        tags=tags(design, reservation_group(design.name, partition.name), partition=partition.name),
        opts=opts,
    )
    place = pulumi.Output.concat(
        "arn:",
        aws.get_partition_output(opts=invoke).partition,
        f":ec2:{design.region}:",
        aws.get_caller_identity_output(opts=invoke).account_id,
    )
    for reservation in partition.reservations:
        identity = reservation.rpartition("/")[2]
        shared = reservation.startswith("arn:")
        aws.resourcegroups.Resource(
            f"{name}-{identity}",
            group_arn=group.arn,
            resource_arn=reservation
            if shared
            else pulumi.Output.concat(place, f":capacity-reservation/{identity}"),
            opts=opts,
        )
    return group.arn
