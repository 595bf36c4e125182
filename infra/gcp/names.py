"""Names within Google Cloud's lengths."""

from __future__ import annotations

import hashlib

DIGITS = 6


def fitting(whole: str, most: int) -> str:
    """A name of at most `most` characters: as it is where it fits, else its beginning and a digest of all."""
    if len(whole) <= most:
        return whole
    mark = hashlib.sha256(whole.encode()).hexdigest()[:DIGITS]
    return f"{whole[: most - DIGITS - 1].rstrip('-')}-{mark}"
