"""The machines that live as long as their cluster: the controller, and login machines if there are any."""

from __future__ import annotations

import pulumi
import pulumi_aws as aws

from infra.aws import userdata
from infra.aws.fleets import METADATA
from infra.aws.parts import Stations
from infra.aws.seats import AwsSeats
from infra.aws.tags import BUCKET, tags
from infra.node.model import ClusterDesign, Host

# A new image is an explicit act (`pulumi up --replace`), and neither may restart a head with jobs.
IGNORED = ["ami", "userData", "userDataBase64"]


class AwsHead(pulumi.ComponentResource):
    """EC2 instances of the design's hosts, in their seats.

    Attributes:
        machines: host -> its instance.

    Args:
        after: what a machine needs at its boot, and what must outlive it.
    """

    def __init__(
        self,
        name: str,
        design: ClusterDesign,
        stations: Stations,
        seats: AwsSeats,
        after: list[pulumi.Resource],
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("slurm-stacks:index:AwsHead", name, None, opts)
        self._name = name
        self._design = design
        self.machines: dict[str, aws.ec2.Instance] = {}
        for host in design.hosts:
            # Login machines find the controller's exports, and go before it.
            first = [self.machines["controller"]] if host.role == "login" else []
            self.machines[host.name] = self._machine(host, stations, seats, [*after, *first])
        self.register_outputs({"machines": {host: made.id for host, made in self.machines.items()}})

    def _machine(
        self, host: Host, stations: Stations, seats: AwsSeats, after: list[pulumi.Resource]
    ) -> aws.ec2.Instance:
        design, station = self._design, stations[host.role]
        label = f"{design.name}-{host.name}"
        labels = tags(design, label, role=host.role, host=host.name)
        return aws.ec2.Instance(
            f"{self._name}-{host.name}",
            ami=station.start_from(host.name, host.image),
            instance_type=host.machine,
            key_name=design.access.key,
            iam_instance_profile=station.profile,
            primary_network_interface=aws.ec2.InstancePrimaryNetworkInterfaceArgs(
                network_interface_id=seats.interfaces[host.name]
            ),
            metadata_options=aws.ec2.InstanceMetadataOptionsArgs(**METADATA),
            root_block_device=aws.ec2.InstanceRootBlockDeviceArgs(
                volume_size=host.disk_gib,
                volume_type="gp3",
                encrypted=True,
                kms_key_id=design.kms_key,
                delete_on_termination=True,
                tags=labels,
            ),
            user_data=pulumi.Output.from_input(station.bucket).apply(
                lambda bucket: userdata.render(design, bucket, host.role, host.name)
            ),
            user_data_replace_on_change=False,
            instance_initiated_shutdown_behavior="stop",
            tags={**labels, BUCKET: station.bucket},
            opts=pulumi.ResourceOptions(
                parent=self,
                depends_on=after,
                ignore_changes=IGNORED,
                # A seat has one machine at a time.
                delete_before_replace=True,
            ),
        )
