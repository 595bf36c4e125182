"""Reads the fingerprints of the keys in a file that apt or gpgv will trust, with the standard library alone.

The format is RFC 4880's: section 6.2 for the armor, 4.2 for packets, 12.2 for the fingerprints of version 4.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from node.bootstrap.command import CommandError
from node.bootstrap.context import Context
from node.system import files, http_client
from node.system.cloud_api import ServiceError

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
    found = []
    try:
        for tag, body in _packets(binary(key)):
            if tag == PUBLIC_KEY:
                if body[0] != VERSION:
                    raise ValueError(f"a key of version {body[0]}")
                found.append(hashlib.sha1(b"\x99" + len(body).to_bytes(2, "big") + body).hexdigest().upper())
    except IndexError as error:
        raise ValueError(f"the file with keys is damaged: {error}") from None
    if not found:
        raise ValueError("the file has no public key")
    return found


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


# Fetches files whose publisher signs them: they are kept only if a known key has signed them.


@dataclass(frozen=True, slots=True)
class Signer:
    """A publisher.

    Attributes:
        key_url: The URL of its key.
        fingerprint: The fingerprint of the only key that the file there may have.
    """

    key_url: str
    fingerprint: str


def fetch_key(signer: Signer, *, attempts: int) -> bytes:
    """Fetch a publisher's key.

    Raises:
        ServiceError: The key cannot be fetched, or is another one.
    """
    key = _get(signer.key_url, attempts)
    try:
        found = fingerprints(key)
    except ValueError:
        found = []
    if found != [signer.fingerprint]:
        raise ServiceError(
            f"{signer.key_url}: the key is {' and '.join(found) or 'unreadable'}, and should be "
            f"{signer.fingerprint}: what it signs is not installed"
        )
    return key


def fetch_signed(
    context: Context, url: str, signature_url: str, signer: Signer, target: Path, *, attempts: int
) -> None:
    """Fetch a file and its signature.

    Args:
        target: The file to write, in a folder that only root may change. It is there only with a good
            signature.

    Raises:
        ServiceError: One of the files cannot be fetched, or the key is another one.
        CommandError: The file is not signed by that key, or there is no gpgv.
    """
    key = fetch_key(signer, attempts=attempts)
    signature, keyring = (target.with_name(f".{target.name}.{part}") for part in ("sig", "gpg"))
    try:
        content = _get(url, attempts)
        signature.write_bytes(_get(signature_url, attempts))
        keyring.write_bytes(binary(key))
        # apt needs gpgv on every machine. It takes no key but those of the keyring, and binary keyrings only.
        check = ("gpgv", "--homedir", str(target.parent), "--keyring", str(keyring))
        try:
            with files.replacing(target) as draft:
                draft.write(content)
                draft.flush()
                context.run(*check, str(signature), str(draft.name), timeout=60.0)
        except CommandError as error:
            raise CommandError(
                f"{url} is not signed by {signer.fingerprint}, and is not installed: {error}", error.status
            ) from error
    finally:
        for path in (signature, keyring):
            path.unlink(missing_ok=True)


def _get(url: str, attempts: int) -> bytes:
    answer = http_client.call("GET", url, dict, attempts=attempts, timeout=60.0)
    if answer.status != 200:
        raise ServiceError(f"{url}: HTTP status {answer.status}", status=answer.status)
    return answer.body
