"""The block of 127.0.0.0/8 that a cluster uses: chosen once, saved, and claimed while its agent runs.

Every address in 127.0.0.0/8 leads to this host without any setup. Each cluster has its own block, and each of
its machines has one address of the block. Clusters of one user see each other's saved blocks. Clusters of
different users see each other's claims. A claim is an abstract Unix socket: every user sees it, only one
process can hold it, and it ends with that process. Like the addresses, it is scoped to a network namespace.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path

from node.system import files, foreign

BLOCK = 1 << 14
"""Addresses in a block: more than there are ports for nodes."""
NODES = 256
"""Offset of the nodes' addresses in the block; the addresses before it belong to the head."""
# Others use 127.0.0.0/16 (127.0.0.1, 127.0.1.1, 127.0.0.53); the last block has the broadcast address.
FIRST, LAST = 4, 1022
_BASE = 127 << 24
PUBLIC = ".ports"
"""The end of the name of a cluster's public note, which lies beside its run directory."""
_CLAIM = "slurm-stacks-"
_NOTE = "addresses.json"


def number(address: str) -> int:
    """Convert an IPv4 address to a number."""
    return int.from_bytes(socket.inet_aton(address), "big")


def text(address: int) -> str:
    """Convert a number to an IPv4 address."""
    return socket.inet_ntoa(address.to_bytes(4, "big"))


def first_node_address(first: str) -> str:
    """Return the first node's address in the block that begins with `first`."""
    return text(number(first) + NODES)


def head_address(first: str, index: int) -> str:
    """Return the address of machine `index` (from 0) of the cluster's head, in that block."""
    return text(number(first) + 1 + index)


def public_note(run: Path) -> Path:
    """Return the file from which other users' commands learn which ports a cluster has reserved.

    All else is in the run directory, which only its owner may enter.
    """
    return run.with_name(f"{run.name}{PUBLIC}")


def saved_block(run: Path) -> str | None:
    """Return the first address of the cluster's saved block; `None` if there is none."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        first = str(foreign.record(run / _NOTE)["first"])
        if first in _blocks(0):
            return first
    return None


def planned_block(run: Path) -> str:
    """Return the first address of the saved block, or of the block that would be chosen. Nothing is saved."""
    return saved_block(run) or next(_candidates(run, claimed_blocks()))


def ensure_block(run: Path) -> str:
    """Return the first address of the cluster's block; choose and save a block if there is none."""
    first = planned_block(run)
    if saved_block(run) is None:
        _remember(run, first)
    return first


def claim(run: Path, *, movable: bool) -> socket.socket | None:
    """Claim the cluster's block for as long as the returned socket is open.

    Args:
        movable: Whether to take another block if this one is claimed already; False while machines run,
            because their addresses are in use.

    Returns:
        The claim; `None` if the block must stay and another process has claimed it, or if this host does not
        allow such sockets.
    """
    first = ensure_block(run)
    others = claimed_blocks()
    for candidate in [first, *(_candidates(run, others) if movable else ())]:
        if (claim := claim_name(candidate)) is not None:
            if candidate != first:
                _remember(run, candidate)
            return claim
    return None


def claim_name(name: str) -> socket.socket | None:
    """Claim a name on this host for as long as the returned socket is open.

    Returns:
        `None` if another process has claimed it, or if this host does not allow such sockets.
    """
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        claim.bind(f"\0{_CLAIM}{name}")
    except OSError:
        claim.close()
        return None
    return claim


def claimed_blocks() -> set[str]:
    """Return the first addresses of all blocks that agents of any user on this host have claimed."""
    return claimed_names()


def claimed_names() -> set[str]:
    """Return all names that agents of any user on this host have claimed (`claim_name`)."""
    marker = f"@{_CLAIM}"
    with contextlib.suppress(OSError):
        names = [line.split()[-1] for line in Path("/proc/net/unix").read_text().splitlines() if line.strip()]
        return {name.removeprefix(marker) for name in names if name.startswith(marker)}
    return set()


def usable(first: str) -> bool:
    """Return whether the addresses of a block lead to this host. In some sandboxes only 127.0.0.1 does."""
    with socket.socket() as probe:
        try:
            probe.bind((head_address(first, 0), 0))
        except OSError:
            return False
    return True


def _candidates(run: Path, others: set[str]) -> Iterator[str]:
    """Yield blocks that may be chosen, the best first."""
    seed = _seed(run)
    kept = {first for file in run.parent.glob(f"*/{_NOTE}") if (first := saved_block(file.parent))}
    kept.discard(saved_block(run) or "")
    bound = _bound()
    yield from (first for first in _blocks(seed) if first not in others | kept | bound)
    # Clusters that are gone may have left their saved blocks behind, so the other blocks follow.
    yield from _blocks(seed)


def _seed(run: Path) -> int:
    """Return where the search begins, so that two clusters rarely choose the same block."""
    return int.from_bytes(hashlib.sha256(os.fsencode(run)).digest()[:4], "big")


def _blocks(seed: int) -> Iterable[str]:
    span = LAST - FIRST + 1
    return (text(_BASE + (FIRST + (seed + i) % span) * BLOCK) for i in range(span))


def _bound() -> set[str]:
    """Return the blocks in which a program listens or has a connection."""
    blocks = set()
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
            address = int.from_bytes(bytes.fromhex(line.split()[1].partition(":")[0])[::-1], "big")
            if address >> 24 == 127:
                blocks.add(text(address - address % BLOCK))
    return blocks


def _remember(run: Path, first: str) -> None:
    files.write(run / _NOTE, json.dumps({"first": first}).encode())
