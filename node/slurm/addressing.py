"""The ports of a cluster's slurmds and, for nodes on a loopback interface, their addresses."""

from __future__ import annotations

import socket
from collections.abc import Sequence

from node.folders import Folders
from node.model import ClusterDesign, Settings
from node.sites import LocalSite
from node.slurm import blocks

PORT_BLOCK = blocks.BLOCK


def slurmd_ports(settings: Settings) -> dict[str, int]:
    """Node -> port. In process mode each partition has its own block of ports, from the site's first port on.

    Each node needs its own port even if it has its own address, because slurmd listens on every address of
    its host. The option that binds slurmd to one address (NoInAddrAny) binds srun to one as well. But
    slurmstepd calls back to the address from which srun connected, which on a loopback is 127.0.0.1.

    Raises:
        ValueError: The ports would exceed 65535 or include slurmctld's port.
    """
    site, partitions = settings.site, settings.design.partitions
    if not Folders(settings).process:
        return {node: site.slurmd_port for p in partitions for node in p.nodes()}
    placed = blocks.lay_out(partitions, site.blocks)
    last = site.slurmd_port + blocks.needed(placed) - 1
    if last > 65535:
        raise ValueError(f"the nodes' ports, {site.slurmd_port} to {last}, do not end at 65535 or before")
    if site.slurmd_port <= site.slurmctld_port <= last:
        raise ValueError(
            f"slurmctld's port {site.slurmctld_port} lies among the nodes' ({site.slurmd_port}-{last})"
        )
    offsets = {node: n for p in partitions for node, n in blocks.numbers(p, placed).items()}
    return {node: site.slurmd_port + offset for node, offset in offsets.items()}


def slurmd_addresses(settings: Settings) -> dict[str, str]:
    """Node -> IPv4 address in process mode, in the order of ports. Empty if nodes have no own addresses."""
    first = settings.site.first_address
    if first is None:
        return {}
    start, ports = int.from_bytes(socket.inet_aton(first), "big"), slurmd_ports(settings)
    return {
        node: socket.inet_ntoa((start + port - settings.site.slurmd_port).to_bytes(4, "big"))
        for node, port in ports.items()
    }


def ports_needed(design: ClusterDesign, placed: blocks.Blocks | None = None) -> int:
    """The number of consecutive ports for the nodes of a design in process mode, with room for growth.

    Args:
        placed: the blocks of the partitions. `None` means the blocks that they would have in a new cluster.
    """
    return blocks.needed(blocks.lay_out(design.partitions, {}) if placed is None else placed)


def reached_at(addresses: Sequence[str]) -> list[tuple[str, object]]:
    """The options of a node line in slurm.conf that give the nodes' addresses.

    Args:
        addresses: the nodes' own consecutive addresses. Empty means that nodes have the host's address.
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
    """Consecutive numbers in the notation of slurm.conf."""
    return str(first) if first == last else f"[{first}-{last}]"


def communication(cloud: object, on_loopback: str) -> list[tuple[str, str]]:
    """The option with which a daemon of Slurm listens, and all programs look addresses up.

    Args:
        cloud: What is known of the provider. Slurm's defaults are right on all but the local cloud.
        on_loopback: The daemon's word for its host's own address. Without it, it listens on every address.
    """
    if not isinstance(cloud, LocalSite):
        return []
    # With IPv4 alone getaddrinfo (AI_ADDRCONFIG) finds nothing while a host has no address but 127.0.0.1.
    told = [*(["EnableIPv6"] if cloud.ipv6 else []), *([on_loopback] if cloud.loopback_only else [])]
    return [("CommunicationParameters", ",".join(told))] if told else []
