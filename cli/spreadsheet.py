"""Cells of CSV files, which people open with a spreadsheet."""

from __future__ import annotations


def quoted(value: object) -> object:
    """Return a cell's value, with a mark before a text that a spreadsheet would run as a formula."""
    if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")):
        return f"'{value}"
    return "" if value is None else value
