"""The ports of a cluster's slurmds and, for nodes on a loopback interface, their addresses."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from node.design.folders import Folders
from node.design.model import ClusterDesign, Partition, Settings
from node.design.sites import LocalSite

# Assigns the consecutive ports of a process cluster to its nodes, stable over changes. The code is pure.
#
# Ports are counted from 0 here. A partition has blocks of ports with room to grow, and keeps them as long as
# it exists. So a node keeps its port, and its jobs go on, when other partitions are added, grow or are
# removed.

BLOCK = 64
Blocks = dict[str, tuple[tuple[int, int], ...]]
"""Partition -> its blocks. A block is its first number (from 0) and its size."""


def lay_out_blocks(partitions: Sequence[Partition], before: Blocks) -> Blocks:
    """Return the blocks of all partitions: their present ones, and the first free ones if they need more."""
    found = {p.name: list(before.get(p.name, ())) for p in partitions}
    for partition in partitions:
        mine = found[partition.name]
        missing = partition.max - sum(count for _, count in mine)
        if missing > 0:
            size = -(-missing // BLOCK) * BLOCK
            taken = sorted(block for blocks in found.values() for block in blocks)
            mine.append((_gap(taken, size), size))
    return {name: tuple(parts) for name, parts in found.items()}


def _gap(taken: Sequence[tuple[int, int]], size: int) -> int:
    free = 0
    for first, count in taken:
        if first - free >= size:
            break
        free = max(free, first + count)
    return free


def ports_of_blocks(blocks: Blocks) -> int:
    """Return the number of ports up to the end of the last block."""
    return max((first + count for parts in blocks.values() for first, count in parts), default=0)


def block_numbers(partition: Partition, blocks: Blocks) -> dict[str, int]:
    """Return node -> its number, from 0."""
    numbers = (number for first, count in blocks[partition.name] for number in range(first, first + count))
    return dict(zip(partition.nodes(), numbers, strict=False))


def block_runs(nodes: Sequence[str], ports: Mapping[str, int]) -> Iterator[list[str]]:
    """Group neighbours whose ports are consecutive or equal. Each group is a line of slurm.conf."""
    run: list[str] = []
    for node in nodes:
        if run and ports[node] - ports[run[-1]] not in (0, 1):
            yield run
            run = []
        run.append(node)
    if run:
        yield run


def parse_blocks(kept: Mapping[str, Any]) -> Blocks:
    """Return blocks from JSON, which has lists instead of tuples."""
    return {name: tuple((first, count) for first, count in parts) for name, parts in kept.items()}


PORT_BLOCK = BLOCK


def slurmd_ports(settings: Settings) -> dict[str, int]:
    """Return node -> port. In process mode each partition has a block of ports, from the site's first on.

    Each node needs its own port even if it has its own address, because slurmd listens on every address of
    its host. The option that binds slurmd to one address (NoInAddrAny) binds srun to one as well. But
    slurmstepd calls back to the address from which srun connected, which on a loopback is 127.0.0.1.

    Raises:
        ValueError: The ports would exceed 65535 or include slurmctld's port.
    """
    site, partitions = settings.site, settings.design.partitions
    if not Folders(settings).process:
        return {node: site.slurmd_port for p in partitions for node in p.nodes()}
    placed = lay_out_blocks(partitions, site.blocks)
    last = site.slurmd_port + ports_of_blocks(placed) - 1
    if last > 65535:
        raise ValueError(f"the nodes' ports, {site.slurmd_port} to {last}, do not end at 65535 or before")
    if site.slurmd_port <= site.slurmctld_port <= last:
        raise ValueError(
            f"slurmctld's port {site.slurmctld_port} lies among the nodes' ({site.slurmd_port}-{last})"
        )
    offsets = {node: n for p in partitions for node, n in block_numbers(p, placed).items()}
    return {node: site.slurmd_port + offset for node, offset in offsets.items()}


def slurmd_addresses(settings: Settings) -> dict[str, str]:
    """Return node -> IPv4 address in process mode, by port; empty if nodes have no own addresses."""
    first = settings.site.first_address
    if first is None:
        return {}
    start, ports = int.from_bytes(socket.inet_aton(first), "big"), slurmd_ports(settings)
    return {
        node: socket.inet_ntoa((start + port - settings.site.slurmd_port).to_bytes(4, "big"))
        for node, port in ports.items()
    }


def ports_needed(design: ClusterDesign, placed: Blocks | None = None) -> int:
    """Return the number of consecutive ports for the nodes of a design in process mode, with room for growth.

    Args:
        placed: The blocks of the partitions. `None` means the blocks that they would have in a new cluster.
    """
    return ports_of_blocks(lay_out_blocks(design.partitions, {}) if placed is None else placed)


def reached_at(addresses: Sequence[str]) -> list[tuple[str, object]]:
    """Return the options of a node line in slurm.conf that give the nodes' addresses.

    Args:
        addresses: The nodes' own consecutive addresses. Empty means that nodes have the host's address.
    """
    if not addresses:
        return [("NodeHostname", "localhost"), ("NodeAddr", "127.0.0.1")]
    networks: dict[str, list[int]] = {}
    for address in addresses:
        network, _, last = address.rpartition(".")
        networks.setdefault(network, []).append(int(last))
    ranges = [f"{network}.{span(last[0], last[-1])}" for network, last in networks.items()]
    return [("NodeAddr", ",".join(ranges))]


def span(first: int, last: int) -> str:
    """Return consecutive numbers in the notation of slurm.conf."""
    return str(first) if first == last else f"[{first}-{last}]"


def communication(cloud: object, on_loopback: str, *more: str) -> list[tuple[str, str]]:
    """Return the option with which a daemon of Slurm listens, and all programs look addresses up.

    Args:
        cloud: What is known of the provider. Slurm's defaults are right on all but the local cloud.
        on_loopback: The daemon's word for its host's own address. Without it, it listens on every address.
        more: Further words of the option for the local cloud.
    """
    if not isinstance(cloud, LocalSite):
        return []
    # With IPv4 alone getaddrinfo (AI_ADDRCONFIG) finds nothing while a host has no address but 127.0.0.1.
    parameters = [*(["EnableIPv6"] if cloud.ipv6 else []), *([on_loopback] if cloud.loopback_only else [])]
    parameters += more
    return [("CommunicationParameters", ",".join(parameters))] if parameters else []
