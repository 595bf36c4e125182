"""Partial responses of Google's APIs: the parameter `fields`.

The source is Google's page on performance (https://developers.google.com/custom-search/v1/performance has it;
each API's discovery document names the parameter): fields are separated by commas, `a/b` and `a(b,c)` select
what is inside of a, of each element if a is a list, and an unknown field is refused (`Invalid field
selection`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

Tree = dict[str, "Tree"]
"""Field -> what is wanted of it; empty means all."""


class BadFieldsError(Exception):
    """The text selects nothing that there is."""


def parse(text: str, kind: Any) -> Tree:
    """Return what a text selects.

    Args:
        text: The parameter's value.
        kind: The descriptor of the answer's message.

    Raises:
        BadFieldsError: The text cannot be read, or the answer has no such field.
    """
    tokens = re.findall(r"\w+|[(),/]", text)
    if "".join(tokens) != text:
        raise BadFieldsError(f"Invalid field selection {text}")
    left = iter([*tokens, ""])
    tree, end = _some(left, kind)
    if end or next(left, None) is not None:
        raise BadFieldsError(f"Invalid field selection {text}")
    return tree


def _some(left: Iterator[str], kind: Any) -> tuple[Tree, str]:
    """Return the selections up to the end of a group, and the token that ends it."""
    tree: Tree = {}
    while True:
        end = _one(next(left), left, kind, tree)
        if end != ",":
            return tree, end


def _one(name: str, left: Iterator[str], kind: Any, tree: Tree) -> str:
    """Add one selection to a tree. Returns the token after it."""
    field = None if kind is None else {field.json_name: field for field in kind.fields}.get(name)
    if field is None:
        raise BadFieldsError(f"Invalid field selection {name}")
    inside = field.message_type
    if inside is not None and inside.GetOptions().map_entry:
        inside = None
    following = next(left)
    within = tree.setdefault(name, {})
    if following == "/":
        return _one(next(left), left, inside, within)
    if following == "(":
        found, end = _some(left, inside)
        within |= found
        if end != ")":
            raise BadFieldsError(f"Invalid field selection {name}")
        return next(left)
    return following


def selected(thing: Any, tree: Tree) -> Any:
    """Return the parts of JSON that a tree selects."""
    if isinstance(thing, list):
        return [selected(one, tree) for one in thing]
    if not tree or not isinstance(thing, dict):
        return thing
    return {name: selected(thing[name], inside) for name, inside in tree.items() if name in thing}
