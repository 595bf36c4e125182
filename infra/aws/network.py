"""The cluster's network on AWS: its zones, its own VPC or an existing one, and who may reach whom in it.

AWS is asked for the zones where the stack file does not name them. The rules of the security groups are plain
data, made by pure functions, so that a test can read all of them. A rule's description is the one that EC2
shows. EC2 refuses a description with an apostrophe.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import pulumi
import pulumi_aws as aws

from infra import addresses
from infra.addresses import labels
from infra.aws.tags import identifying_tags, tags
from infra.clouds.firewall import ANYWHERE, NFS, Rule, exports, outside, roles, slurm
from infra.errors import UserError
from infra.program import stand_ins
from infra.program.mode import UNKNOWN
from infra.program.stand_ins import StandIns, is_stand_in
from node.design.model import ClusterDesign, Host, Partition
from node.system import plurals

LUSTRE = ((988, 988), (1018, 1023))
"""The ports of Lustre. FSx refuses to make a file system whose group does not admit these (LustreGuide)."""
STORAGE = "storage"
"""The group of the cluster's own file systems."""
OWNERS = "sg-"
"""The beginning of the id of a group that the stack file names."""


@dataclass(frozen=True, slots=True)
class Zones:
    """The zones of a cluster.

    Attributes:
        head: The zone of the controller, its disks, the login machines and the NAT gateway.
        partitions: partition -> its zones, best first.
        existing: zone -> the private subnet of a network that is not ours. It is empty for our own network.
    """

    head: str
    partitions: dict[str, tuple[str, ...]]
    existing: dict[str, str] = field(default_factory=dict)

    @property
    def compute(self) -> tuple[str, ...]:
        """Every zone that may hold nodes, in the order of the partitions' lists."""
        return tuple(dict.fromkeys(zone for zones in self.partitions.values() for zone in zones))

    @property
    def private(self) -> tuple[str, ...]:
        """Every zone that has a private subnet: the zones of the nodes, and the head's zone."""
        return tuple(self.existing) or tuple(dict.fromkeys([*self.compute, self.head]))


def find_zones(design: ClusterDesign, opts: pulumi.InvokeOptions | None = None) -> Zones:
    """Find the zones of a design, in a Pulumi program.

    Raises:
        UserError: No zone that is left for a machine offers it.
    """
    zones = (
        _zones_of_existing_network(design, opts)
        if design.network.vpc
        else _zones_of_new_network(design, opts)
    )
    for name, volume, zone in _existing_volumes(design, opts):
        if zone != zones.head and not zone.startswith("<"):
            cure = (
                "give network.aws subnets there"
                if design.network.vpc
                else "add that zone to network.zones, or make a snapshot of the volume and `restore` it"
            )
            raise UserError(
                f"slurm-stacks:cluster.storage.{name}.existing: {volume} is in {zone}, and the controller in "
                f"{zones.head}: EC2 attaches a volume in its own zone only; {cure}",
                code="volume.other-zone",
            )
    return zones


def _existing_volumes(design: ClusterDesign, opts: pulumi.InvokeOptions | None) -> list[tuple[str, str, str]]:
    """Return the name, the id and the zone of each existing volume."""
    volumes = []
    for mount in design.mounts:
        if mount.served_by == "controller" and mount.existing is not None and not is_stand_in(mount.existing):
            filters = [aws.ebs.GetVolumeFilterArgs(name="volume-id", values=[mount.existing])]
            zone = aws.ebs.get_volume(filters=filters, opts=opts).availability_zone
            known = f"<{mount.existing}.availabilityZone>" if zone.startswith(UNKNOWN) else zone
            volumes.append((mount.name, mount.existing, known))
    return volumes


def _zones_of_new_network(design: ClusterDesign, opts: pulumi.InvokeOptions | None) -> Zones:
    configured = {p.name: p.zones or design.network.zones for p in design.partitions}
    # Existing volumes can be attached in their own zone only.
    volumes = [zone for _, _, zone in _existing_volumes(design, opts) if not zone.startswith("<")]
    current = _current_head_zone(design, opts) or next(iter(volumes), None)
    if all(configured.values()):
        named = Zones(next(iter(configured.values()))[0], configured)
        return replace(named, head=current) if current in named.compute else named
    offered = {machine: offering_zones(machine, opts) for machine in _instance_types(design)}
    partitions = {
        p.name: configured[p.name] or _offered_to(design, p, offered[p.instance_type])
        for p in design.partitions
    }
    # Zones that suit more partitions come first, so that nodes, the head and the file systems are close
    # together.
    wanted = [zone for zones in partitions.values() for zone in zones]
    order = sorted(dict.fromkeys(wanted), key=lambda zone: (-wanted.count(zone), zone))
    ordered = {
        name: configured[name] or tuple(sorted(zones, key=order.index)) for name, zones in partitions.items()
    }
    return Zones(current or _head_zone(design, order, offered), ordered)


def _current_head_zone(design: ClusterDesign, opts: pulumi.InvokeOptions | None) -> str | None:
    """Return the zone in which the cluster's head already is, if there is one.

    AWS may start to offer a machine in one more zone, and another zone is then the best. Without this, `up`
    would replace the controller there, with empty disks.
    """
    wanted = identifying_tags(design, public_subnet_name(design))
    filters = [
        aws.ec2.GetSubnetsFilterArgs(name=f"tag:{key}", values=[value]) for key, value in wanted.items()
    ]
    subnets = aws.ec2.get_subnets(filters=filters, opts=opts).ids
    known = [subnet for subnet in subnets if not subnet.startswith(UNKNOWN)]
    return _zone_of(min(known), opts) if known else None


def public_subnet_name(design: ClusterDesign) -> str:
    """Return the name tag of the public subnet, by which the subnet is found."""
    return f"{design.name}-public"


def _zones_of_existing_network(design: ClusterDesign, opts: pulumi.InvokeOptions | None) -> Zones:
    network = design.network
    if any(map(is_stand_in, (network.vpc, network.public_subnet, *network.private_subnets))):
        return _zones_as_given(design, opts)
    subnets: dict[str, str] = {}
    for subnet in network.private_subnets:
        zone = _zone_of(subnet, opts)
        if zone in subnets:
            raise UserError(
                f"slurm-stacks:cluster.network.aws.private_subnets: {subnets[zone]} and {subnet} are both in "
                f"{zone}; give one subnet for each zone",
                code="subnets.same-zone",
            )
        subnets[zone] = subnet
    wanted = {p.name: p.zones or network.zones for p in design.partitions}
    partitions = {p.name: _partition_zones(p, wanted[p.name], subnets, opts) for p in design.partitions}
    return Zones(_zone_of(network.public_subnet or network.private_subnets[0], opts), partitions, subnets)


def _zones_as_given(design: ClusterDesign, opts: pulumi.InvokeOptions | None) -> Zones:
    """Return the zones where the subnets are values of other resources: AWS cannot be asked in a preview.

    The configuration names the zone of each private subnet, in their order (`network.zones`). The first is
    also the public subnet's.
    """
    network = design.network
    subnets = dict(zip(network.zones, network.private_subnets, strict=True))
    partitions = {p.name: _partition_zones(p, p.zones, subnets, opts) for p in design.partitions}
    return Zones(network.zones[0], partitions, subnets)


def _partition_zones(
    partition: Partition,
    wanted: Sequence[str],
    subnets: dict[str, str],
    opts: pulumi.InvokeOptions | None,
) -> tuple[str, ...]:
    """Return the zones of a partition that an existing network covers and that offer its instance type."""
    if any(zone.startswith(UNKNOWN) for zone in subnets):
        return tuple(subnets)
    covered = [zone for zone in wanted or subnets if zone in subnets]
    if not covered:
        raise UserError(
            f"partition {partition.label}: zones {', '.join(wanted)}, but network.aws.private_subnets lie in "
            f"{', '.join(subnets)}; add a subnet, or change the zones",
            code="subnets.zones",
        )
    having = offering_zones(partition.instance_type, opts)
    fitting = tuple(zone for zone in covered if zone in having)
    if not fitting:
        raise UserError(
            f"partition {partition.label}: AWS offers {partition.instance_type} in "
            f"{', '.join(having) or 'no zone of the region'}, and the subnets lie in {', '.join(covered)}",
            code="subnets.machine",
        )
    return fitting


def _zone_of(subnet: str, opts: pulumi.InvokeOptions | None) -> str:
    zone = aws.ec2.get_subnet(id=subnet, opts=opts).availability_zone
    # The placeholder differs for each subnet, so that unknown zones stay apart.
    return f"<{subnet}.availabilityZone>" if zone.startswith(UNKNOWN) else zone


def offering_zones(machine: str, opts: pulumi.InvokeOptions | None = None) -> tuple[str, ...]:
    """Return the region's zones in which AWS offers an instance type, sorted.

    Local and wavelength zones are left out.
    """
    offered = aws.ec2.get_instance_type_offerings(
        filters=[{"name": "instance-type", "values": [machine]}],
        location_type="availability-zone",
        opts=opts,
    ).locations
    return tuple(
        sorted(
            {
                zone
                for zone in offered
                if zone.startswith(UNKNOWN) or re.fullmatch(r"[a-z]+(-[a-z]+)+-\d[a-z]", zone)
            }
        )
    )


def _instance_types(design: ClusterDesign) -> Iterable[str]:
    return dict.fromkeys(
        [*(p.instance_type for p in design.partitions), *(h.instance_type for h in design.hosts)]
    )


def _offered_to(design: ClusterDesign, partition: Partition, offered: tuple[str, ...]) -> tuple[str, ...]:
    if not offered:
        raise UserError(
            f"partition {partition.label}: AWS offers {partition.instance_type} in no zone of "
            f"{design.region}; take another instance type or another aws:region",
            code="zones.no-machine",
        )
    return offered


def _head_zone(design: ClusterDesign, order: Sequence[str], offered: dict[str, tuple[str, ...]]) -> str:
    """Return the first of the nodes' zones that offers the hosts' instance types, else any zone that does."""
    # Without hosts, as with AWS Batch, it is the first zone of the nodes.
    machines = {host.instance_type: offered[host.instance_type] for host in design.hosts}
    everywhere = sorted({zone for zones in machines.values() for zone in zones})
    for zone in [*order, *everywhere]:
        if all(zone in zones for zones in machines.values()):
            return zone
    raise UserError(
        f"no zone of {design.region} has all machines of the controller and login: {', '.join(machines)}",
        code="zones.no-head",
    )


def with_zones(design: ClusterDesign, zones: Zones) -> ClusterDesign:
    """Return the design with the zones in which each partition's nodes may start.

    The machines read all of them.

    Neither a placement group nor EFA spans zones, so a partition with either gets one zone.
    """
    partitions = []
    for partition in design.partitions:
        allowed = zones.partitions[partition.name]
        one_zone = partition.placement == "cluster" or partition.aws.efa
        partitions.append(replace(partition, zones=allowed[:1] if one_zone else allowed))
    return replace(design, partitions=tuple(partitions))


class AwsNetwork(pulumi.ComponentResource):
    """A public subnet, the controller's, a private subnet in each zone, one NAT gateway, security groups.

    The controller keeps its subnet, and with it its address, when it gets or loses its public address: then
    only the subnet's route changes, to the internet gateway or to the NAT gateway.

    Without the NAT gateway (`aws.nat: false`) the private subnets reach the internet through the internet
    gateway. That gateway serves only machines with a public address, so machines that start there get one.

    In an existing VPC (`network.aws`) only the security groups are made: the subnets and routes are the
    owner's.

    Attributes:
        vpc: The VPC's id.
        public: The public subnet's id.
        private: zone -> the private subnet's id, first the zones of `Zones.compute`.
        controller: The id of the controller's own subnet; `None` in an existing VPC, or without a controller.
        groups: controller | login | compute | storage | image -> the security group's id. Login is there only
            with login machines, storage only where a service serves a file system, and image only where
            images are baked.
        rules: group -> its rules, also those in the group of an existing file system. A group's id
            is known before its rules exist.
        zones: The zones as given.
        routes: What must exist before a machine in a private subnet reaches AWS.

    Args:
        zones: The result of `infra.aws.network.find_zones`, which asks AWS.
        values: What stands in the design for values of other resources.
    """

    def __init__(
        self,
        name: str,
        design: ClusterDesign,
        zones: Zones,
        values: StandIns = stand_ins.NONE,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("slurm-stacks:index:AwsNetwork", name, None, opts)
        self._name = name
        self._design = design
        self.zones = zones
        self._values = values
        self.vpc: pulumi.Output[str]
        self.public: pulumi.Output[str]
        self.private: dict[str, pulumi.Output[str]] = {}
        self.controller: pulumi.Output[str] | None = None
        self.routes: list[pulumi.Resource] = []
        if design.network.vpc is not None:
            self._use_existing(design.network.vpc)
        else:
            self._make()
        self.groups = {group: self._group(group) for group in security_groups(design)}
        self.rules: dict[str, list[pulumi.Resource]] = {group: [] for group in self.groups}
        for rule in security_rules(design):
            self.rules.setdefault(rule.group, []).append(self._rule(rule))
        self.register_outputs({"vpc": self.vpc, "public": self.public, "private": self.private})

    @property
    def subnets(self) -> dict[str, pulumi.Output[str]]:
        """Zone -> the subnet where its nodes start."""
        return {zone: self.private[zone] for zone in self.zones.compute}

    @property
    def identity(self) -> list[pulumi.Output[str]]:
        """Return ids that are others when the network is another one, and not when zones come or go.

        They are the VPC's, that of the controller's subnet, and in our own network that of the private subnet
        in the head's zone, which no list of zones moves.
        """
        private = None if self._design.network.vpc is not None else self.private.get(self.zones.head)
        heads = [self.subnet(host) for host in self._design.hosts if host.role == "controller"]
        return [self.vpc, *([] if private is None else [private]), *heads]

    def subnet(self, host: Host) -> pulumi.Output[str]:
        """Return the subnet of a host.

        The controller has its own in our network. Else it is the public one if users reach the host at a
        public address, or a private one.
        """
        if host.role == "controller" and self.controller is not None:
            return self.controller
        private = self.private.get(self.zones.head)
        return self.public if private is None or "public" in host.tags else private

    def _use_existing(self, vpc: str) -> None:
        network = self._design.network
        self.vpc = self._values.output(vpc)
        self.public = self._values.output(network.public_subnet or network.private_subnets[0])
        for zone, subnet in self.zones.existing.items():
            self.private[zone] = self._values.output(subnet)

    def _make(self) -> None:
        network, name, opts = self._design.network, self._name, pulumi.ResourceOptions(parent=self)
        cidrs = addresses.private_cidrs(str(network.private_cidr), self.zones.private)
        _check_addresses(with_zones(self._design, self.zones), self.zones.head, cidrs)
        vpc = aws.ec2.Vpc(
            f"{name}-vpc",
            cidr_block=str(network.cidr),
            enable_dns_support=True,
            # The names of file systems and of nodes are resolved in the VPC.
            enable_dns_hostnames=True,
            tags=self._tags("vpc"),
            opts=opts,
        )
        self.vpc = vpc.id
        # A machine that somebody starts without a group is in this one, which admits nothing.
        aws.ec2.DefaultSecurityGroup(
            f"{name}-default", vpc_id=vpc.id, ingress=[], egress=[], tags=self._tags("default"), opts=opts
        )
        gateway = aws.ec2.InternetGateway(
            f"{name}-internet-gateway", vpc_id=vpc.id, tags=self._tags("internet"), opts=opts
        )
        public_cidr, head_cidr = self._public_cidrs()
        public = self._subnet("public", vpc, self.zones.head, public_cidr)
        self.public = public.id
        label = labels(list(cidrs))
        private = {z: self._subnet(f"private-{label[z]}", vpc, z, cidr) for z, cidr in cidrs.items()}
        self.private = {zone: subnet.id for zone, subnet in private.items()}
        public_table, public_routes = self._table(
            "public", vpc, {self.zones.head: public}, gateway_id=gateway.id
        )
        target: dict[str, pulumi.Input[str]] = (
            {"nat_gateway_id": self._nat(public, [gateway, *public_routes]).id}
            if self._design.aws.nat
            else {"gateway_id": gateway.id}
        )
        private_table, private_routes = self._table("private", vpc, private, **target)
        tables = [public_table, private_table]
        for host in (host for host in self._design.hosts if host.role == "controller"):
            subnet = self._subnet("head", vpc, self.zones.head, head_cidr)
            self.controller = subnet.id
            out = {"gateway_id": gateway.id} if "public" in host.tags else target
            table, routes = self._table("head", vpc, {self.zones.head: subnet}, **out)
            tables.append(table)
            private_routes += routes
        # The endpoint is free, and what nodes fetch from S3 then bypasses the NAT gateway, which costs by the
        # byte.
        store = aws.ec2.VpcEndpoint(
            f"{name}-s3-endpoint",
            vpc_id=vpc.id,
            vpc_endpoint_type="Gateway",
            service_name=f"com.amazonaws.{self._design.region}.s3",
            route_table_ids=tables,
            tags=self._tags("s3"),
            opts=opts,
        )
        self.routes = [*public_routes, *private_routes, store]

    def _public_cidrs(self) -> tuple[str, str]:
        """Return the CIDRs of the public and of the controller's subnet. Without hosts there is one."""
        cidr = str(self._design.network.public_cidr)
        parts = addresses.public_parts(cidr) if self._design.hosts else (cidr, "")
        if parts is None:
            raise UserError(
                f"slurm-stacks:cluster.network.public_cidr: {cidr} is too small for two subnets, the public "
                f"one and the controller's; give /{addresses.LONGEST_PREFIX - 1} or larger",
                code="network.public-too-small",
            )
        return parts

    def _subnet(self, part: str, vpc: aws.ec2.Vpc, zone: str, cidr: str) -> aws.ec2.Subnet:
        return aws.ec2.Subnet(
            f"{self._name}-{part}",
            vpc_id=vpc.id,
            availability_zone=zone,
            cidr_block=cidr,
            # Other machines ask for their public address, but Image Builder's machines cannot.
            map_public_ip_on_launch=part.startswith("private") and not self._design.aws.nat,
            tags=self._tags(part),
            opts=pulumi.ResourceOptions(parent=self),
        )

    def _nat(self, public: aws.ec2.Subnet, after: list[pulumi.Resource]) -> aws.ec2.NatGateway:
        """One NAT gateway for all zones.

        Each costs as much as a head, and jobs go on without the internet.
        """
        opts = pulumi.ResourceOptions(parent=self, depends_on=after)
        address = aws.ec2.Eip(f"{self._name}-nat-address", domain="vpc", tags=self._tags("nat"), opts=opts)
        return aws.ec2.NatGateway(
            f"{self._name}-nat",
            subnet_id=public.id,
            allocation_id=address.allocation_id,
            tags=self._tags("nat"),
            # The provider waits 10 minutes.
            opts=pulumi.ResourceOptions(
                parent=self, depends_on=after, custom_timeouts=pulumi.CustomTimeouts(create="30m")
            ),
        )

    def _table(
        self, part: str, vpc: aws.ec2.Vpc, subnets: dict[str, aws.ec2.Subnet], **target: pulumi.Input[str]
    ) -> tuple[pulumi.Output[str], list[pulumi.Resource]]:
        """Return a route table of these subnets, and the resources that route their traffic to the internet.

        Args:
            subnets: zone -> subnet.
            target: The gateway that the traffic goes to.
        """
        name, opts = self._name, pulumi.ResourceOptions(parent=self)
        label = labels(list(subnets))
        table = aws.ec2.RouteTable(
            f"{name}-{part}-route-table", vpc_id=vpc.id, tags=self._tags(part), opts=opts
        )
        routes: list[pulumi.Resource] = [
            aws.ec2.RouteTableAssociation(
                f"{name}-{part}-{label[zone]}-routes",
                subnet_id=subnet.id,
                route_table_id=table.id,
                opts=opts,
            )
            for zone, subnet in subnets.items()
        ]
        route = aws.ec2.Route(
            f"{name}-{part}-route",
            route_table_id=table.id,
            destination_cidr_block=ANYWHERE,
            **target,
            opts=opts,
        )
        return table.id, [*routes, route]

    def _group(self, group: str) -> pulumi.Output[str]:
        """Return a security group without rules.

        The provider removes AWS's default rule, which lets all traffic out.
        """
        security_group = aws.ec2.SecurityGroup(
            f"{self._name}-{group}",
            vpc_id=self.vpc,
            description=f"{group} of the cluster {self._design.name}",
            tags=self._tags(group),
            opts=self._options(group),
        )
        return security_group.id

    def _rule(self, rule: Rule) -> pulumi.Resource:
        name = _rule_name(rule, self._design)
        cls = aws.vpc.SecurityGroupIngressRule if rule.direction == "in" else aws.vpc.SecurityGroupEgressRule
        return cls(
            f"{self._name}-{name}",
            # The group of an existing file system is its owner's.
            security_group_id=self.groups.get(rule.group, rule.group),
            description=rule.description,
            ip_protocol="-1" if rule.ports is None else rule.protocol,
            from_port=rule.ports[0] if rule.ports else None,
            to_port=rule.ports[1] if rule.ports else None,
            tags=self._tags(name),
            opts=self._options(*{rule.group, rule.peer}),
            **self._peer(rule.peer),
        )

    def _options(self, *groups: str) -> pulumi.ResourceOptions:
        """Return the options of a group or a rule.

        What a Lustre file system that stays needs stays with it.
        """
        stays = groups == (STORAGE,) and lustre_stays(self._design)
        return pulumi.ResourceOptions(parent=self, retain_on_delete=stays or None)

    def _peer(self, peer: str) -> dict[str, pulumi.Input[str]]:
        if peer in self.groups:
            return {"referenced_security_group_id": self.groups[peer]}
        if peer.startswith(OWNERS):
            return {"referenced_security_group_id": peer}
        return {f"cidr_ipv{ipaddress.ip_network(peer).version}": peer}

    def _tags(self, part: str) -> dict[str, str]:
        return tags(self._design, f"{self._design.name}-{part}")


def _check_addresses(design: ClusterDesign, head: str, cidrs: dict[str, str]) -> None:
    """Check, now that all zones are known, that all machines can have an address at once.

    Args:
        head: The zone of the login machines.
        cidrs: zone -> the CIDR of its private subnet.

    Raises:
        UserError: They cannot.
    """
    needs = [addresses.Need(p.label, p.max, frozenset(p.zones)) for p in design.partitions]
    if login := sum(host.role == "login" and "public" not in host.tags for host in design.hosts):
        needs.append(addresses.Need("login", login, frozenset([head])))
    free = {zone: addresses.free_addresses(cidr, "aws") for zone, cidr in cidrs.items()}
    if (short := addresses.shortage(needs, free)) is not None:
        raise UserError(
            f"slurm-stacks:cluster.network.private_cidr: its subnets in {', '.join(short.zones)} have "
            f"{plurals.count(short.free, 'address', 'addresses')}, and machines that can start nowhere "
            f"else are {short.nodes}: {short.partitions()}; give a larger "
            "network.cidr, more zones, or a smaller nodes.max",
            code="subnets.addresses",
        )


def security_groups(design: ClusterDesign) -> tuple[str, ...]:
    """Return the security groups that a design needs."""
    images = ("image",) if design.image.bake else ()
    storage = (STORAGE,) if STORAGE in {group for _, group in _file_services(design)} else ()
    return (*roles(design), *storage, *images)


def security_rules(design: ClusterDesign) -> list[Rule]:
    """Return every rule of a design's security groups. All other traffic is refused."""
    return [*_machine_rules(design), *slurm(design), *outside(design), *_storage_rules(design)]


def lustre_stays(design: ClusterDesign) -> bool:
    """Return whether a Lustre file system stays after a destroy.

    Then its interfaces keep its group in use.
    """
    return any(mount.kind == "fsx_lustre" and mount.keep for mount in design.mounts)


def _file_services(design: ClusterDesign) -> Iterator[tuple[str, str]]:
    """Yield the kind and the security group of each file system that a service of AWS serves, once.

    Those of the cluster have a group of their own; an existing one has that of its owner.
    """
    served = [mount for mount in design.mounts if mount.kind in ("efs", "fsx_lustre")]
    yield from dict.fromkeys((mount.kind, mount.security_group or STORAGE) for mount in served)


def _rule_name(rule: Rule, design: ClusterDesign) -> str:
    """Return the name of a rule's resource.

    The group of an existing file system is called after the directory: its id may come from another resource.
    """
    names = {mount.security_group: mount.name for mount in reversed(design.mounts) if mount.security_group}
    return replace(rule, group=names.get(rule.group, rule.group), peer=names.get(rule.peer, rule.peer)).name


def _machine_rules(design: ClusterDesign) -> Iterator[Rule]:
    for role in roles(design):
        yield Rule(role, "out", ANYWHERE, None, "packages, AWS services, downloads of users")
    if design.image.bake:
        # Nobody connects to a machine that becomes an image. Its agent connects to Image Builder instead.
        yield Rule("image", "out", ANYWHERE, None, "packages, AWS services")
    # EFA traffic is not IP traffic. Only a rule that names the group itself lets it out.
    yield Rule("compute", "in", "compute", None, "jobs of several nodes, EFA")
    yield Rule("compute", "out", "compute", None, "jobs of several nodes, EFA")


def _storage_rules(design: ClusterDesign) -> Iterator[Rule]:
    clients = roles(design)
    yield from exports(design)
    for kind, group in _file_services(design):
        yield from _nfs_rules(clients, group) if kind == "efs" else _lustre_rules(clients, group)


def _nfs_rules(clients: Sequence[str], group: str) -> Iterator[Rule]:
    for role in clients:
        yield Rule(group, "in", role, NFS, "EFS")


def _lustre_rules(clients: Sequence[str], group: str) -> Iterator[Rule]:
    for ports in LUSTRE:
        if group == STORAGE:
            yield Rule(group, "in", group, ports, "Lustre servers among themselves")
            yield Rule(group, "out", group, ports, "Lustre servers among themselves")
        for role in clients:
            yield Rule(group, "in", role, ports, "Lustre")
            yield Rule(group, "out", role, ports, "Lustre callbacks")
            yield Rule(role, "in", group, ports, "Lustre callbacks")
