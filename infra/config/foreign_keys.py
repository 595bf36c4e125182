"""Finds what a word of another tool (`infra.config.foreign_words`) is here, and says what to write."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from infra.config.foreign_words import SECTION, TOOLS, WORDS, Word

Location = tuple[str | int, ...]
MOST_DEEP = 12
"""A section of another tool that is deeper than this is not looked through."""
_PLAIN = re.compile(r"[A-Za-z0-9][\w.:/-]{0,59}( [A-Za-z]\w{0,30}){0,3}")
_BY_NAME: dict[str, list[tuple[str, tuple[str, ...], Word]]] = {}
for _path, _word in WORDS.items():
    *_around, _name = _path.split(".")
    _BY_NAME.setdefault(_name.lower(), []).append((_name, tuple(map(str.lower, _around)), _word))


def find(location: Location, *, exact: bool = False) -> Word | None:
    """What a key is here, by its name and the sections around it; `None` if no other tool has the word.

    Args:
        exact: Whether the case of the key's letters counts. Without it, it decides between two words.
    """
    texts = [part for part in location if isinstance(part, str)]
    around = [part.lower() for part in texts[:-1]]
    found = [
        ((len(inside), name == texts[-1]), word)
        for name, inside, word in _BY_NAME.get(texts[-1].lower(), ())
        if _within(inside, around) and (name == texts[-1] or not exact)
    ]
    return max(found, key=lambda one: one[0])[1] if found else None


def inner(location: Location, value: Any) -> Iterator[tuple[Location, Any]]:
    """The keys inside of another tool's section that have an answer of their own, with their values."""
    if len(location) > MOST_DEEP:
        return
    items: Any = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    for key, below in items:
        here = (*location, key)
        if isinstance(key, str) and find(here) is not None:
            yield here, below
        yield from inner(here, below)


def advice(location: Location, word: Word, value: Any) -> str:
    """What to write instead of a word."""
    if not word.key:
        return word.note
    key, note = word.key, f" ({word.note})" if word.note else ""
    said = _shown(value) if word.same else "…"
    if ":" in key:
        return f"here it is {key}: write {key}: {said} directly below `config:`{note}"
    ours = key.split(".")
    around = [part for part in location[:-1] if isinstance(part, str) and ":" not in part]
    depth = next((n for n in range(len(around), 0, -1) if around == ours[:n]), 0)
    if not depth and ours[0] == "partitions" and len(ours) > 1:
        return f"here it is {key}: write {_nested(ours[1:], said)} in its partition{note}"
    where = " in this section" if depth else ""
    return f"here it is {key}: write {_nested(ours[depth:], said)}{where}{note}"


def rows() -> list[str]:
    """The tables of docs/words.md, line by line."""
    lines = []
    for tool, words in TOOLS.items():
        lines += [f"## {tool}", "", "| there | here | |", "|---|---|---|"]
        for word, answer in words.items():
            key = f"`{answer.key}`" if answer.key else "–"
            note = "its keys have other places here" if answer is SECTION else answer.note
            lines.append(f"| `{word}` | {key} | {note.replace('|', '/')} |")
        lines.append("")
    return lines[:-1]


def _nested(parts: list[str], value: str) -> str:
    """Keys in each other on one line, as YAML: `nodes: {max: 10}`."""
    text = f"{parts[-1]}: {value}"
    for part in reversed(parts[:-1]):
        text = f"{part}: {{{text}}}"
    return text


def _within(inside: tuple[str, ...], around: list[str]) -> bool:
    """Whether the sections are all there, in this order."""
    there = iter(around)
    return all(part in there for part in inside)


def _shown(value: Any) -> str:
    """A value that is a number, a name or yes or no; others are not repeated, for they may be secret."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float) or (isinstance(value, str) and _PLAIN.fullmatch(value)):
        return str(value)
    return "…"
