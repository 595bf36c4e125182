"""How the cluster's addresses are shared out over its subnets, and whether they suffice: pure arithmetic."""

from __future__ import annotations

import ipaddress
import itertools
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from infra.errors import UserError
from infra.program.mode import UNKNOWN

PARTS = 8
"""How many private subnets a network on AWS is divided into. No region has more zones."""
LONGEST_PREFIX = 28
"""The prefix length of the smallest subnet that AWS makes."""
RESERVED_ADDRESSES = {"aws": 5, "gcp": 4}
"""How many addresses of each subnet the cloud keeps for itself."""


@dataclass(frozen=True, slots=True)
class Need:
    """Nodes that need an address each.

    Attributes:
        partition: The partition's name.
        nodes: The most nodes that it has at once.
        zones: The zones in which they may start.
    """

    partition: str
    nodes: int
    zones: frozenset[str]


@dataclass(frozen=True, slots=True)
class Shortage:
    """Zones whose subnets have too few addresses for the nodes that can start nowhere else.

    Attributes:
        needs: Those nodes.
        zones: The zones.
        free: The addresses for nodes that their subnets have together.
    """

    needs: tuple[Need, ...]
    zones: tuple[str, ...]
    free: int

    @property
    def nodes(self) -> int:
        return sum(need.nodes for need in self.needs)

    def partitions(self) -> str:
        """Return the partitions with their nodes: `cpu (200) and gpu (100)`."""
        return " and ".join(f"{need.partition} ({need.nodes})" for need in self.needs)


def labels(zones: Sequence[str]) -> dict[str, str]:
    """Return each zone's label in the names of resources: the zone's letter, `a` of `eu-west-1a`.

    A letter is short, and does not depend on which other zones there are. A zone that a plan does not know,
    and a zone whose letter another one has (a local zone beside the region's own), gets the first free one.
    """
    letters: dict[str, str] = {}
    for zone in zones:
        if not zone.startswith(UNKNOWN) and zone[-1] not in letters.values():
            letters[zone] = zone[-1]
    free = (letter for letter in string.ascii_lowercase if letter not in letters.values())
    return {zone: letters[zone] if zone in letters else next(free) for zone in zones}


def private_cidrs(private_cidr: str, zones: Sequence[str]) -> dict[str, str]:
    """Divide the private network on AWS: zone -> the CIDR of its subnet.

    The letter of a zone decides which part it gets, so that adding or removing a zone moves no other. Only
    where the network is too small for that does the zone's position in the list decide.

    Raises:
        UserError: The network is too small.
    """
    parts = private_parts(private_cidr)
    if len(parts) < len(zones):
        raise UserError(
            f"slurm-stacks:cluster.network.private_cidr: {private_cidr} is too small for {len(zones)} zones "
            f"(AWS makes no subnet smaller than /{LONGEST_PREFIX}); give a larger network, or fewer zones",
            code="network.too-small",
        )
    positions = [ord(label) - ord("a") for label in labels(zones).values()]
    if len(parts) < PARTS or len(set(positions)) < len(zones) or max(positions) >= PARTS:
        positions = list(range(len(zones)))
    return {zone: parts[position] for zone, position in zip(zones, positions, strict=True)}


def private_parts(private_cidr: str) -> list[str]:
    """Return the subnets into which a private network on AWS is divided; empty if it is too small for one."""
    network = ipaddress.ip_network(private_cidr)
    if network.prefixlen > LONGEST_PREFIX:
        return []
    return [str(part) for part in network.subnets(new_prefix=subnet_prefix(network.prefixlen))]


def public_parts(public_cidr: str) -> tuple[str, str] | None:
    """Divide the public network on AWS: the subnet of NAT gateway and login machines, and the controller's.

    Returns:
        Their CIDRs; `None` if the network is too small for both.
    """
    network = ipaddress.ip_network(public_cidr)
    if network.prefixlen >= LONGEST_PREFIX:
        return None
    first, second = network.subnets()
    return str(first), str(second)


def subnet_prefix(prefix: int) -> int:
    """Return the prefix length of the private subnets of a private network with this one."""
    return prefix + min(LONGEST_PREFIX - prefix, PARTS.bit_length() - 1)


def shared(was: Sequence[str], will: Sequence[str]) -> tuple[str, str] | None:
    """Return an old network and a new one that cannot be made while the old one is there; `None` if all can.

    AWS refuses two subnets that share addresses, and a new subnet is made before the old one goes.
    """
    for new in will:
        for old in was:
            if ipaddress.ip_network(new).overlaps(ipaddress.ip_network(old)):
                return old, new
    return None


def free_addresses(cidr: str, provider: str) -> int:
    """Return how many machines a subnet has addresses for."""
    return max(0, ipaddress.ip_network(cidr).num_addresses - RESERVED_ADDRESSES[provider])


def shortage(needs: Sequence[Need], free: Mapping[str, int]) -> Shortage | None:
    """Find nodes of all partitions together that cannot all have an address at once.

    They can if no set of zones has to hold more nodes than it has addresses (Hall's theorem).

    Args:
        needs: The nodes of each partition. Their zones are keys of `free`.
        free: zone -> the addresses for nodes in its subnet.

    Returns:
        The smallest set of zones with too few addresses; `None` if all nodes can be up at once.
    """
    for size in range(1, len(free) + 1):
        for zones in itertools.combinations(free, size):
            bound = tuple(need for need in needs if need.zones <= set(zones))
            candidate = Shortage(bound, zones, sum(free[zone] for zone in zones))
            if candidate.nodes > candidate.free:
                return candidate
    return None
