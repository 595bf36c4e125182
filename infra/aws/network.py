"""The cluster's network on AWS: a VPC of its own, or an existing one, and who may reach whom in it."""

from __future__ import annotations

import ipaddress

import pulumi
import pulumi_aws as aws

from infra.aws import layout, security
from infra.aws.tags import tags
from infra.aws.zones import Zones, letter
from infra.clouds import reach
from infra.node.model import ClusterDesign, Host


class AwsNetwork(pulumi.ComponentResource):
    """A public subnet, a private one in each zone, one NAT gateway, and the security groups.

    Without the gateway (`aws.nat: false`) the private subnets' way out is the internet gateway, which serves
    who has a public address, and machines that start there get one.

    Of an existing VPC (`network.aws`) only the groups are made: its subnets and routes are its owner's.

    Attributes:
        vpc: its id.
        public: the public subnet's id.
        private: zone -> the private subnet's id; first those of `Zones.compute`.
        groups: controller | login | compute | storage -> the security group's id; login only where there are
            login machines, storage only where a service serves a file system.
        rules: group -> its rules. A group's id is known before they are there.
        zones: as given.
        routes: what must be there before a machine in a private subnet reaches AWS.

    Args:
        zones: from `infra.aws.zones.find`, which asks AWS.
    """

    def __init__(
        self,
        name: str,
        design: ClusterDesign,
        zones: Zones,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("slurm-stacks:index:AwsNetwork", name, None, opts)
        self._name = name
        self._design = design
        self.zones = zones
        self.vpc: pulumi.Output[str]
        self.public: pulumi.Output[str]
        self.private: dict[str, pulumi.Output[str]] = {}
        self.routes: list[pulumi.Resource] = []
        if design.network.vpc is not None:
            self._use_existing(design.network.vpc)
        else:
            self._make()
        self.groups = {group: self._group(group) for group in security.groups(design)}
        self.rules: dict[str, list[pulumi.Resource]] = {group: [] for group in self.groups}
        for rule in security.rules(design):
            self.rules[rule.group].append(self._rule(rule))
        self.register_outputs({"vpc": self.vpc, "public": self.public, "private": self.private})

    @property
    def subnets(self) -> dict[str, pulumi.Output[str]]:
        """Zone -> subnet, where nodes may start."""
        return {zone: self.private[zone] for zone in self.zones.compute}

    def subnet(self, host: Host) -> pulumi.Output[str]:
        """Where a host is: in the public subnet if users reach it by a public address, else in another."""
        home = self.private.get(self.zones.head)
        return self.public if home is None or "public" in host.tags else home

    def _use_existing(self, vpc: str) -> None:
        network = self._design.network
        self.vpc = pulumi.Output.from_input(vpc)
        self.public = pulumi.Output.from_input(network.public_subnet or network.private_subnets[0])
        for zone, subnet in self.zones.existing.items():
            self.private[zone] = pulumi.Output.from_input(subnet)

    def _make(self) -> None:
        network, name, opts = self._design.network, self._name, pulumi.ResourceOptions(parent=self)
        cidrs = layout.private_cidrs(str(network.private_cidr), self.zones.private)
        layout.check_room(self._design, self.zones, cidrs)
        vpc = aws.ec2.Vpc(
            f"{name}-vpc",
            cidr_block=str(network.cidr),
            enable_dns_support=True,
            # File systems' names, and nodes' own, are resolved in the VPC.
            enable_dns_hostnames=True,
            tags=self._tags("vpc"),
            opts=opts,
        )
        self.vpc = vpc.id
        # A machine that somebody starts without a group would be in this one: it admits nothing.
        aws.ec2.DefaultSecurityGroup(
            f"{name}-default", vpc_id=vpc.id, ingress=[], egress=[], tags=self._tags("default"), opts=opts
        )
        gateway = aws.ec2.InternetGateway(
            f"{name}-internet", vpc_id=vpc.id, tags=self._tags("internet"), opts=opts
        )
        public = self._subnet("public", vpc, self.zones.head, str(network.public_cidr))
        self.public = public.id
        private = {z: self._subnet(f"private-{letter(z)}", vpc, z, cidr) for z, cidr in cidrs.items()}
        self.private = {zone: subnet.id for zone, subnet in private.items()}
        outside, out = self._table("public", vpc, {self.zones.head: public}, gateway_id=gateway.id)
        way: dict[str, pulumi.Input[str]] = (
            {"nat_gateway_id": self._nat(public, [gateway, *out]).id}
            if network.nat
            else {"gateway_id": gateway.id}
        )
        inside, routes = self._table("private", vpc, private, **way)
        # Free, and what nodes fetch from S3 does not pass the NAT gateway, which costs by the byte.
        store = aws.ec2.VpcEndpoint(
            f"{name}-s3",
            vpc_id=vpc.id,
            vpc_endpoint_type="Gateway",
            service_name=f"com.amazonaws.{self._design.region}.s3",
            route_table_ids=[outside, inside],
            tags=self._tags("s3"),
            opts=opts,
        )
        self.routes = [*out, *routes, store]

    def _subnet(self, part: str, vpc: aws.ec2.Vpc, zone: str, cidr: str) -> aws.ec2.Subnet:
        return aws.ec2.Subnet(
            f"{self._name}-{part}",
            vpc_id=vpc.id,
            availability_zone=zone,
            cidr_block=cidr,
            # Who needs a public address asks for it; Image Builder's machines cannot.
            map_public_ip_on_launch=part != "public" and not self._design.network.nat,
            tags=self._tags(part),
            opts=pulumi.ResourceOptions(parent=self),
        )

    def _nat(self, public: aws.ec2.Subnet, after: list[pulumi.Resource]) -> aws.ec2.NatGateway:
        """One for all zones: each costs as much as a head, and jobs go on without the way out."""
        opts = pulumi.ResourceOptions(parent=self, depends_on=after)
        address = aws.ec2.Eip(f"{self._name}-nat-address", domain="vpc", tags=self._tags("nat"), opts=opts)
        return aws.ec2.NatGateway(
            f"{self._name}-nat",
            subnet_id=public.id,
            allocation_id=address.allocation_id,
            tags=self._tags("nat"),
            opts=opts,
        )

    def _table(
        self, part: str, vpc: aws.ec2.Vpc, subnets: dict[str, aws.ec2.Subnet], **way: pulumi.Input[str]
    ) -> tuple[pulumi.Output[str], list[pulumi.Resource]]:
        """A route table of these subnets, by zone, and what makes it the way out."""
        name, opts = self._name, pulumi.ResourceOptions(parent=self)
        table = aws.ec2.RouteTable(f"{name}-{part}-table", vpc_id=vpc.id, tags=self._tags(part), opts=opts)
        made: list[pulumi.Resource] = [
            aws.ec2.RouteTableAssociation(
                f"{name}-{part}-{letter(zone)}-routes",
                subnet_id=subnet.id,
                route_table_id=table.id,
                opts=opts,
            )
            for zone, subnet in subnets.items()
        ]
        route = aws.ec2.Route(
            f"{name}-{part}-route",
            route_table_id=table.id,
            destination_cidr_block=reach.ANYWHERE,
            **way,
            opts=opts,
        )
        return table.id, [*made, route]

    def _group(self, group: str) -> pulumi.Output[str]:
        """A security group without rules; AWS's own first rule, all traffic out, the provider takes away."""
        made = aws.ec2.SecurityGroup(
            f"{self._name}-{group}",
            vpc_id=self.vpc,
            description=f"{group} of the cluster {self._design.name}",
            tags=self._tags(group),
            opts=pulumi.ResourceOptions(parent=self),
        )
        return made.id

    def _rule(self, rule: reach.Rule) -> pulumi.Resource:
        cls = aws.vpc.SecurityGroupIngressRule if rule.way == "in" else aws.vpc.SecurityGroupEgressRule
        return cls(
            f"{self._name}-{rule.name}",
            security_group_id=self.groups[rule.group],
            description=rule.why,
            ip_protocol="-1" if rule.ports is None else rule.protocol,
            from_port=rule.ports[0] if rule.ports else None,
            to_port=rule.ports[1] if rule.ports else None,
            tags=self._tags(rule.name),
            opts=pulumi.ResourceOptions(parent=self),
            **self._peer(rule.peer),
        )

    def _peer(self, peer: str) -> dict[str, pulumi.Input[str]]:
        if peer in self.groups:
            return {"referenced_security_group_id": self.groups[peer]}
        return {f"cidr_ipv{ipaddress.ip_network(peer).version}": peer}

    def _tags(self, part: str) -> dict[str, str]:
        return tags(self._design, f"{self._design.name}-{part}")
