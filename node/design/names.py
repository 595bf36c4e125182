"""The DNS names of a cluster's machines: a private domain, for which the cluster's controller answers.

This module is for machines on a cloud's network. Process machines share the network of their host and find
each other by /etc/hosts (`localcloud.hosts_namespace`).
"""

from __future__ import annotations

import ipaddress
import random
import socket
import struct
from collections.abc import Mapping
from pathlib import PurePosixPath

from node.design.folders import Folders
from node.design.model import ClusterDesign, Site

PORT = 53
SUFFIX = "slurm-stacks.internal"
"""The parent domain. `internal` is reserved for private networks (ICANN, 2024). Both clouds use other names
below it."""
_A, _IN, _RECURSE = 1, 1, 0x0100
_HEADER = struct.Struct(">6H")
_RECORD = struct.Struct(">HHIH")


def has_name_server(design: ClusterDesign) -> bool:
    """Return whether the controller answers for the names of this cluster."""
    return design.isolation == "vm"


def domain(design: ClusterDesign) -> str:
    """Return the cluster's domain.

    A node is `<node>.<domain>`. All machines search it for names without a dot.
    """
    return f"{design.name}.{SUFFIX}"


def folder(folders: Folders) -> PurePosixPath:
    """Return the folder that the controller's name server watches.

    Its files have the format of /etc/hosts.
    """
    return folders.lib / "names"


def hosts(site: Site) -> dict[str, str]:
    """Return host -> address, for the machines that exist as long as the cluster does."""
    return {site.controller_host: site.controller_address} | site.addresses


def lines(addresses: Mapping[str, str], suffix: str) -> str:
    """Return lines for /etc/hosts. The full name comes first: `hostname --fqdn` prints the first name."""
    return "".join(f"{address} {name}.{suffix} {name}\n" for name, address in addresses.items())


def ask(name: str, server: str, seconds: float, port: int = PORT) -> str | None:
    """Ask a name server for an IPv4 address, without this machine's resolvers and caches.

    Returns:
        The address. `None` means that the server knows none, or does not answer within `seconds`.
    """
    number = random.getrandbits(16)
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    query = _HEADER.pack(number, _RECURSE, 1, 0, 0, 0) + labels + struct.pack(">BHH", 0, _A, _IN)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as connection:
        connection.settimeout(seconds)
        try:
            connection.connect((server, port))
            connection.send(query)
            answer = connection.recv(4096)
            return _first_address(answer, number, len(query))
        except (OSError, ValueError, struct.error, IndexError):
            return None


def _first_address(answer: bytes, number: int, question_end: int) -> str | None:
    identity, _, _, records, _, _ = _HEADER.unpack_from(answer)
    if identity != number:
        return None
    at = question_end
    for _ in range(records):
        while 0 < answer[at] < 0xC0:  # labels, up to the last one or a pointer to earlier labels
            at += 1 + answer[at]
        at += 2 if answer[at] else 1
        kind, _, _, length = _RECORD.unpack_from(answer, at)
        at += _RECORD.size
        if kind == _A:
            return str(ipaddress.IPv4Address(answer[at : at + length]))
        at += length
    return None
