"""Converts Slurm's host lists, such as `debug-[0-3,07-09]x,login`, to names and back.

This is our own code, because `scontrol show hostnames` starts a process for each call, and because jobs read
their node list where `scontrol` may not be installed.

Slurm's traps (docs/internals/slurm_traps.md): bracket-ends.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import product
from math import prod

LIMIT = 1_000_000
"""The greatest number of names in one host list, and in all lists of a reading together.

So neither a mistyped range nor what somebody else has written can fill the memory.
"""
MOST_FOREIGN = 100_000
"""The greatest number of names in all lists of a reading that users or other machines have written."""
LONGEST = 255
"""The greatest number of characters in a name, as in the DNS. Otherwise a long prefix would fill the memory.
"""

Range = tuple[int, int, int]
"""The first and the last number, and the width to which numbers are padded."""
Expression = list[str | list[Range]]
"""The part between two top-level commas: its literals and bracket groups, in order."""

# A bracket group, a literal, or a separator. Everything else is an error.
_TOKEN = re.compile(r"\[([^\[\]]*)\]|([^\[\],\s]+)|(,)")
_RANGE = re.compile(r"([0-9]+)(?:-([0-9]+))?")
# Only a number at the end is folded: 22.05 refuses text after a bracket (`n[0-1]x`: Invalid hostlist), which
# later releases take.
_NUMBERED = re.compile(r"(.*?)([0-9]+)")
_NAME = re.compile(r"[^\[\],\s]+")


def expand(text: str, most: int = LIMIT) -> list[str]:
    """Return the names in the written order, with duplicates. The empty text has no names.

    Raises:
        ValueError: The text is not a host list, or has more than `most` names or one that is too long.
    """
    names: list[str] = []
    for expression in _parse(text, most):
        parts = [_numbers(part) if isinstance(part, list) else [part] for part in expression]
        names += parts[0] if len(parts) == 1 else map("".join, product(*parts))
    return names


class Expander:
    """Expands the host lists of one reading, which together have at most so many names.

    Equal lists are expanded and counted once: thousands of jobs may have had the same nodes.

    Args:
        most: The greatest number of names of all different lists.
    """

    def __init__(self, most: int = LIMIT) -> None:
        self._left = most
        self._known: dict[str, tuple[str, ...]] = {}

    def __call__(self, text: str) -> tuple[str, ...]:
        """Return the names of a list.

        Raises:
            ValueError: The text is not a host list, or the lists have too many names together.
        """
        if text not in self._known:
            names = tuple(expand(text, self._left))
            self._left -= len(names)
            self._known[text] = names
        return self._known[text]


def fold(names: Iterable[str]) -> str:
    """Return the host list for a set of names: in numeric order, without duplicates, with zero padding.

    Slurm accepts the text: names that do not end in a number are not folded.

    Raises:
        ValueError: A name is empty, or has a comma, a bracket or a space.
    """
    texts: list[tuple[str, str]] = []
    numbers: dict[str, set[str]] = {}
    for name in set(names):
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no host name")
        if match := _NUMBERED.fullmatch(name):
            numbers.setdefault(match[1], set()).add(match[2])
        else:
            texts.append((name, name))
    for prefix, digits in numbers.items():
        inner = _fold_numbers(digits)
        texts.append((prefix, prefix + (inner if len(digits) == 1 else f"[{inner}]")))
    return ",".join(text for _, text in sorted(texts))


def fold_numbers(numbers: Iterable[int]) -> str:
    """Return the short text for a set of numbers, such as job ids: `{1, 2, 3, 7}` -> `1-3,7`."""
    return _fold_numbers({str(number) for number in numbers})


def _parse(text: str, most: int) -> list[Expression]:
    text = text.strip()
    if not text:
        return []
    expressions: list[Expression] = [[]]
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise ValueError(f"host list {text[:200]!r}: a stray {text[position]!r} at {position}")
        group, literal, _ = match.groups()
        if group is not None:
            expressions[-1].append(_ranges(group, text))
        elif literal is not None:
            expressions[-1].append(literal)
        else:
            expressions.append([])
        position = match.end()
    if not all(expressions):
        raise ValueError(f"host list {text[:200]!r}: an empty name")
    if (length := max(map(_length, expressions))) > LONGEST:
        raise ValueError(f"host list {text[:200]!r}: a name of {length} characters, more than {LONGEST}")
    if (total := sum(map(_size, expressions))) > most:
        raise ValueError(f"host list {text[:200]!r}: {total} names, more than {most}")
    return expressions


def _ranges(group: str, text: str) -> list[Range]:
    ranges: list[Range] = []
    for item in group.split(","):
        match = _RANGE.fullmatch(item)
        if match is None:
            raise ValueError(f"host list {text[:200]!r}: {item!r} is no number or range")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise ValueError(f"host list {text[:200]!r}: the range {item!r} runs backwards")
        # As in Slurm, all numbers have the width of the first one.
        ranges.append((first, last, len(match[1])))
    return ranges


def _numbers(ranges: list[Range]) -> list[str]:
    return [f"{n:0{width}d}" for first, last, width in ranges for n in range(first, last + 1)]


def _size(expression: Expression) -> int:
    return prod(
        sum(last - first + 1 for first, last, _ in part) for part in expression if isinstance(part, list)
    )


def _length(expression: Expression) -> int:
    """Return the length of the longest name, or a little more."""
    return sum(
        len(part) if isinstance(part, str) else max(max(width, len(str(last))) for _, last, width in part)
        for part in expression
    )


def _fold_numbers(digits: set[str]) -> str:
    """Fold numbers: `{"9", "10", "11", "07"}` -> `07,9-11`."""
    runs: list[tuple[str, str]] = []
    following = ""
    for number, _, text in sorted((int(text), len(text), text) for text in digits):
        if text == following:
            runs[-1] = (runs[-1][0], text)
        else:
            runs.append((text, text))
        # The next number of the run, in the width of the run's first number.
        following = f"{number + 1:0{len(runs[-1][0])}d}"
    return ",".join(first if first == last else f"{first}-{last}" for first, last in runs)
