"""The names of a cluster's machines: a private domain, for which its controller answers.

On machines with a network of their own. Process machines share this host's, and know each other by /etc/hosts
(`infra.local.cloud.view`).
"""

from __future__ import annotations

import ipaddress
import random
import socket
import struct
from collections.abc import Mapping
from pathlib import PurePosixPath

from infra.node.model import ClusterDesign, Folders, Site

PORT = 53
SUFFIX = "slurm-stacks.internal"
"""`internal` is reserved for private networks (ICANN, 2024); both clouds use other names below it."""
_A, _IN, _RECURSE = 1, 1, 0x0100
_HEADER = struct.Struct(">6H")
_RECORD = struct.Struct(">HHIH")


def kept(design: ClusterDesign) -> bool:
    """Whether the controller answers for the names of this cluster."""
    return design.machines == "vm"


def domain(design: ClusterDesign) -> str:
    """A node is `<node>.<domain>`, and every machine searches the domain for a name without a dot."""
    return f"{design.name}.{SUFFIX}"


def folder(folders: Folders) -> PurePosixPath:
    """The folder of files in the form of /etc/hosts that the controller's name server follows."""
    return folders.lib / "names"


def hosts(site: Site) -> dict[str, str]:
    """Host -> address, of the machines that live as long as the cluster."""
    return {site.controller_host: site.controller_address} | site.addresses


def lines(addresses: Mapping[str, str], suffix: str) -> str:
    """Lines of /etc/hosts: the full name first, because that is the one `hostname --fqdn` prints."""
    return "".join(f"{address} {name}.{suffix} {name}\n" for name, address in addresses.items())


def ask(name: str, server: str, seconds: float, port: int = PORT) -> str | None:
    """The IPv4 address that a name server has for a name, past every resolver and cache of this machine.

    Returns:
        None where the server knows no address, or does not answer within `seconds`.
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
        while 0 < answer[at] < 0xC0:  # labels, until the last or a pointer to some that were there before
            at += 1 + answer[at]
        at += 2 if answer[at] else 1
        kind, _, _, length = _RECORD.unpack_from(answer, at)
        at += _RECORD.size
        if kind == _A:
            return str(ipaddress.IPv4Address(answer[at : at + length]))
        at += length
    return None
