"""The network on AWS: its exact resources, and that only those who are named can come in."""

from __future__ import annotations

import dataclasses
import ipaddress
from typing import Any

import pytest

from infra.aws.network import AwsNetwork, Zones, security_groups, security_rules
from infra.clouds import firewall
from node.design import model
from node.design.model import AwsSettings, Site, SlurmSettings
from tests.support.aws_mocks import (
    EFS,
    EXISTING,
    LOGIN,
    LUSTRE,
    NFS,
    PUBLIC,
    ZONES,
    aws_design,
    declare,
    ssh_design,
)
from tests.support.recorder import Recorder, counts, unknown

INGRESS = "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule"
EGRESS = "aws:vpc/securityGroupEgressRule:SecurityGroupEgressRule"
GROUP = "aws:ec2/securityGroup:SecurityGroup"
OWN_VPC = {
    "aws:ec2/vpc:Vpc": 1,
    "aws:ec2/defaultSecurityGroup:DefaultSecurityGroup": 1,
    "aws:ec2/internetGateway:InternetGateway": 1,
    "aws:ec2/subnet:Subnet": 4,
    "aws:ec2/routeTable:RouteTable": 3,
    "aws:ec2/route:Route": 3,
    "aws:ec2/routeTableAssociation:RouteTableAssociation": 4,
    "aws:ec2/eip:Eip": 1,
    "aws:ec2/natGateway:NatGateway": 1,
    "aws:ec2/vpcEndpoint:VpcEndpoint": 1,
}
VARIANTS = {
    "ssm": aws_design(),
    "ssh": ssh_design(),
    "ssh-login": ssh_design("203.0.113.0/24", "2001:db8::/32", login=True),
    "existing": aws_design(network=EXISTING),
    "efs-fsx": aws_design(mounts=(EFS, LUSTRE)),
    "all": ssh_design(login=True, mounts=(*NFS, LUSTRE)),
}
EXISTING_ZONES = Zones(
    "eu-west-1a",
    {"cpu": ("eu-west-1a", "eu-west-1b"), "gpu": ("eu-west-1b",)},
    {"eu-west-1a": "subnet-a", "eu-west-1b": "subnet-b"},
)


_made: dict[str, Recorder] = {}


def network(made: Any, *, preview: bool = False, seen: list[AwsNetwork] | None = None) -> Recorder:
    """The resources of a network, declared once for all tests that only read them."""
    if seen is not None:
        return declared(made, seen)
    key = f"{preview} {made}"
    if key not in _made:
        _made[key] = declared(made, preview=preview)
    return _made[key]


def declared(made: Any, seen: list[AwsNetwork] | None = None, *, preview: bool = False) -> Recorder:
    def program() -> None:
        built = AwsNetwork("n", made, EXISTING_ZONES if made.network.vpc else ZONES)
        if seen is not None:
            seen.append(built)

    return declare(program, preview=preview)


def rules_of(recorder: Recorder) -> list[dict[str, Any]]:
    return [
        {**recorder.inputs(name), "way": "in" if kind == INGRESS else "out"}
        for name, kind in recorder.types().items()
        if kind in (INGRESS, EGRESS)
    ]


# --- what there is ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_network_is_exactly_these_resources(variant: str) -> None:
    design = VARIANTS[variant]
    made = network(design)
    rules = security_rules(design)
    assert counts(made) == {
        "slurm-stacks:index:AwsNetwork": 1,
        **({} if design.network.vpc else OWN_VPC),
        GROUP: len(security_groups(design)),
        INGRESS: sum(rule.direction == "in" for rule in rules),
        EGRESS: sum(rule.direction == "out" for rule in rules),
    }
    parents = made.parents()
    assert {parents[name] for name in made.types() if name != "n"} == {"n"}
    assert all(name.startswith("n-") for name in made.types() if name != "n")
    assert made.closed.count("n") == 1


def test_what_can_have_tags_has_the_clusters() -> None:
    made = network(VARIANTS["all"])
    untagged = {
        kind
        for name, kind in made.types().items()
        if name != "n" and made.inputs(name).get("tags", {}).get("slurm-stacks:cluster") != "c"
    }
    assert untagged == {
        "aws:ec2/route:Route",
        "aws:ec2/routeTableAssociation:RouteTableAssociation",
    }


def test_the_ways_out() -> None:
    made = network(VARIANTS["ssm"])
    assert made.inputs("n-public-route")["gatewayId"] == "n-internet-gateway-id"
    assert made.inputs("n-private-route")["natGatewayId"] == "n-nat-id"
    assert made.inputs("n-nat")["subnetId"] == "n-public-id"
    assert made.after("n-nat") >= {"n-internet-gateway", "n-public-route"}, "an address needs the way out"
    assert made.inputs("n-s3-endpoint")["serviceName"] == "com.amazonaws.eu-west-1.s3"
    assert made.inputs("n-s3-endpoint")["vpcEndpointType"] == "Gateway"
    assert made.inputs("n-s3-endpoint")["routeTableIds"] == [
        "n-public-route-table-id",
        "n-private-route-table-id",
        "n-head-route-table-id",
    ]
    for zone in "ab":
        assert made.inputs(f"n-private-{zone}-routes")["routeTableId"] == "n-private-route-table-id"
        assert made.inputs(f"n-private-{zone}-routes")["subnetId"] == f"n-private-{zone}-id"
    assert made.inputs("n-public-b-routes")["routeTableId"] == "n-public-route-table-id"


@pytest.mark.parametrize(
    ("variant", "way"), [("ssm", "nat"), ("ssh", "internet-gateway"), ("ssh-login", "nat")]
)
def test_only_its_route_tells_whether_the_controller_has_a_public_address(variant: str, way: str) -> None:
    made = network(VARIANTS[variant])
    route = made.inputs("n-head-route")
    assert {route.get("gatewayId"), route.get("natGatewayId")} == {f"n-{way}-id", None}
    assert made.inputs("n-head-b-routes")["subnetId"] == "n-head-id"
    ssm = network(VARIANTS["ssm"])
    assert made.inputs("n-head") == ssm.inputs("n-head"), "so it keeps its subnet, and its address in it"


def test_no_subnet_gives_public_addresses_by_itself() -> None:
    made = network(VARIANTS["ssh"])
    subnets = {n: made.inputs(n) for n, kind in made.types().items() if kind == "aws:ec2/subnet:Subnet"}
    assert {n: (s["availabilityZone"], s["mapPublicIpOnLaunch"]) for n, s in subnets.items()} == {
        "n-public": ("eu-west-1b", False),
        "n-head": ("eu-west-1b", False),
        "n-private-b": ("eu-west-1b", False),
        "n-private-a": ("eu-west-1a", False),
    }
    nets = [ipaddress.ip_network(s["cidrBlock"]) for s in subnets.values()]
    whole = ipaddress.ip_network("10.0.0.0/16")
    assert all(isinstance(n, ipaddress.IPv4Network) and n.subnet_of(whole) for n in nets)  # type: ignore[arg-type]
    assert not any(a.overlaps(b) for a in nets for b in nets if a is not b)


def test_names_are_resolved_in_the_vpc() -> None:
    """Machines mount file systems by name, and a node is reached by its host name. Both are DNS names."""
    vpc = network(VARIANTS["ssm"]).inputs("n-vpc")
    assert (vpc["enableDnsSupport"], vpc["enableDnsHostnames"]) == (True, True)
    assert vpc["cidrBlock"] == "10.0.0.0/16"


def test_the_vpcs_own_group_is_closed() -> None:
    made = network(VARIANTS["ssm"])
    default = made.inputs("n-default")
    assert (default["ingress"], default["egress"], default["vpcId"]) == ([], [], "n-vpc-id")


def test_where_machines_are() -> None:
    seen: list[AwsNetwork] = []
    network(VARIANTS["ssm"], seen=seen)
    network(VARIANTS["ssh-login"], seen=seen)
    network(VARIANTS["existing"], seen=seen)
    ssm, ssh, existing = seen
    assert list(ssm.subnets) == ["eu-west-1b", "eu-west-1a"]
    assert ssm.subnet(VARIANTS["ssm"].hosts[0]) is ssm.controller
    controller, login = VARIANTS["ssh-login"].hosts
    assert ssh.subnet(login) is ssh.public
    assert ssh.subnet(controller) is ssh.controller
    assert existing.controller is None
    assert existing.subnet(VARIANTS["existing"].hosts[0]) is existing.private["eu-west-1a"]
    assert list(ssm.groups) == ["controller", "compute"]
    assert list(ssh.groups) == ["controller", "login", "compute"]


def test_an_existing_network_keeps_all_that_it_has() -> None:
    made = network(VARIANTS["existing"])
    assert not set(counts(made)) & set(OWN_VPC)
    groups = [made.inputs(n) for n, kind in made.types().items() if kind == GROUP]
    assert {g["vpcId"] for g in groups} == {"vpc-1"}


def test_a_preview_invents_nothing() -> None:
    made = network(VARIANTS["all"], preview=True)
    assert unknown(made, "n-private-a") == {"vpcId"}
    rules = [name for name, kind in made.types().items() if kind in (INGRESS, EGRESS)]
    assert all("securityGroupId" in unknown(made, name) for name in rules)
    assert made.inputs("n-public")["availabilityZone"] == "eu-west-1b"


def test_the_public_subnet_is_found_by_its_tags() -> None:
    assert network(aws_design()).inputs("n-public")["tags"] == PUBLIC


def test_without_a_nat_gateway_the_way_out_is_the_internet_gateway() -> None:
    """The network also has as many ingress rules as with a NAT gateway."""
    made = network(aws_design(aws=AwsSettings(nat=False)))
    kinds = {key: count for key, count in counts(made).items() if key in OWN_VPC}
    gone = {"aws:ec2/eip:Eip", "aws:ec2/natGateway:NatGateway"}
    assert kinds == {key: count for key, count in OWN_VPC.items() if key not in gone}
    routes = {name: made.inputs(name) for name, kind in made.types().items() if kind.endswith(":Route")}
    assert {route["gatewayId"] for route in routes.values()} == {"n-internet-gateway-id"}
    subnets = {name: made.inputs(name) for name, kind in made.types().items() if kind.endswith(":Subnet")}
    # Image Builder asks for no address, so its machines have what the subnet gives.
    given = {name: subnet["mapPublicIpOnLaunch"] for name, subnet in subnets.items()}
    assert given == {"n-public": False, "n-head": False, "n-private-a": True, "n-private-b": True}

    def rules(of: Recorder) -> dict[str, Any]:
        return {name: of.inputs(name) for name, kind in of.types().items() if kind in (INGRESS, EGRESS)}

    assert rules(made) == rules(network(VARIANTS["ssm"]))


# --- who reaches whom -------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS)
def test_nobody_comes_in_from_the_internet_who_was_not_named(variant: str) -> None:
    design = VARIANTS[variant]
    wide = [r for r in rules_of(network(design)) if r["way"] == "in" and "referencedSecurityGroupId" not in r]
    named = [
        (r.get("cidrIpv4") or r.get("cidrIpv6"), r["fromPort"], r["toPort"], r["ipProtocol"]) for r in wide
    ]
    assert named == [(cidr, 22, 22, "tcp") for cidr in design.access.ssh_cidrs]
    public = {host.role for host in design.hosts if "public" in host.tags}
    assert {r["securityGroupId"] for r in wide} == {f"n-{role}-id" for role in public}


def test_networks_without_mode_ssh_open_nothing() -> None:
    """The configuration refuses this. If it did not, the port would still stay closed."""
    from node.design.model import Access

    design = dataclasses.replace(ssh_design(), access=Access("ssm", ("0.0.0.0/0",)))
    assert [rule for rule in security_rules(design) if rule.direction == "in" and "/" in rule.peer] == []


def test_all_of_the_internet_only_where_the_stack_says_it_twice() -> None:
    from infra.config import ConfigError, parse
    from infra.design import design
    from infra.instance_types.catalog import catalog

    stack = {
        "aws:region": "eu-west-1",
        "slurm-stacks:cluster": {
            "name": "c",
            "provider": "aws",
            "access": {"mode": "ssh", "ssh_cidrs": ["0.0.0.0/0"], "key": "mine"},
            "partitions": [{"name": "cpu", "instance_type": "m5.xlarge"}],
        },
    }
    with pytest.raises(ConfigError, match="allow_ssh_from_anywhere"):
        parse(stack, "test")
    stack["slurm-stacks:cluster"]["access"]["allow_ssh_from_anywhere"] = True  # type: ignore[index]
    cluster_design = design(parse(stack, "test"), catalog())
    assert [
        r.ports for r in security_rules(cluster_design) if r.direction == "in" and r.peer == firewall.ANYWHERE
    ] == [(22, 22)]


def test_efa_needs_the_group_itself_in_and_out() -> None:
    rules = rules_of(network(VARIANTS["ssm"]))
    own = [r for r in rules if r.get("referencedSecurityGroupId") == r["securityGroupId"] == "n-compute-id"]
    assert sorted((r["way"], r["ipProtocol"], r.get("fromPort")) for r in own) == [
        ("in", "-1", None),
        ("out", "-1", None),
    ]


def pairs(design: Any, group: str, peer: str, way: str = "in") -> set[tuple[int, int] | None]:
    return {r.ports for r in security_rules(design) if (r.group, r.peer, r.direction) == (group, peer, way)}


@pytest.mark.parametrize("asked", [False, True])
def test_users_ask_slurmdbd_where_there_is_one(asked: bool) -> None:
    """`sacct` on a login machine and in jobs connects to slurmdbd on the controller."""
    assert firewall.SLURMDBD == (model.SLURMDBD_PORT, model.SLURMDBD_PORT)
    design = ssh_design(login=True, slurm=SlurmSettings(accounting=asked))
    found = {(r.group, r.direction, r.peer) for r in security_rules(design) if r.ports == firewall.SLURMDBD}
    assert found == ({("controller", "in", "login"), ("controller", "in", "compute")} if asked else set())


def test_slurm_between_the_machines() -> None:
    ctld, slurmd = Site.__dataclass_fields__["slurmctld_port"], Site.__dataclass_fields__["slurmd_port"]
    assert (ctld.default, ctld.default) == firewall.SLURMCTLD
    assert (slurmd.default, slurmd.default) == firewall.SLURMD
    design = VARIANTS["ssh-login"]
    assert pairs(design, "compute", "controller") == {firewall.SLURMD, firewall.SSH}
    assert pairs(design, "compute", "login") == {firewall.SLURMD, firewall.SSH}
    assert pairs(design, "controller", "compute") == {
        firewall.SLURMCTLD,
        firewall.KEYS,
        firewall.REPORTS,
        firewall.DNS,
        firewall.SRUN,
        firewall.NFS,
    }
    assert pairs(design, "controller", "login") == {
        firewall.SLURMCTLD,
        firewall.KEYS,
        firewall.DNS,
        firewall.SSH,
        firewall.NFS,
    }
    assert pairs(design, "login", "compute") == {firewall.SRUN}
    assert pairs(design, "login", "controller") == {firewall.SRUN}


def test_every_machine_asks_the_controller_for_names() -> None:
    rules = rules_of(network(VARIANTS["ssh-login"]))
    asked = sorted(
        (rule["ipProtocol"], rule["referencedSecurityGroupId"], rule["securityGroupId"])
        for rule in rules
        if rule["way"] == "in" and (rule.get("fromPort"), rule.get("toPort")) == (53, 53)
    )
    pairs = [(peer, "n-controller-id") for peer in ("n-compute-id", "n-login-id")]
    assert asked == [(protocol, *pair) for protocol in ("tcp", "udp") for pair in pairs]


def test_file_systems() -> None:
    design = aws_design(mounts=(EFS,))
    assert security_groups(design) == ("controller", "compute", "storage")
    assert pairs(design, "storage", "compute") == pairs(design, "storage", "controller") == {(2049, 2049)}
    assert pairs(design, "controller", "compute") == {
        firewall.SLURMCTLD,
        firewall.KEYS,
        firewall.REPORTS,
        firewall.DNS,
        firewall.SRUN,
    }, "it exports nothing"
    lustre = aws_design(mounts=(LUSTRE,), hosts=(*VARIANTS["ssm"].hosts, LOGIN))
    for peer in ("controller", "login", "compute", "storage"):
        assert pairs(lustre, "storage", peer) == {(988, 988), (1018, 1023)}
        assert pairs(lustre, "storage", peer, "out") == {(988, 988), (1018, 1023)}
    assert "storage" not in security_groups(aws_design())


def test_lustres_servers_call_their_clients_back() -> None:
    """The servers take back file locks that way, and evict a client that they cannot reach."""
    design = ssh_design(login=True, mounts=(LUSTRE,))
    found = {
        (rule["securityGroupId"], rule["fromPort"], rule["toPort"], rule["ipProtocol"])
        for rule in rules_of(network(design))
        if rule["way"] == "in" and rule.get("referencedSecurityGroupId") == "n-storage-id"
    }
    assert found == {
        (f"n-{group}-id", first, last, "tcp")
        for group in ("controller", "login", "compute", "storage")
        for first, last in ((988, 988), (1018, 1023))
    }


@pytest.mark.parametrize("variant", VARIANTS)
def test_rules_are_told_apart_by_name_and_say_why(variant: str) -> None:
    rules = security_rules(VARIANTS[variant])
    assert len({rule.name for rule in rules}) == len(rules)
    assert all(rule.description and len(rule.description) < 255 for rule in rules)
