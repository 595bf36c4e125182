"""The cluster's network in a stack file, and which addresses it has where the file does not say."""

from __future__ import annotations

import ipaddress
from typing import Annotated

from pydantic import Field

from infra.config.fields import SUBNET, VPC, Cidr, Section

Net = ipaddress.IPv4Network | ipaddress.IPv6Network
DEFAULT_CIDR = "10.0.0.0/16"
Zones = Annotated[list[str], Field(description="Zones, tried in this order.")]


class AwsNetwork(Section):
    """An existing VPC."""

    vpc: str | None = Field(None, pattern=VPC, description="Id of an existing VPC.")
    public_subnet: str | None = Field(
        None,
        pattern=SUBNET,
        description="Its public subnet, for the controller and login.",
    )
    private_subnets: list[Annotated[str, Field(pattern=SUBNET)]] = Field(
        default_factory=list, description="Its private subnets, for compute nodes."
    )


class GcpNetwork(Section):
    """An existing network."""

    network: str | None = Field(None, description="Name of an existing VPC network of the project.")
    subnetwork: str | None = Field(
        None, description="Name of its subnetwork in the region, with private Google access and Cloud NAT."
    )


class NetworkConfig(Section):
    """The cluster's own network, or an existing one under `aws` or `gcp`."""

    cidr: Cidr | None = Field(None, description="The network's addresses; 10.0.0.0/16 by default.")
    public_cidr: Cidr | None = Field(
        None, description="AWS: part for controller and login; chosen by default."
    )
    private_cidr: Cidr | None = Field(None, description="AWS: part for compute nodes; chosen by default.")
    peers: list[Cidr] = Field(
        default_factory=list,
        description="Networks that this one is or will be connected to (VPN, peering): must not overlap.",
    )
    zones: Zones = Field(
        default_factory=list,
        description="Zones for nodes, tried in this order; empty: all that fit (AWS), gcp:zone (Google "
        "Cloud).",
    )
    aws: AwsNetwork | None = Field(None, description="An existing VPC.")
    gcp: GcpNetwork | None = Field(None, description="An existing network.")

    def whole(self) -> Net:
        """All of the network's addresses."""
        return ipaddress.ip_network(self.cidr or DEFAULT_CIDR)

    def subnets(self) -> tuple[Net, Net]:
        """The public part, for controller and login, and the private part, for nodes.

        A part that the stack file does not give is the lower or the upper half of the network.
        """
        public, private = self.whole().subnets(1)
        if self.public_cidr is not None:
            public = ipaddress.ip_network(self.public_cidr)
        if self.private_cidr is not None:
            private = ipaddress.ip_network(self.private_cidr)
        return public, private
