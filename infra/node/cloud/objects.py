"""What holds for objects of any cloud's bucket."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

from infra.node.cloud.errors import ServiceError


class Entry(NamedTuple):
    """An object in a list.

    Attributes:
        updated: when it was written, in seconds since the epoch (UTC).
        etag: another one for another content.
    """

    updated: float
    etag: str


def checked(content: bytes, sha256: str | None, what: str) -> bytes:
    """An object's content, if it is what is expected.

    Args:
        sha256: the digest that it must have, in hexadecimal; None for any.
        what: the object, for the message.

    Raises:
        ServiceError: the digest is another.
    """
    digest = hashlib.sha256(content).hexdigest()
    if sha256 not in (None, digest):
        raise ServiceError(f"{what}: its digest is {digest}, and should be {sha256}")
    return content
