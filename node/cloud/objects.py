"""Objects in a bucket of any cloud."""

from __future__ import annotations

import hashlib

from node.cloud.errors import ServiceError


def checked(content: bytes, sha256: str | None, what: str) -> bytes:
    """Returns an object's content after a check of its digest.

    Args:
        sha256: the expected digest in hexadecimal. `None` means that any content is accepted.
        what: the object's name for the message.

    Raises:
        ServiceError: The digest is wrong.
    """
    digest = hashlib.sha256(content).hexdigest()
    if sha256 not in (None, digest):
        raise ServiceError(f"{what}: its digest is {digest}, and should be {sha256}")
    return content
