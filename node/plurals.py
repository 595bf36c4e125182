"""Numbers with their nouns, for messages."""

from __future__ import annotations


def count(number: int, what: str, many: str | None = None) -> str:
    """Return a number with its noun, such as "1 node", "2 nodes" or "2 addresses".

    Args:
        what: The noun in the singular.
        many: The plural. `None` means the singular with an s.
    """
    return f"{number} {what}" if number == 1 else f"{number} {many or f'{what}s'}"
