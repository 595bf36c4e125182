"""The cluster's network on AWS: its own VPC or an existing one, and who may reach whom in it."""

from __future__ import annotations

import ipaddress

import pulumi
import pulumi_aws as aws

from infra import addresses
from infra.addresses import labels
from infra.aws import security
from infra.aws.tags import tags
from infra.aws.zones import Zones, with_zones
from infra.clouds import firewall
from infra.errors import UserError
from node import plurals
from node.model import ClusterDesign, Host


class AwsNetwork(pulumi.ComponentResource):
    """A public subnet, a private subnet in each zone, one NAT gateway, and the security groups.

    Without the NAT gateway (`aws.nat: false`) the private subnets reach the internet through the internet
    gateway. That gateway serves only machines with a public address, so machines that start there get one.

    In an existing VPC (`network.aws`) only the security groups are made: the subnets and routes are the
    owner's.

    Attributes:
        vpc: The VPC's id.
        public: The public subnet's id.
        private: zone -> the private subnet's id, first the zones of `Zones.compute`.
        groups: controller | login | compute | storage | image -> the security group's id. Login is there only
            with login machines, storage only where a service serves a file system, and image only where
            images are baked.
        rules: group -> its rules, also those in the group of an existing file system. A group's id
            is known before its rules exist.
        zones: The zones as given.
        routes: What must exist before a machine in a private subnet reaches AWS.

    Args:
        zones: The result of `infra.aws.zones.find`, which asks AWS.
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
            self.rules.setdefault(rule.group, []).append(self._rule(rule))
        self.register_outputs({"vpc": self.vpc, "public": self.public, "private": self.private})

    @property
    def subnets(self) -> dict[str, pulumi.Output[str]]:
        """Zone -> the subnet where its nodes start."""
        return {zone: self.private[zone] for zone in self.zones.compute}

    @property
    def identity(self) -> list[pulumi.Output[str]]:
        """Ids that are others when the network is another one, and not when zones come or go: the VPC's, and
        that of the private subnet in the head's zone, which no list of zones moves."""
        private = None if self._design.network.vpc is not None else self.private.get(self.zones.head)
        return [self.vpc, *([] if private is None else [private])]

    def subnet(self, host: Host) -> pulumi.Output[str]:
        """The subnet of a host: the public one if users reach it at a public address, else a private one."""
        private = self.private.get(self.zones.head)
        return self.public if private is None or "public" in host.tags else private

    def _use_existing(self, vpc: str) -> None:
        network = self._design.network
        self.vpc = pulumi.Output.from_input(vpc)
        self.public = pulumi.Output.from_input(network.public_subnet or network.private_subnets[0])
        for zone, subnet in self.zones.existing.items():
            self.private[zone] = pulumi.Output.from_input(subnet)

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
        public = self._subnet("public", vpc, self.zones.head, str(network.public_cidr))
        self.public = public.id
        label = labels(list(cidrs))
        private = {z: self._subnet(f"private-{label[z]}", vpc, z, cidr) for z, cidr in cidrs.items()}
        self.private = {zone: subnet.id for zone, subnet in private.items()}
        public_table, public_routes = self._table(
            "public", vpc, {self.zones.head: public}, gateway_id=gateway.id
        )
        target: dict[str, pulumi.Input[str]] = (
            {"nat_gateway_id": self._nat(public, [gateway, *public_routes]).id}
            if network.nat
            else {"gateway_id": gateway.id}
        )
        private_table, private_routes = self._table("private", vpc, private, **target)
        # The endpoint is free, and what nodes fetch from S3 then bypasses the NAT gateway, which costs by the
        # byte.
        store = aws.ec2.VpcEndpoint(
            f"{name}-s3-endpoint",
            vpc_id=vpc.id,
            vpc_endpoint_type="Gateway",
            service_name=f"com.amazonaws.{self._design.region}.s3",
            route_table_ids=[public_table, private_table],
            tags=self._tags("s3"),
            opts=opts,
        )
        self.routes = [*public_routes, *private_routes, store]

    def _subnet(self, part: str, vpc: aws.ec2.Vpc, zone: str, cidr: str) -> aws.ec2.Subnet:
        return aws.ec2.Subnet(
            f"{self._name}-{part}",
            vpc_id=vpc.id,
            availability_zone=zone,
            cidr_block=cidr,
            # Other machines ask for their public address, but Image Builder's machines cannot.
            map_public_ip_on_launch=part != "public" and not self._design.network.nat,
            tags=self._tags(part),
            opts=pulumi.ResourceOptions(parent=self),
        )

    def _nat(self, public: aws.ec2.Subnet, after: list[pulumi.Resource]) -> aws.ec2.NatGateway:
        """One NAT gateway for all zones. Each costs as much as a head, and jobs go on without the
        internet."""
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
        """A route table of these subnets, and the resources that route their traffic to the internet.

        Args:
            subnets: zone -> subnet.
            target: The gateway that the traffic goes to.
        """
        name, opts = self._name, pulumi.ResourceOptions(parent=self)
        label = labels(list(subnets))
        table = aws.ec2.RouteTable(
            f"{name}-{part}-route-table", vpc_id=vpc.id, tags=self._tags(part), opts=opts
        )
        made: list[pulumi.Resource] = [
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
            destination_cidr_block=firewall.ANYWHERE,
            **target,
            opts=opts,
        )
        return table.id, [*made, route]

    def _group(self, group: str) -> pulumi.Output[str]:
        """A security group without rules. The provider removes AWS's default rule, which lets all traffic
        out."""
        made = aws.ec2.SecurityGroup(
            f"{self._name}-{group}",
            vpc_id=self.vpc,
            description=f"{group} of the cluster {self._design.name}",
            tags=self._tags(group),
            opts=self._options(group),
        )
        return made.id

    def _rule(self, rule: firewall.Rule) -> pulumi.Resource:
        cls = aws.vpc.SecurityGroupIngressRule if rule.direction == "in" else aws.vpc.SecurityGroupEgressRule
        return cls(
            f"{self._name}-{rule.name}",
            # The group of an existing file system is its owner's.
            security_group_id=self.groups.get(rule.group, rule.group),
            description=rule.description,
            ip_protocol="-1" if rule.ports is None else rule.protocol,
            from_port=rule.ports[0] if rule.ports else None,
            to_port=rule.ports[1] if rule.ports else None,
            tags=self._tags(rule.name),
            opts=self._options(*{rule.group, rule.peer}),
            **self._peer(rule.peer),
        )

    def _options(self, *groups: str) -> pulumi.ResourceOptions:
        """The options of a group or a rule. What a Lustre file system that stays needs stays with it."""
        stays = groups == (security.STORAGE,) and security.lustre_stays(self._design)
        return pulumi.ResourceOptions(parent=self, retain_on_delete=stays or None)

    def _peer(self, peer: str) -> dict[str, pulumi.Input[str]]:
        if peer in self.groups:
            return {"referenced_security_group_id": self.groups[peer]}
        if peer.startswith(security.OWNERS):
            return {"referenced_security_group_id": peer}
        return {f"cidr_ipv{ipaddress.ip_network(peer).version}": peer}

    def _tags(self, part: str) -> dict[str, str]:
        return tags(self._design, f"{self._design.name}-{part}")


def _check_addresses(design: ClusterDesign, head: str, cidrs: dict[str, str]) -> None:
    """Checks, now that all zones are known, that all machines can have an address at once.

    Args:
        head: The zone of the controller and the login machines.
        cidrs: zone -> the CIDR of its private subnet.

    Raises:
        UserError: They cannot.
    """
    private = sum("public" not in host.tags for host in design.hosts)
    needs = [addresses.Need(p.name, p.max, frozenset(p.zones)) for p in design.partitions]
    needs.append(addresses.Need("controller and login", private, frozenset([head])))
    free = {zone: addresses.free_addresses(cidr, "aws") for zone, cidr in cidrs.items()}
    if (short := addresses.shortage(needs, free)) is not None:
        raise UserError(
            f"slurm-stacks:cluster.network.private_cidr: its subnets in {', '.join(short.zones)} have "
            f"{plurals.count(short.free, 'address', 'addresses')}, and machines that can start nowhere "
            f"else are {short.nodes}: {short.partitions()}; give a larger "
            "network.cidr, more zones, or a smaller nodes.max"
        )
