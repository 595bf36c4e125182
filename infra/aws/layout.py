"""How the cluster's addresses are shared out over its subnets: pure arithmetic."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

from infra.aws.zones import Zones, letter
from infra.errors import UserError
from infra.node import words
from infra.node.model import ClusterDesign

SLOTS = 8
"""Private subnets that fit; no region has more zones."""
SMALLEST = 28
"""The smallest subnet that AWS makes, as a prefix length."""
TAKEN = 5
"""Addresses of each subnet that AWS keeps."""


def private_cidrs(whole: str, zones: Sequence[str]) -> dict[str, str]:
    """A part of the private network for each zone.

    A zone's part follows from its letter, so that a zone more or less moves no other. Only where the network
    is too small for that does it follow from the zone's place in the list.

    Raises:
        UserError: the network is too small.
    """
    net = ipaddress.ip_network(whole)
    room = SMALLEST - net.prefixlen
    if room < 0 or 2**room < len(zones):
        raise UserError(
            f"slurm-stacks:cluster.network.private_cidr: {whole} is too small for {len(zones)} zones "
            f"(AWS makes no subnet smaller than /{SMALLEST}); give a larger network, or fewer zones"
        )
    parts = [str(part) for part in net.subnets(min(room, SLOTS.bit_length() - 1))]
    places = [ord(letter(zone)) - ord("a") for zone in zones]
    if len(parts) < SLOTS or len(set(places)) < len(zones) or max(places) >= SLOTS:
        places = list(range(len(zones)))
    return {zone: parts[place] for zone, place in zip(zones, places, strict=True)}


def check_room(design: ClusterDesign, zones: Zones, cidrs: dict[str, str]) -> None:
    """Every node has an address in its subnets.

    Raises:
        UserError: a partition has more nodes than addresses; a placement group and EFA are in one subnet.
    """
    room = {zone: ipaddress.ip_network(cidr).num_addresses - TAKEN for zone, cidr in cidrs.items()}
    for partition in design.partitions:
        own = [room[zone] for zone in zones.partitions[partition.name]]
        one = partition.placement == "cluster" or partition.efa
        free = max(own) if one else sum(own)
        if partition.max > free:
            raise UserError(
                f"partition {partition.name}: {words.count(partition.max, 'node')}, but its subnets have "
                f"{words.count(free, 'address', 'addresses')}"
                f"{' in one zone' if one else ''}; give a larger network.cidr"
            )
