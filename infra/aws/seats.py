"""The addresses of the machines that live as long as their cluster, apart from the machines.

They are there before any machine is, so that the settings can name the controller's; and a machine that is
replaced finds its own again, so that neither nodes nor users have to learn another one.
"""

from __future__ import annotations

from collections.abc import Sequence

import pulumi
import pulumi_aws as aws

from infra.aws.parts import Stations
from infra.aws.tags import tags
from infra.node.model import ClusterDesign


class AwsSeats(pulumi.ComponentResource):
    """A network interface for each host, and a public address for those that shall have one.

    Attributes:
        interfaces: host -> the network interface's id.
        private: host -> its private address.
        public: host -> its public address, for hosts tagged `public` (access.mode ssh) only. Without a NAT
            gateway the others have one as well, for their way out, and nobody is told.

    Args:
        routes: the way out. A public address needs the internet gateway, which cannot go while there is one.
    """

    def __init__(
        self,
        name: str,
        design: ClusterDesign,
        stations: Stations,
        routes: Sequence[pulumi.Resource] = (),
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("slurm-stacks:index:AwsSeats", name, None, opts)
        own = pulumi.ResourceOptions(parent=self)
        self.interfaces: dict[str, pulumi.Output[str]] = {}
        self.private: dict[str, pulumi.Output[str]] = {}
        self.public: dict[str, pulumi.Output[str]] = {}
        for host in design.hosts:
            station, labels = stations[host.role], tags(design, f"{design.name}-{host.name}", host=host.name)
            interface = aws.ec2.NetworkInterface(
                f"{name}-{host.name}",
                description=f"{host.name} of cluster {design.name}",
                subnet_id=station.subnet,
                security_groups=[station.group],
                tags=labels,
                opts=own,
            )
            self.interfaces[host.name] = interface.id
            self.private[host.name] = interface.private_ip
            if "public" in host.tags or not design.network.nat:
                address = aws.ec2.Eip(
                    f"{name}-{host.name}-public",
                    domain="vpc",
                    network_interface=interface.id,
                    tags=labels,
                    opts=pulumi.ResourceOptions(parent=self, depends_on=list(routes)),
                )
                if "public" in host.tags:
                    self.public[host.name] = address.public_ip
        self.register_outputs({"private": self.private, "public": self.public})
