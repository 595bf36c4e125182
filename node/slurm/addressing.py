"""The ports of a cluster's slurmds and, for nodes on a loopback interface, their addresses."""

from __future__ import annotations

import socket
from collections.abc import Sequence

from node.design.folders import Folders
from node.design.model import ClusterDesign, Settings
from node.design.sites import LocalSite
from node.slurm.port_blocks import Blocks, block_numbers, lay_out_blocks, ports_of_blocks


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
