"""The cluster's network on Google Cloud: its zones, its own VPC or an existing one, and the firewall.

The firewall's rules are plain data, made by pure functions, so that a test can read all of them. A VPC of
Google's lets nothing in and everything out, and answers come back without a rule. So only incoming traffic
has rules here. Machines are identified by their service accounts and not by network tags: whoever may tag a
machine could put it into the cluster.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace

import pulumi
from pulumi_gcp import compute

from infra.clouds.firewall import SSH, Ports, Rule, exports, outside, roles, slurm
from infra.errors import UserError
from infra.gcp.names import account_email
from infra.program import stand_ins
from infra.program.mode import UNKNOWN
from infra.program.stand_ins import StandIns
from node.design.model import ClusterDesign, Host, Partition

RESERVED_ADDRESSES = 4
"""How many addresses of a subnetwork Google keeps for itself."""
PORTS = 64
"""The fewest ports of the NAT's addresses for each machine. A machine that needs more gets more."""
MOST_PORTS = 4096
IAP = "35.235.240.0/20"
"""The network of the Identity-Aware Proxy, which asks IAM who may connect."""


def with_zones(design: ClusterDesign) -> ClusterDesign:
    """Return the design with the zones in which each partition's nodes may start.

    The machines read all of them.

    A partition without zones gets the stack's own zone, where the head is. A compact policy does not span
    zones, so a partition with one gets one zone.
    """
    partitions = []
    for partition in design.partitions:
        zones = partition.zones or design.network.zones or (str(design.zone),)
        partitions.append(replace(partition, zones=zones[:1] if partition.placement == "cluster" else zones))
    return replace(design, partitions=tuple(partitions))


def check_zones(design: ClusterDesign, opts: pulumi.InvokeOptions | None = None) -> None:
    """Compare the machine types of a design with those that its zones offer, in a Pulumi program.

    No data source has the GPUs that are attached: `./cluster doctor` asks for them.

    Raises:
        UserError: A zone does not offer a machine type, or offers it with another number of vCPUs than the
            design expects.
    """
    zone = str(design.zone)
    wanted = {zone: {host.instance_type for host in design.hosts}}
    for partition in design.partitions:
        for other in partition.zones:
            wanted.setdefault(other, set()).add(partition.instance_type)
    offered = {where: offered_types(design, where, machines, opts) for where, machines in wanted.items()}
    for host in design.hosts:
        _check_offer(f"{host.name}", host, zone, offered[zone])
    for partition in design.partitions:
        for where in partition.zones:
            _check_offer(f"partition {partition.label}", partition, where, offered[where])


def offered_types(
    design: ClusterDesign, zone: str, machines: Iterable[str], opts: pulumi.InvokeOptions | None = None
) -> dict[str, int] | None:
    """Return the vCPUs of each machine type that a zone offers, among those given.

    `None` means that this is an offline plan, which cannot know it.
    """
    either = " OR ".join(f'(name = "{machine}")' for machine in sorted(machines))
    offered = compute.get_machine_types(
        filter=either, zone=zone, project=design.project, opts=opts
    ).machine_types
    if any(machine.name.startswith(UNKNOWN) for machine in offered):
        return None
    return {machine.name: machine.guest_cpus for machine in offered}


def _check_offer(who: str, of: Host | Partition, zone: str, offered: dict[str, int] | None) -> None:
    if offered is None:
        return
    if of.instance_type not in offered:
        raise UserError(
            f"{who}: Google Cloud does not offer {of.instance_type} in {zone}; take another "
            "instance type or another zone",
            code="zones.no-machine",
        )
    # With fewer threads or cores a node has not all vCPUs of its type.
    with_all = isinstance(of, Partition) and "advanced_machine_features" not in of.overrides()
    if isinstance(of, Partition) and with_all and offered[of.instance_type] != of.cpus:
        vcpus = offered[of.instance_type]
        raise UserError(
            f"{who}: {of.instance_type} has {vcpus} vCPUs in {zone}, and the snapshot says {of.cpus}: "
            f"give its facts in the stack file: slurm-stacks:cluster.instance_types.{of.instance_type}",
            code="machine.vcpus",
        )


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
        values: What stands in the design for values of other resources.
    """

    def __init__(
        self,
        name: str,
        design: ClusterDesign,
        accounts: Collection[pulumi.Resource],
        values: StandIns = stand_ins.NONE,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("slurm-stacks:index:GcpNetwork", name, None, opts)
        self._name = name
        self._accounts = list(accounts)
        self._values = values
        self._design = design
        self.network: pulumi.Output[str]
        self.name: pulumi.Output[str]
        self.subnetwork: pulumi.Output[str]
        self.routes: list[pulumi.Resource] = []
        if design.network.vpc is not None:
            self._use_existing(design.network.vpc)
        else:
            self._make()
        self.routes += [self._open(rule) for rule in ingress_rules(design)]
        self.register_outputs({"network": self.network, "subnetwork": self.subnetwork})

    def _use_existing(self, network: str) -> None:
        design = self._design
        (subnetwork,) = design.network.private_subnets
        project = f"projects/{design.project}"
        self.name = self._values.output(network)
        self.network = self._values.output(f"{project}/global/networks/{network}")
        self.subnetwork = self._values.output(f"{project}/regions/{design.region}/subnetworks/{subnetwork}")

    def _make(self) -> None:
        design, name, child_opts = self._design, self._name, pulumi.ResourceOptions(parent=self)
        network = compute.Network(
            f"{name}-vpc",
            name=design.name,
            description=f"the cluster {design.name}",
            project=design.project,
            # Otherwise Google makes a subnetwork in every region of the world.
            auto_create_subnetworks=False,
            routing_mode="REGIONAL",
            opts=child_opts,
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
            opts=child_opts,
        )
        self.network, self.name = network.self_link, network.name
        self.subnetwork = subnetwork.self_link
        self.routes.append(self._nat(network, subnetwork))

    def _nat(self, network: compute.Network, subnetwork: compute.Subnetwork) -> compute.RouterNat:
        """Declare Cloud NAT, for machines without a public address.

        By it they reach the internet, and nobody comes in.
        """
        design, name, child_opts = self._design, self._name, pulumi.ResourceOptions(parent=self)
        router = compute.Router(
            f"{name}-router",
            name=design.name,
            description=f"Cloud NAT of the cluster {design.name}",
            project=design.project,
            region=design.region,
            network=network.id,
            opts=child_opts,
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
            opts=child_opts,
        )

    def _open(self, rule: IngressRule) -> compute.Firewall:
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
    """Return the addresses of the subnetwork: all of the network's.

    A subnetwork of Google's belongs to a whole region, so a cluster has one.
    """
    return str(design.network.cidr)


def _allowed(rule: IngressRule) -> list[compute.FirewallAllowArgs]:
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


@dataclass(frozen=True, slots=True)
class IngressRule:
    """A rule of the firewall: what the machines of a role let in from one source.

    Attributes:
        role: controller | login | compute.
        source: A role, or `iap`, or `ssh`. It is a part of the rule's name.
        ranges: The networks that the traffic comes from. It is empty where `source` is a role.
        ports: The TCP ports. A rule without TCP and UDP ports admits every protocol.
        udp: The UDP ports.
    """

    role: str
    source: str
    ranges: tuple[str, ...]
    ports: tuple[Ports, ...]
    description: str
    udp: tuple[Ports, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.role}-{self.source}"


def ingress_rules(design: ClusterDesign) -> list[IngressRule]:
    """Return every rule of a design's firewall. All other traffic is refused."""
    grouped: dict[tuple[str, str], list[Rule]] = {}
    for rule in _firewall_rules(design):
        grouped.setdefault((rule.group, _rule_source(rule, design)), []).append(rule)
    return [_merged_rule(role, source, rules, design) for (role, source), rules in grouped.items()]


def _firewall_rules(design: ClusterDesign) -> Iterator[Rule]:
    yield Rule("compute", "in", "compute", None, "jobs of several nodes")
    yield from slurm(design)
    yield from exports(design)
    yield from outside(design)
    if design.access.mode == "iap":
        for role in roles(design):
            yield Rule(role, "in", IAP, SSH, "Identity-Aware Proxy")


def _rule_source(rule: Rule, design: ClusterDesign) -> str:
    if rule.peer in roles(design):
        return rule.peer
    return "iap" if rule.peer == IAP and design.access.mode == "iap" else "ssh"


def _merged_rule(role: str, source: str, rules: list[Rule], design: ClusterDesign) -> IngressRule:
    """Return the rules of one source as one rule of the firewall, which accepts lists."""

    def ports(protocol: str) -> tuple[Ports, ...]:
        return tuple(dict.fromkeys(r.ports for r in rules if r.ports is not None and r.protocol == protocol))

    return IngressRule(
        role,
        source,
        tuple(dict.fromkeys(rule.peer for rule in rules if source not in roles(design))),
        ports("tcp"),
        "; ".join(dict.fromkeys(rule.description for rule in rules)),
        ports("udp"),
    )
