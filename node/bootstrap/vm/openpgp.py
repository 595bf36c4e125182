"""Reads the fingerprints of the keys in a file that apt or gpgv will trust, with the standard library alone.

The format is RFC 4880's: section 6.2 for the armor, 4.2 for packets, 12.2 for the fingerprints of version 4.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterator

PUBLIC_KEY = 6
"""The tag of a packet with a primary public key. Those of subkeys are signed by it."""
VERSION = 4
ARMOR = re.compile(
    rb"-----BEGIN PGP PUBLIC KEY BLOCK-----\r?\n(?:[\w-]+: [^\n]*\n)*\r?\n(.+?)\r?\n(?:=[\w+/]{4}\r?\n)?"
    rb"-----END",
    re.DOTALL,
)


def fingerprints(key: bytes) -> list[str]:
    """Return the fingerprints of all primary keys in a file, in capital letters.

    Raises:
        ValueError: The file has no keys of version 4, or is damaged.
    """
    prints = []
    try:
        for tag, body in _packets(binary(key)):
            if tag == PUBLIC_KEY:
                if body[0] != VERSION:
                    raise ValueError(f"a key of version {body[0]}")
                prints.append(hashlib.sha1(b"\x99" + len(body).to_bytes(2, "big") + body).hexdigest().upper())
    except IndexError as error:
        raise ValueError(f"the file with keys is damaged: {error}") from None
    if not prints:
        raise ValueError("the file has no public key")
    return prints


def binary(key: bytes) -> bytes:
    """Return the keys of a file without armor, as gpgv reads them.

    Raises:
        ValueError: The armor is damaged.
    """
    if not key.lstrip().startswith(b"-----BEGIN"):
        return key
    try:
        return b"".join(
            base64.b64decode(b"".join(block.split()), validate=True) for block in ARMOR.findall(key)
        )
    except binascii.Error as error:
        raise ValueError(f"the file with keys is damaged: {error}") from None


def _packets(content: bytes) -> Iterator[tuple[int, bytes]]:
    """Return the packets' tags and bodies. Keys have no packets of partial or unknown length."""
    place = 0
    while place < len(content):
        head = content[place]
        if not head & 0x80:
            raise ValueError("the file with keys is damaged: no packet")
        if head & 0x40:
            tag, first = head & 0x3F, content[place + 1]
            wide = 1 if first < 192 else 2 if first < 224 else 5
            raw = content[place + 1 : place + 1 + wide]
            size = (
                first
                if wide == 1
                else ((first - 192) << 8) + raw[1] + 192
                if wide == 2
                else int.from_bytes(raw[1:])
            )
        else:
            tag, wide = (head >> 2) & 0x0F, 1 << (head & 0x03)
            size = int.from_bytes(content[place + 1 : place + 1 + wide])
        start = place + 1 + wide
        if start + size > len(content):
            raise ValueError("the file with keys is damaged: its end is missing")
        yield tag, content[start : start + size]
        place = start + size
