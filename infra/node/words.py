"""Words of more than one place."""

from __future__ import annotations


def count(number: int, what: str) -> str:
    """1 node, 2 nodes."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
