"""The cluster's network on Google Cloud: one of its own, or an existing one, and who may reach whom in
it."""

from __future__ import annotations

from collections.abc import Collection

import pulumi
from pulumi_gcp import compute

from infra.gcp import security
from infra.gcp.names import account_email
from node.model import ClusterDesign

RESERVED_ADDRESSES = 4
"""How many addresses of a subnetwork Google keeps for itself."""
PORTS = 64
"""The fewest ports of the NAT's addresses for each machine. A machine that needs more gets more."""
MOST_PORTS = 4096


class GcpNetwork(pulumi.ComponentResource):
    """A subnetwork of the region, Cloud NAT, and the firewall's rules.

    In an existing network (`network.gcp`) only the rules are made: the subnetworks and the route to the
    internet are the owner's. Networks, subnetworks and rules take no labels. Their names begin with the
    cluster's.

    Attributes:
        network: The network's self link, or `projects/…/global/networks/…` of an existing network.
        name: The network's short name.
        subnetwork: The self link, or the path, of the subnetwork that every machine is in.
        routes: What must exist before a machine reaches anything, or is reached.

    Args:
        accounts: The service accounts that the rules name. Google requires them before a rule names them.
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
        self.routes += [self._open(rule) for rule in security.ingress_rules(design)]
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
            # Otherwise Google makes a subnetwork in every region of the world.
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
            ip_cidr_range=subnetwork_cidr(design),
            # What machines fetch from Cloud Storage bypasses the NAT, which costs by the byte.
            private_ip_google_access=True,
            opts=own,
        )
        self.network, self.name = network.self_link, network.name
        self.subnetwork = subnetwork.self_link
        self.routes.append(self._nat(network, subnetwork))

    def _nat(self, network: compute.Network, subnetwork: compute.Subnetwork) -> compute.RouterNat:
        """Cloud NAT: machines without a public address reach the internet, and nobody comes in through it."""
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
            # Only this name needs two letters at least, and a cluster's name may have one.
            name=design.name if len(design.name) > 1 else f"{design.name}-nat",
            project=design.project,
            region=design.region,
            router=router.name,
            nat_ip_allocate_option="AUTO_ONLY",
            source_subnetwork_ip_ranges_to_nat="LIST_OF_SUBNETWORKS",
            subnetworks=[{"name": subnetwork.id, "source_ip_ranges_to_nats": ["PRIMARY_IP_RANGE"]}],
            # An installer of Python packages on many cores soon uses up a fixed share of 64.
            enable_dynamic_port_allocation=True,
            enable_endpoint_independent_mapping=False,
            min_ports_per_vm=PORTS,
            max_ports_per_vm=MOST_PORTS,
            opts=own,
        )

    def _open(self, rule: security.IngressRule) -> compute.Firewall:
        design = self._design
        return compute.Firewall(
            f"{self._name}-{rule.name}",
            name=f"{design.name}-{rule.name}",
            description=f"{rule.description}, cluster {design.name}",
            project=design.project,
            network=self.network,
            direction="INGRESS",
            source_ranges=list(rule.ranges) or None,
            source_service_accounts=None if rule.ranges else [account_email(design, rule.source)],
            target_service_accounts=[account_email(design, rule.role)],
            allows=_allowed(rule),
            opts=pulumi.ResourceOptions(parent=self, depends_on=self._accounts),
        )


def subnetwork_cidr(design: ClusterDesign) -> str:
    """The addresses of the subnetwork: all of the network's.

    A subnetwork of Google's belongs to a whole region, so a cluster has one.
    """
    return str(design.network.cidr)


def _allowed(rule: security.IngressRule) -> list[compute.FirewallAllowArgs]:
    ports_of = {protocol: ports for protocol, ports in (("tcp", rule.ports), ("udp", rule.udp)) if ports}
    if not ports_of:
        return [compute.FirewallAllowArgs(protocol="all")]
    return [
        compute.FirewallAllowArgs(
            protocol=protocol,
            ports=[str(first) if first == last else f"{first}-{last}" for first, last in ports],
        )
        for protocol, ports in ports_of.items()
    ]
