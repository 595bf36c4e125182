"""Numbers with their nouns and times with their units, for messages."""

from __future__ import annotations


def count(number: int, what: str, many: str | None = None) -> str:
    """Return a number with its noun, such as "1 node", "2 nodes" or "2 addresses".

    Args:
        what: The noun in the singular.
        many: The plural. `None` means the singular with an s.
    """
    return f"{number} {what}" if number == 1 else f"{number} {many or f'{what}s'}"


def of_hours(hours: float) -> str:
    """Return a time in words, to the minute; one below a minute to the second."""
    seconds = round(hours * 3600)
    return of_seconds(round(seconds / 60) * 60 if seconds >= 60 else seconds)


def of_seconds(seconds: int) -> str:
    """Return a time in hours, minutes and seconds: `24 h`, `1 h 30 min`."""
    parts = [(seconds // 3600, "h"), (seconds // 60 % 60, "min"), (seconds % 60, "s")]
    return " ".join(f"{number} {unit}" for number, unit in parts if number) or "nothing"
