"""The cluster's network on Google Cloud: one of its own, or an existing one, and who may reach whom in it."""

from __future__ import annotations

from collections.abc import Collection

import pulumi
from pulumi_gcp import compute

from infra.gcp import layout, security, service_accounts
from infra.node.model import ClusterDesign

PORTS = 64
"""Of the NAT's addresses, for each machine: the least, of which more are given to who needs them."""
MOST_PORTS = 4096


class GcpNetwork(pulumi.ComponentResource):
    """A subnetwork of the region, Cloud NAT, and the firewall's rules.

    Of an existing network (`network.gcp`) only the rules are made: its subnetworks and its way out are its
    owner's. Neither networks nor subnetworks nor rules take labels; their names begin with the cluster's.

    Attributes:
        network: its self link, or `projects/…/global/networks/…` of an existing one.
        name: the network's short name.
        subnetwork: likewise; every machine is in it.
        routes: what must be there before a machine reaches anything, or is reached.

    Args:
        accounts: those that the rules name. Google wants them made before a rule relies on them.
    """

    def __init__(
        self,
        name: str,
        design: ClusterDesign,
        accounts: Collection[pulumi.Resource],
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("slurm-stacks:index:GcpNetwork", name, None, opts)
        self._name = name
        self._accounts = list(accounts)
        self._design = design
        self.network: pulumi.Output[str]
        self.name: pulumi.Output[str]
        self.subnetwork: pulumi.Output[str]
        self.routes: list[pulumi.Resource] = []
        if design.network.vpc is not None:
            self._use_existing(design.network.vpc)
        else:
            self._make()
        self.routes += [self._open(opening) for opening in security.openings(design)]
        self.register_outputs({"network": self.network, "subnetwork": self.subnetwork})

    def _use_existing(self, network: str) -> None:
        design = self._design
        (subnetwork,) = design.network.private_subnets
        project = f"projects/{design.project}"
        self.name = pulumi.Output.from_input(network)
        self.network = pulumi.Output.from_input(f"{project}/global/networks/{network}")
        self.subnetwork = pulumi.Output.from_input(
            f"{project}/regions/{design.region}/subnetworks/{subnetwork}"
        )

    def _make(self) -> None:
        design, name, own = self._design, self._name, pulumi.ResourceOptions(parent=self)
        network = compute.Network(
            f"{name}-vpc",
            name=design.name,
            description=f"the cluster {design.name}",
            project=design.project,
            # Else Google makes a subnetwork in every region of the world.
            auto_create_subnetworks=False,
            routing_mode="REGIONAL",
            opts=own,
        )
        subnetwork = compute.Subnetwork(
            f"{name}-subnetwork",
            name=design.name,
            description=f"machines of the cluster {design.name}",
            project=design.project,
            region=design.region,
            network=network.id,
            ip_cidr_range=layout.cidr(design),
            # What machines fetch from Cloud Storage does not pass the NAT, which costs by the byte.
            private_ip_google_access=True,
            opts=own,
        )
        self.network, self.name = network.self_link, network.name
        self.subnetwork = subnetwork.self_link
        self.routes.append(self._nat(network, subnetwork))

    def _nat(self, network: compute.Network, subnetwork: compute.Subnetwork) -> compute.RouterNat:
        """The way out of machines without a public address; nobody comes in by it."""
        design, name, own = self._design, self._name, pulumi.ResourceOptions(parent=self)
        router = compute.Router(
            f"{name}-router",
            name=design.name,
            description=f"Cloud NAT of the cluster {design.name}",
            project=design.project,
            region=design.region,
            network=network.id,
            opts=own,
        )
        return compute.RouterNat(
            f"{name}-nat",
            # Of all names this one has two letters at least, and a cluster's may have one.
            name=design.name if len(design.name) > 1 else f"{design.name}-nat",
            project=design.project,
            region=design.region,
            router=router.name,
            nat_ip_allocate_option="AUTO_ONLY",
            source_subnetwork_ip_ranges_to_nat="LIST_OF_SUBNETWORKS",
            subnetworks=[{"name": subnetwork.id, "source_ip_ranges_to_nats": ["PRIMARY_IP_RANGE"]}],
            # A fixed share of 64 is soon used up by an installer of Python packages on many cores.
            enable_dynamic_port_allocation=True,
            enable_endpoint_independent_mapping=False,
            min_ports_per_vm=PORTS,
            max_ports_per_vm=MOST_PORTS,
            opts=own,
        )

    def _open(self, opening: security.Opening) -> compute.Firewall:
        design = self._design
        return compute.Firewall(
            f"{self._name}-{opening.name}",
            name=f"{design.name}-{opening.name}",
            description=f"{opening.why}, cluster {design.name}",
            project=design.project,
            network=self.network,
            direction="INGRESS",
            source_ranges=list(opening.ranges) or None,
            source_service_accounts=None
            if opening.ranges
            else [service_accounts.email(design, opening.side)],
            target_service_accounts=[service_accounts.email(design, opening.role)],
            allows=_allowed(opening),
            opts=pulumi.ResourceOptions(parent=self, depends_on=self._accounts),
        )


def _allowed(opening: security.Opening) -> list[compute.FirewallAllowArgs]:
    of = {protocol: ports for protocol, ports in (("tcp", opening.ports), ("udp", opening.udp)) if ports}
    if not of:
        return [compute.FirewallAllowArgs(protocol="all")]
    return [
        compute.FirewallAllowArgs(
            protocol=protocol,
            ports=[str(first) if first == last else f"{first}-{last}" for first, last in ports],
        )
        for protocol, ports in of.items()
    ]
