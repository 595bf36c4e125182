"""Where a cluster's slurmds are reached: their ports and, on a loopback, addresses of their own."""

from __future__ import annotations

import socket
from collections.abc import Sequence

from infra.node.model import ClusterDesign, Folders, Settings
from infra.node.slurm import blocks

PORT_BLOCK = blocks.BLOCK
BLOCKS = "blocks"
"""Process mode, of the site's driver: which of the ports are which partition's (`blocks.text`)."""


def slurmd_ports(settings: Settings) -> dict[str, int]:
    """Node -> port. Process mode: from the site's first port, a block of its own for each partition.

    One each, although addresses differ too: slurmd listens on every address of its host. The option that
    binds it to its own (NoInAddrAny) binds srun to one as well, and slurmstepd calls back to where srun's
    connection came from, which on a loopback is 127.0.0.1.

    Raises:
        ValueError: they would run over 65535 or over slurmctld's.
    """
    site, partitions = settings.site, settings.design.partitions
    if not Folders(settings).process:
        return {node: site.slurmd_port for p in partitions for node in p.nodes()}
    placed = blocks.lay_out(partitions, blocks.parse(site.driver.get(BLOCKS)))
    last = site.slurmd_port + blocks.needed(placed) - 1
    if last > 65535:
        raise ValueError(
            f"{last - site.slurmd_port + 1} ports do not fit between {site.slurmd_port} and 65535"
        )
    if site.slurmd_port <= site.slurmctld_port <= last:
        raise ValueError(
            f"slurmctld's port {site.slurmctld_port} lies among the nodes' ({site.slurmd_port}-{last})"
        )
    offsets = {node: n for p in partitions for node, n in blocks.numbers(p, placed).items()}
    return {node: site.slurmd_port + offset for node, offset in offsets.items()}


def slurmd_addresses(settings: Settings) -> dict[str, str]:
    """Node -> IPv4 address, process mode: in the order of the ports; none where nodes have no own."""
    first = settings.site.first_address
    if first is None:
        return {}
    start, ports = int.from_bytes(socket.inet_aton(first), "big"), slurmd_ports(settings)
    return {
        node: socket.inet_ntoa((start + port - settings.site.slurmd_port).to_bytes(4, "big"))
        for node, port in ports.items()
    }


def ports_needed(design: ClusterDesign, placed: blocks.Blocks | None = None) -> int:
    """Process mode: how many ports in a row the nodes of a design take, those left free for growth too.

    Args:
        placed: where the partitions are; None: where they would be in a new cluster.
    """
    return blocks.needed(blocks.lay_out(design.partitions, {}) if placed is None else placed)


def reached_at(addresses: Sequence[str]) -> list[tuple[str, object]]:
    """What a line of nodes in slurm.conf says of where they are.

    Args:
        addresses: the nodes' own, each the next of the one before; none: they have this host's.
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
    """Numbers that follow each other, as slurm.conf writes them."""
    return str(first) if first == last else f"[{first}-{last}]"
