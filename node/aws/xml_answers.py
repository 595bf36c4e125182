"""Reads named elements of an XML answer, and passes over all others.

An answer of EC2 about a thousand instances has a hundred thousand elements, of which a tenth is wanted. A
tree of all of them would take 20 MiB.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias
from xml.parsers import expat

Shape: TypeAlias = "Mapping[str, Shape] | list[Shape] | None"
"""What is wanted of an element: its text (`None`), children by name, or the same of all its children, which
is in a list of one. Children of lists have several names (`item`, `groupId`)."""


class AnswerError(ValueError):
    """The text is no whole answer of the wanted kind."""


def read(content: bytes, root: str, shape: Mapping[str, Shape]) -> dict[str, Any]:
    """Return the wanted elements, as dictionaries, lists and texts in the form of the shape.

    What the answer does not have is missing. Of an element that is there twice the last one counts.

    Args:
        root: The name that the outermost element must have.
        shape: What is wanted of it.

    Raises:
        AnswerError: The answer is not well-formed to its end, or the outermost element is another.
    """
    reader = _Reader(root, shape)
    try:
        reader.parser.Parse(content, True)
    except expat.ExpatError as error:
        raise AnswerError(f"the answer is no XML, or ends early: {error}") from error
    return reader.found


class _Reader:
    __slots__ = ("_depth", "_open", "_root", "found", "parser")

    def __init__(self, root: str, shape: Mapping[str, Shape]) -> None:
        self.found: dict[str, Any] = {}
        self._root = root
        # The wanted elements that are open, each with what has been read of it.
        self._open: list[tuple[Any, Any]] = [(shape, self.found)]
        # How many elements are open within one that is passed over, with that.
        self._depth = 0
        self.parser = expat.ParserCreate()
        self.parser.buffer_text = True
        self.parser.StartElementHandler = self._begin
        self.parser.EndElementHandler = self._end

    def _begin(self, name: str, _attributes: object) -> None:
        if name != self._root:
            raise AnswerError(f"the answer is a {name}, and no {self._root}")
        self._open.append(self._open[0])
        self.parser.StartElementHandler = self._start

    def _start(self, name: str, _attributes: object) -> None:
        if self._depth:
            self._depth += 1
            return
        shape, into = self._open[-1]
        inner = shape[0] if type(shape) is list else shape.get(name, False) if shape else False
        if inner is False:
            self._depth = 1
            return
        child: Any = {} if type(inner) is dict else []
        if inner is None:
            self.parser.CharacterDataHandler = child.append
        elif type(into) is list:
            into.append(child)
        else:
            into[name] = child
        self._open.append((inner, child))

    def _end(self, name: str) -> None:
        if self._depth:
            self._depth -= 1
            return
        shape, child = self._open.pop()
        if shape is None:
            self.parser.CharacterDataHandler = None
            into, text = self._open[-1][1], "".join(child)
            if type(into) is list:
                into.append(text)
            else:
                into[name] = text
