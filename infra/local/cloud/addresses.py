"""Which part of 127.0.0.0/8 is a cluster's: chosen once, remembered, claimed for as long as its agent runs.

All of 127.0.0.0/8 leads to this host without anything being set up. A cluster has a block of it for itself,
from which each of its machines has one address. Clusters of one user see each other's notes. Those of
different users see each other's claims: abstract Unix sockets, which every user sees, which one process has
at a time, and which end with it. Their scope is that of the addresses, a network namespace.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path

from infra.node.bootstrap import files

BLOCK = 1 << 14
"""Addresses of a block: more than there are ports for nodes."""
NODES = 256
"""Offset of the nodes' addresses in the block; those before are the head's."""
# 127.0.0.0/16 has what others use (127.0.0.1, 127.0.1.1, 127.0.0.53), the last block the broadcast address.
FIRST, LAST = 4, 1022
_BASE = 127 << 24
_CLAIM = "slurm-stacks-"
_NOTE = "addresses.json"


def number(address: str) -> int:
    """An IPv4 address as a number."""
    return int.from_bytes(socket.inet_aton(address), "big")


def text(address: int) -> str:
    """The opposite of `number`."""
    return socket.inet_ntoa(address.to_bytes(4, "big"))


def nodes_from(first: str) -> str:
    """The first node's address in the block that begins with `first`."""
    return text(number(first) + NODES)


def host(first: str, index: int) -> str:
    """The address of the head's machine number `index` (from 0) in that block."""
    return text(number(first) + 1 + index)


def remembered(run: Path) -> str | None:
    """The first address of a cluster's block, as it was chosen."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        first = str(json.loads((run / _NOTE).read_text())["first"])
        if first in _blocks(0):
            return first
    return None


def preview(run: Path) -> str:
    """The first address of a cluster's block, or of the one that it would have; nothing is written."""
    return remembered(run) or next(_candidates(run, claimed()))


def settle(run: Path) -> str:
    """The first address of a cluster's block, chosen now if it has none."""
    first = preview(run)
    if remembered(run) is None:
        _remember(run, first)
    return first


def claim(run: Path, *, movable: bool) -> socket.socket | None:
    """Claim the cluster's block for as long as the returned socket is open.

    Args:
        movable: whether another block may be taken where somebody else has claimed this one; False while
            machines run, whose addresses are known.

    Returns:
        None where the block is somebody else's and must be kept, or claims are not to be had.
    """
    first = settle(run)
    others = claimed()
    for candidate in [first, *(_candidates(run, others) if movable else ())]:
        held = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            held.bind(f"\0{_CLAIM}{candidate}")
        except OSError:
            held.close()
            continue
        if candidate != first:
            _remember(run, candidate)
        return held
    return None


def claimed() -> set[str]:
    """First addresses of the blocks that agents on this host, of any user, have claimed."""
    marker = f"@{_CLAIM}"
    with contextlib.suppress(OSError):
        names = [line.split()[-1] for line in Path("/proc/net/unix").read_text().splitlines() if line.strip()]
        return {name.removeprefix(marker) for name in names if name.startswith(marker)}
    return set()


def usable(first: str) -> bool:
    """Whether addresses of a block lead to this host. In some sandboxes only 127.0.0.1 does."""
    with socket.socket() as probe:
        try:
            probe.bind((host(first, 0), 0))
        except OSError:
            return False
    return True


def _candidates(run: Path, others: set[str]) -> Iterator[str]:
    """Blocks that may be taken, better ones first."""
    seed = _seed(run)
    kept = {first for file in run.parent.glob(f"*/{_NOTE}") if (first := remembered(file.parent))}
    kept.discard(remembered(run) or "")
    bound = _bound()
    yield from (first for first in _blocks(seed) if first not in others | kept | bound)
    # Clusters that are gone may have left their notes.
    yield from _blocks(seed)


def _seed(run: Path) -> int:
    """Where the search begins, so that two clusters rarely look at the same block."""
    return int.from_bytes(hashlib.sha256(os.fsencode(run)).digest()[:4], "big")


def _blocks(seed: int) -> Iterable[str]:
    span = LAST - FIRST + 1
    return (text(_BASE + (FIRST + (seed + i) % span) * BLOCK) for i in range(span))


def _bound() -> set[str]:
    """Blocks in which some program listens or has a connection."""
    found = set()
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
            address = int.from_bytes(bytes.fromhex(line.split()[1].partition(":")[0])[::-1], "big")
            if address >> 24 == 127:
                found.add(text(address - address % BLOCK))
    return found


def _remember(run: Path, first: str) -> None:
    files.place(run / _NOTE, json.dumps({"first": first}).encode())
