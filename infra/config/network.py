"""The models of a cluster's network: what is made, or which existing one is used."""

from __future__ import annotations

import ipaddress
from typing import Annotated

from pydantic import Field

from infra.config.fields import (
    SUBNET,
    VPC,
    Cidr,
    Section,
    Zones,
)
from infra.effects import Kind, Outcome, effect

Net = ipaddress.IPv4Network | ipaddress.IPv6Network
DEFAULT_CIDR = "10.0.0.0/16"


MOVES = "with network.aws it changes its subnet: a new head"


WHOLE_SUBNETWORK = Outcome(Kind.NOTHING, "the subnetwork has all of network.cidr", design=())


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

    cidr: Annotated[Cidr | None, effect(clouds=Outcome(Kind.MOVED, "it is a new network"))] = Field(
        None, description="The network's addresses; 10.0.0.0/16 by default."
    )
    public_cidr: Annotated[
        Cidr | None,
        effect(
            aws=Outcome(Kind.MOVED, "to addresses that a subnet has now: not possible"), gcp=WHOLE_SUBNETWORK
        ),
    ] = Field(None, description="AWS: part for controller (its upper half) and login; chosen by default.")
    private_cidr: Annotated[
        Cidr | None,
        effect(
            aws=Outcome(
                Kind.MOVED,
                "with a Lustre file system of the cluster's own, or to addresses that a subnet has now: not "
                "possible",
            ),
            gcp=WHOLE_SUBNETWORK,
        ),
    ] = Field(None, description="AWS: part for compute nodes; chosen by default.")
    peers: Annotated[list[Cidr], effect(Kind.NOTHING, design=())] = Field(
        default_factory=list,
        description="Networks that this one is or will be connected to (VPN, peering): must not overlap.",
    )
    zones: Annotated[
        Zones,
        effect(
            aws=Outcome(
                Kind.NODES,
                "if the head's zone is removed, head, /home and /apps are recreated empty",
                design=(),
            ),
            gcp=Outcome(Kind.NODES, "the head stays in gcp:zone", design=()),
        ),
    ] = Field(
        default_factory=list,
        description="Zones for nodes, tried in this order; empty: all that fit (AWS), gcp:zone (Google "
        "Cloud).",
    )
    aws: Annotated[
        AwsNetwork | None,
        effect(
            aws=Outcome(
                Kind.MOVED,
                "another network; Lustre is recreated in another VPC, /home and /apps in another zone",
            ),
            design=("network.vpc", "network.public_subnet", "network.private_subnets"),
        ),
    ] = Field(None, description="An existing VPC.")
    gcp: Annotated[
        GcpNetwork | None,
        effect(
            gcp=Outcome(Kind.MOVED, "another network; in another VPC network Filestore is recreated"),
            design=("network.vpc", "network.private_subnets"),
        ),
    ] = Field(None, description="An existing network.")

    def whole(self) -> Net:
        """Return all of the network's addresses."""
        return ipaddress.ip_network(self.cidr or DEFAULT_CIDR)

    def subnets(self) -> tuple[Net, Net]:
        """Return the public part, for controller and login, and the private part, for nodes.

        A part that the stack file does not give is the lower or the upper half of the network.
        """
        public, private = self.whole().subnets(1)
        if self.public_cidr is not None:
            public = ipaddress.ip_network(self.public_cidr)
        if self.private_cidr is not None:
            private = ipaddress.ip_network(self.private_cidr)
        return public, private
