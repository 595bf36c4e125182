"""Words of more than one place."""

from __future__ import annotations


def count(number: int, what: str, many: str | None = None) -> str:
    """1 node, 2 nodes; 1 address, 2 addresses.

    Args:
        many: the plural, where it is not `what` with an s.
    """
    return f"{number} {what}" if number == 1 else f"{number} {many or f'{what}s'}"
