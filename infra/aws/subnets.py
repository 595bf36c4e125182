"""How the cluster's addresses are shared out over its subnets: pure arithmetic."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

from infra.aws.zones import Zones, letter
from infra.errors import UserError
from node import plurals
from node.model import ClusterDesign

PARTS = 8
"""How many private subnets a network is divided into. No region has more zones."""
LONGEST_PREFIX = 28
"""The prefix length of the smallest subnet that AWS makes."""
RESERVED_ADDRESSES = 5
"""How many addresses of each subnet AWS keeps for itself."""


def private_cidrs(private_cidr: str, zones: Sequence[str]) -> dict[str, str]:
    """Divides the private network: zone -> the CIDR of its subnet.

    The letter of a zone decides which part it gets, so that adding or removing a zone moves no other. Only
    where the network is too small for that does the zone's position in the list decide.

    Raises:
        UserError: The network is too small.
    """
    network = ipaddress.ip_network(private_cidr)
    spare_bits = LONGEST_PREFIX - network.prefixlen
    if spare_bits < 0 or 2**spare_bits < len(zones):
        raise UserError(
            f"slurm-stacks:cluster.network.private_cidr: {private_cidr} is too small for {len(zones)} zones "
            f"(AWS makes no subnet smaller than /{LONGEST_PREFIX}); give a larger network, or fewer zones"
        )
    parts = [str(part) for part in network.subnets(new_prefix=subnet_prefix(network.prefixlen))]
    positions = [ord(letter(zone)) - ord("a") for zone in zones]
    if len(parts) < PARTS or len(set(positions)) < len(zones) or max(positions) >= PARTS:
        positions = list(range(len(zones)))
    return {zone: parts[position] for zone, position in zip(zones, positions, strict=True)}


def subnet_prefix(prefix: int) -> int:
    """The prefix length of the private subnets of a private network with this one."""
    return prefix + min(LONGEST_PREFIX - prefix, PARTS.bit_length() - 1)


def check_capacity(design: ClusterDesign, zones: Zones, cidrs: dict[str, str]) -> None:
    """Checks that the subnets have an address for every node.

    The nodes of a placement group, and nodes with EFA, all lie in one subnet.

    Raises:
        UserError: A partition has more nodes than its subnets have addresses.
    """
    free = {
        zone: ipaddress.ip_network(cidr).num_addresses - RESERVED_ADDRESSES for zone, cidr in cidrs.items()
    }
    for partition in design.partitions:
        by_zone = [free[zone] for zone in zones.partitions[partition.name]]
        one_zone = partition.placement == "cluster" or partition.efa
        addresses = max(by_zone) if one_zone else sum(by_zone)
        if partition.max > addresses:
            raise UserError(
                f"partition {partition.name}: {plurals.count(partition.max, 'node')}, but its subnets have "
                f"{plurals.count(addresses, 'address', 'addresses')}"
                f"{' in one zone' if one_zone else ''}; give a larger network.cidr"
            )
