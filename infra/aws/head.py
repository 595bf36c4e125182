"""The machines that live as long as their cluster: the controller, and login machines if the design has
any."""

from __future__ import annotations

import pulumi
import pulumi_aws as aws

from infra.aws.addresses import AwsAddresses
from infra.aws.launch_templates import BOOT_SCRIPT, metadata
from infra.aws.role_resources import ResourcesByRole
from infra.aws.tags import BUCKET, tags
from infra.clouds.termination import behind
from node.model import ClusterDesign, Host

# A new image is an explicit act (`pulumi up --replace`). None of these may restart a head with jobs.
IGNORED = ["ami", "userData", "userDataBase64"]


class AwsHead(pulumi.ComponentResource):
    """The EC2 instances of the design's hosts, at their addresses.

    Attributes:
        machines: host -> its instance.

    Args:
        termination: What ends the nodes. It outlives the machines, also when it is replaced with its network.
        after: What a machine needs at its boot, and what must outlive it.
    """

    def __init__(
        self,
        name: str,
        design: ClusterDesign,
        resources_by_role: ResourcesByRole,
        addresses: AwsAddresses,
        termination: pulumi.Resource,
        after: list[pulumi.Resource],
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("slurm-stacks:index:AwsHead", name, None, opts)
        self._name = name
        self._design = design
        self._termination = termination
        self.machines: dict[str, aws.ec2.Instance] = {}
        for host in design.hosts:
            # A login machine mounts what the controller exports, and is deleted before it.
            first = [self.machines["controller"]] if host.role == "login" else []
            self.machines[host.name] = self._machine(
                host, resources_by_role, addresses, [termination, *after, *first]
            )
        self.register_outputs({"machines": {host: made.id for host, made in self.machines.items()}})

    def _machine(
        self,
        host: Host,
        resources_by_role: ResourcesByRole,
        addresses: AwsAddresses,
        after: list[pulumi.Resource],
    ) -> aws.ec2.Instance:
        design, resources = self._design, resources_by_role[host.role]
        label = f"{design.name}-{host.name}"
        own_tags = tags(design, label, role=host.role, host=host.name)
        return aws.ec2.Instance(
            f"{self._name}-{host.name}",
            ami=resources.start_from(host.name, host.image),
            instance_type=host.instance_type,
            key_name=design.access.key,
            iam_instance_profile=resources.profile,
            primary_network_interface=aws.ec2.InstancePrimaryNetworkInterfaceArgs(
                network_interface_id=behind(self._termination, addresses.interfaces[host.name])
            ),
            metadata_options=aws.ec2.InstanceMetadataOptionsArgs(**metadata(host)),
            root_block_device=aws.ec2.InstanceRootBlockDeviceArgs(
                volume_size=host.disk_gib,
                volume_type="gp3",
                iops=host.gp3.iops if host.gp3 else None,
                throughput=host.gp3.throughput if host.gp3 else None,
                encrypted=True,
                kms_key_id=design.kms_key,
                delete_on_termination=True,
                tags=own_tags,
            ),
            user_data=pulumi.Output.from_input(resources.bucket).apply(
                lambda bucket: BOOT_SCRIPT.render(design, bucket, host.role, host.name)
            ),
            user_data_replace_on_change=False,
            instance_initiated_shutdown_behavior="stop",
            tags={**own_tags, BUCKET: resources.bucket},
            opts=pulumi.ResourceOptions(
                parent=self,
                depends_on=after,
                ignore_changes=IGNORED,
                # An address has one machine at a time.
                delete_before_replace=True,
            ),
        )
