"""The addresses of the machines that live as long as their cluster. They are apart from the machines.

They exist before any machine does, so that the settings can name the controller's address. A machine that is
replaced gets its address back, so that neither nodes nor users have to learn another one.
"""

from __future__ import annotations

from collections.abc import Sequence

import pulumi
import pulumi_aws as aws

from infra.aws.role_resources import ResourcesByRole
from infra.aws.tags import tags
from node.model import ClusterDesign


class AwsAddresses(pulumi.ComponentResource):
    """A network interface for each host, and a public address for the hosts that need one.

    Attributes:
        interfaces: host -> the id of its network interface.
        private: host -> its private address.
        public: host -> its public address, only for hosts tagged `public` (access.mode ssh). Without a NAT
            gateway the other hosts have one as well, for outgoing traffic, which is not listed here.

    Args:
        routes: The routes to the internet. A public address needs the internet gateway, which cannot be
            deleted while the address exists.
    """

    def __init__(
        self,
        name: str,
        design: ClusterDesign,
        resources_by_role: ResourcesByRole,
        routes: Sequence[pulumi.Resource] = (),
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("slurm-stacks:index:AwsAddresses", name, None, opts)
        own = pulumi.ResourceOptions(parent=self)
        self.interfaces: dict[str, pulumi.Output[str]] = {}
        self.private: dict[str, pulumi.Output[str]] = {}
        self.public: dict[str, pulumi.Output[str]] = {}
        for host in design.hosts:
            resources = resources_by_role[host.role]
            own_tags = tags(design, f"{design.name}-{host.name}", host=host.name)
            interface = aws.ec2.NetworkInterface(
                f"{name}-{host.name}",
                description=f"{host.name} of cluster {design.name}",
                subnet_id=resources.subnet,
                security_groups=[resources.group],
                tags=own_tags,
                opts=own,
            )
            self.interfaces[host.name] = interface.id
            self.private[host.name] = interface.private_ip
            if "public" in host.tags or not design.network.nat:
                address = aws.ec2.Eip(
                    f"{name}-{host.name}-public",
                    domain="vpc",
                    network_interface=interface.id,
                    tags=own_tags,
                    opts=pulumi.ResourceOptions(parent=self, depends_on=list(routes)),
                )
                if "public" in host.tags:
                    self.public[host.name] = address.public_ip
        self.register_outputs({"private": self.private, "public": self.public})
