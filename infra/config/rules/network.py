"""Checks of a stack's region, its network, and who may reach it."""

from __future__ import annotations

import ipaddress
import re

from infra import addresses
from infra.config.mistakes import near
from infra.config.network import DEFAULT_CIDR, Net
from infra.config.partitions import PartitionConfig
from infra.config.rules.context import CLUSTER, MISSING, Context
from infra.config.rules.partitions import NO_METADATA, check_zones
from node.system import plurals

# Shortest prefix that does not count as the whole internet: 0.0.0.0/1 and 128.0.0.0/1 together are all of it.
ANYWHERE = {4: 8, 6: 19}
RESERVED = {
    "0.0.0.0/8": "nobody's: an address that is not known yet",
    "127.0.0.0/8": "each machine's own loopback",
    "169.254.0.0/16": "of links alone: the metadata server answers there",
    "255.255.255.255/32": "everybody's on a link",
}
"""Networks that Python calls private and that neither cloud gives to machines."""
SIDES = "north|south|east|west|central|northeast|northwest|southeast|southwest"
REGION = rf"[a-z]{{2}}(?:-gov|-iso[a-z]?)?-(?:{SIDES})-\d"
"""The form of AWS's regions, because the snapshot does not name all of them."""
PROJECT = r"([a-z0-9.-]+:)?[a-z][a-z0-9-]{4,28}[a-z0-9]"
ANY, HOSTS = "any zone", "controller and login"
MODES = {"aws": ("ssm", "ssh"), "gcp": ("iap", "ssh"), "local": ()}


def check_location(c: Context) -> None:
    """Check region and zone, under the clouds' own keys. Without a valid region no check depends on it."""
    before = len(c.mistakes)
    if c.provider == "aws":
        region = c.location.aws_region
        if region is None:
            c.add(
                "location.aws-region-missing",
                ("aws:region",),
                MISSING,
                "an AWS region",
                "write for example aws:region: eu-central-1",
            )
        elif not re.fullmatch(REGION, region):
            zone = re.fullmatch(f"({REGION})[a-z]", region)
            advice = f"{region} is a zone of {zone[1]}: write {zone[1]}" if zone else _near_region(c, region)
            c.add("location.aws-region", ("aws:region",), region, "an AWS region, like eu-central-1", advice)
    if c.provider == "gcp":
        _project(c)
        zone_name, region = c.location.zone, c.location.gcp_region
        if zone_name is None:
            c.add(
                "location.gcp-zone-missing",
                ("gcp:zone",),
                MISSING,
                "a zone of Google Cloud",
                "write for example gcp:zone: europe-west4-a",
            )
        elif not re.fullmatch(r"[a-z]+(-[a-z]+)+\d+-[a-z]", zone_name):
            c.add(
                "location.gcp-zone", ("gcp:zone",), zone_name, "a zone of Google Cloud, like europe-west4-a"
            )
        elif region is not None and zone_name.rpartition("-")[0] != region:
            c.add(
                "location.gcp-region",
                ("gcp:region",),
                region,
                f"the zone's region, {zone_name.rpartition('-')[0]}",
                "leave it out",
            )
    if len(c.mistakes) == before:
        c.region = c.location.region_of(c.provider)


def _near_region(c: Context, region: str) -> str:
    known = sorted({name for machine in c.facts.machines.values() for name in machine.regions or ()})
    similar = near(region, known)
    return f"did you mean {similar}?" if similar else ""


def _project(c: Context) -> None:
    """Check the project, which even a plan needs: the names of service accounts contain it."""
    project = c.location.project
    if project is None:
        c.add(
            "location.gcp-project-missing",
            ("gcp:project",),
            MISSING,
            "the id of your Google Cloud project",
            "write for example gcp:project: my-project",
        )
    elif not re.fullmatch(PROJECT, project):
        c.add(
            "location.gcp-project",
            ("gcp:project",),
            project,
            "the id of a project, like my-project: not its name or number",
        )


def check_access(c: Context) -> None:
    access, at = c.cluster.access, (*CLUSTER, "access")
    modes = MODES[c.provider]
    if c.provider == "local":
        for key in sorted(access.model_fields_set - {"directory"}):
            if getattr(access, key):
                c.add(
                    "access.local",
                    (*at, key),
                    getattr(access, key),
                    "nothing: the login machine is this machine",
                    "remove it",
                )
        return
    if access.mode is not None and access.mode not in modes:
        c.add("access.mode", (*at, "mode"), access.mode, f"{' or '.join(modes)} on {c.provider}")
    if access.mode == "ssh" and not access.ssh_cidrs:
        c.add(
            "access.no-cidrs",
            (*at, "ssh_cidrs"),
            "nothing: the list is empty",
            "the networks that may log in",
            f"your own address with /32, or mode: {modes[0]}, which needs no open port",
        )
    if c.provider == "aws" and access.mode == "ssh" and access.key is None and not _own_image(c):
        c.add(
            "access.no-key-pair",
            (*at, "key"),
            "nothing: there is no key pair",
            "the name of an EC2 key pair in the region, with mode: ssh",
            "without one nobody can log in: make one in EC2's console, or take mode: ssm, which needs none",
        )
    if access.mode != "ssh" and access.ssh_cidrs:
        c.add(
            "access.cidrs-need-ssh",
            (*at, "ssh_cidrs"),
            access.ssh_cidrs,
            "networks with mode: ssh only",
            "write mode: ssh, or remove them",
        )
    if access.key is not None and c.provider == "gcp":
        c.add(
            "access.key-on-gcp",
            (*at, "key"),
            access.key,
            "nothing on Google Cloud: OS Login knows the users' keys",
            "remove it",
        )
    if access.users and c.provider == "aws":
        c.add(
            "access.users-on-aws",
            (*at, "users"),
            access.users,
            "nothing on AWS: everybody logs in as the image's user",
            "remove it; `users` makes users of the machines (docs/users.md)",
        )
    for index, cidr in enumerate(access.ssh_cidrs):
        net = ipaddress.ip_network(cidr)
        if net.prefixlen < ANYWHERE[net.version] and not access.allow_ssh_from_anywhere:
            c.add(
                "access.open-to-all",
                (*at, "ssh_cidrs", index),
                cidr,
                "your own network",
                "it opens SSH to the whole internet; to mean it, say so twice: allow_ssh_from_anywhere: true",
            )
        elif net.version == 6 and not _may_have_ipv6(c):
            c.add(
                "access.ipv6",
                (*at, "ssh_cidrs", index),
                cidr,
                "an IPv4 network: the cluster's machines have IPv4 addresses only",
                "write the IPv4 address from which you log in, with /32",
            )


def _may_have_ipv6(c: Context) -> bool:
    """Return whether machines may have IPv6 addresses: an existing subnet of AWS may assign them."""
    network = c.cluster.network.aws
    return c.provider == "aws" and network is not None and network.vpc is not None


def check_login(c: Context) -> None:
    """Check that only login machines open their metadata address, and never a controller."""
    where = (*CLUSTER, "login", "open_metadata")
    if not c.cluster.login.open_metadata:
        return
    if c.provider == "local":
        c.add("metadata.local", where, True, NO_METADATA, "remove it")
    elif c.cluster.login.count == 0:
        c.add(
            "metadata.login-on-controller",
            where,
            True,
            "false with login.count: 0: users log in on the controller, whose identity may launch machines "
            "and read the munge key",
            "write login: {count: 1}, or remove it and let jobs ask (open_metadata of a partition)",
        )


def _own_image(c: Context) -> bool:
    """Return whether the login machine has the user's own image, which may have an SSH key in it."""
    image = c.cluster.controller.image
    return c.cluster.image.id is not None or (image is not None and image.id is not None)


def check_network(c: Context) -> None:
    network, at = c.cluster.network, (*CLUSTER, "network")
    if c.provider == "local":
        for key in sorted(network.model_fields_set):
            if getattr(network, key):
                c.add(
                    "network.local",
                    (*at, key),
                    "nothing that applies",
                    "no network: local machines use loopback",
                    f"remove {key}",
                )
        return
    check_zones(c, network.zones, (*at, "zones"))
    for name in ("aws", "gcp"):
        if name != c.provider and getattr(network, name) is not None:
            c.add(
                "provider.other-settings",
                (*at, name),
                "nothing that applies",
                f"settings of {c.provider}",
                f"remove {name}:",
            )
    _existing(c)
    _addresses(c)


def _existing(c: Context) -> None:
    """Check that an existing network is given completely, and without addresses."""
    network, at = c.cluster.network, (*CLUSTER, "network")
    aws, gcp = network.aws, network.gcp
    existing = (aws is not None and aws.vpc is not None) or (gcp is not None and gcp.network is not None)
    if existing:
        for key in ("cidr", "public_cidr", "private_cidr"):
            if getattr(network, key) is not None:
                c.add(
                    "network.cidr-of-existing",
                    (*at, key),
                    getattr(network, key),
                    "nothing: the existing network has its addresses",
                    "remove it",
                )
    if aws is not None:
        parts = {
            "vpc": aws.vpc,
            "public_subnet": aws.public_subnet,
            "private_subnets": aws.private_subnets or None,
        }
        for key, value in parts.items():
            if value is None:
                c.add(
                    "network.aws-incomplete",
                    (*at, "aws", key),
                    MISSING,
                    "all of vpc, public_subnet and private_subnets",
                )
    if gcp is not None:
        for key in ("network", "subnetwork"):
            if getattr(gcp, key) is None:
                c.add("network.gcp-incomplete", (*at, "gcp", key), MISSING, "both of network and subnetwork")


def _addresses(c: Context) -> None:
    network, at = c.cluster.network, (*CLUSTER, "network")
    whole = network.whole()
    for reserved, why in RESERVED.items():
        if whole.version == 4 and whole.overlaps(ipaddress.ip_network(reserved)):
            c.add(
                "network.cidr-reserved",
                (*at, "cidr"),
                network.cidr,
                "a private network that machines can have addresses of",
                f"{reserved} is {why}; write for example {DEFAULT_CIDR}",
            )
            return
    if network.cidr is not None and not (
        whole.version == 4 and 16 <= whole.prefixlen <= 24 and whole.is_private
    ):
        c.add(
            "network.cidr",
            (*at, "cidr"),
            network.cidr,
            "a private IPv4 network from /16 to /24",
            f"for example {DEFAULT_CIDR}",
        )
        return
    # On Google Cloud the subnetwork has all of the network's addresses.
    before = len(c.mistakes)
    if c.provider == "aws":
        _subnets(c, whole)
    if len(c.mistakes) == before and network.aws is None and network.gcp is None:
        _capacity(c)
    for index, value in enumerate(network.peers):
        if _overlap(ipaddress.ip_network(value), whole):
            c.add(
                "network.peer-overlap",
                (*at, "peers", index),
                value,
                f"addresses apart from the cluster's, {whole}",
                "give the cluster another network: network.cidr",
            )


def _capacity(c: Context) -> None:
    """Check that all machines of all partitions can have an address at once."""
    network = c.cluster.network
    key = "private_cidr" if c.provider == "aws" and network.private_cidr is not None else "cidr"
    at = (*CLUSTER, "network", key)
    public, private = network.subnets()
    if c.provider == "aws":
        _public_part(c, str(public))
    short = _shortage(c, str(private if c.provider == "aws" else network.whole()))
    if short is None:
        return
    fits = next((size for size in range(24, 15, -1) if _shortage(c, _part(c, size)) is None), None)
    zones = [zone for zone in short.zones if not zone.startswith(ANY)]
    where = f" in {', '.join(zones)}" if len(zones) == len(short.zones) else ""
    c.add(
        "network.too-small",
        at,
        getattr(network, key) or DEFAULT_CIDR,
        f"{plurals.count(short.nodes, 'address', 'addresses')} for all machines at once{where}: "
        f"{short.partitions()}",
        f"it has {short.free} for them; "
        + ("lower nodes.max" if fits is None else f"a network of /{fits} has enough, or lower nodes.max"),
    )


def _public_part(c: Context, public: str) -> None:
    """Check that the public part has a subnet for the controller, and one for login and the NAT gateway.

    The smallest subnet has addresses for the NAT gateway and as many login machines as there may be.
    """
    if addresses.public_parts(public) is None:
        most = addresses.LONGEST_PREFIX - 1
        c.add(
            "network.public-too-small",
            (*CLUSTER, "network", "public_cidr"),
            public,
            f"/{most} or larger: half of it is the controller's subnet, and AWS makes none smaller than "
            f"/{addresses.LONGEST_PREFIX}",
            "give a larger one",
        )


def _part(c: Context, prefix: int) -> str:
    """Return what a network of this size has for nodes: half of it on AWS, all of it on Google Cloud."""
    return f"10.0.0.0/{prefix + 1 if c.provider == 'aws' else prefix}"


def _shortage(c: Context, cidr: str) -> addresses.Shortage | None:
    """Return machines that cannot all have an address in the nodes' part of the network.

    AWS chooses the zones of partitions that name none when the cluster is made, and this is checked again
    then: here they may be in any zone that the network is divided for.
    """
    cluster = c.cluster
    if c.provider == "gcp":
        hosts = 1 + cluster.login.count
        free = {ANY: addresses.free_addresses(cidr, "gcp")}
        needs = [addresses.Need(c.label(at, p), p.nodes.max, frozenset(free)) for at, p in c.groups()]
        return addresses.shortage([addresses.Need(HOSTS, hosts, frozenset(free)), *needs], free)
    parts = addresses.private_parts(cidr)
    named = list(dict.fromkeys(zone for _, p in c.groups() for zone in _zones_of(c, p)))
    if len(named) > len(parts):
        return None  # the network is too small for these zones, which has a message of its own
    every = [*named, *(f"{ANY} {number}" for number in range(len(named), len(parts)))]
    free = {zone: addresses.free_addresses(part, "aws") for zone, part in zip(every, parts, strict=True)}
    login = 0 if cluster.access.mode == "ssh" else cluster.login.count
    needs = [addresses.Need("login", login, frozenset(free))] if login else []
    for at, partition in c.groups():
        zones = _zones_of(c, partition)
        # Neither a placement group nor EFA spans zones.
        if partition.placement == "cluster" or (partition.aws is not None and partition.aws.efa):
            zones = zones[:1] or ([every[0]] if partition.nodes.max > max(free.values()) else [])
        needs.append(addresses.Need(c.label(at, partition), partition.nodes.max, frozenset(zones or every)))
    return addresses.shortage(needs, free)


def _zones_of(c: Context, partition: PartitionConfig) -> list[str]:
    """Return the zones that the stack file names for a partition; empty if AWS chooses them."""
    return list(partition.zones or c.cluster.network.zones)


def _subnets(c: Context, whole: Net) -> None:
    """Check that the two subnets are in the network and do not overlap."""
    network, at = c.cluster.network, (*CLUSTER, "network")
    public, private = network.subnets()
    for key, net in (("public_cidr", public), ("private_cidr", private)):
        if not _inside(net, whole):
            c.add("network.subnet-outside", (*at, key), str(net), f"a part of the cluster's network, {whole}")
    if _overlap(public, private):
        key, other = ("private_cidr", public) if network.private_cidr else ("public_cidr", private)
        given = getattr(network, key)
        c.add(
            "network.subnet-overlap",
            (*at, key),
            given,
            f"addresses apart from the other subnet's, {other}",
            "give both, apart",
        )


def _overlap(a: Net, b: Net) -> bool:
    return a.version == b.version and a.overlaps(b)


def _inside(part: Net, whole: Net) -> bool:
    if isinstance(part, ipaddress.IPv4Network) and isinstance(whole, ipaddress.IPv4Network):
        return part.subnet_of(whole)
    return False
