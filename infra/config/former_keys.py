"""Keys of stack files that have a new name. The old name is still read, and `plan` and `up` say so."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from infra.config.mistakes import Location, Mistake, path_of

EACH = "*"
"""Stands for every item of a list."""


@dataclass(frozen=True, slots=True)
class FormerKey:
    """A key that has a new name.

    Attributes:
        section: The keys from `slurm-stacks:cluster` to its section; `EACH` for the items of a list.
    """

    section: tuple[str, ...]
    old: str
    new: str


KEYS = (
    FormerKey((), "machines", "instance_types"),
    FormerKey(("controller",), "machine", "instance_type"),
    FormerKey(("login",), "machine", "instance_type"),
    FormerKey(("partitions", EACH), "machine", "instance_type"),
    FormerKey(("local",), "machines", "isolation"),
)


@dataclass(slots=True)
class Renamed:
    """What was renamed in one stack file.

    Attributes:
        mistakes: The places where the old and the new key are both given.
    """

    mistakes: list[Mistake] = field(default_factory=list)
    _found: list[tuple[Location, FormerKey]] = field(default_factory=list)

    def as_written(self, mistakes: list[Mistake]) -> list[Mistake]:
        """The mistakes, with the keys' names as they are in the file."""
        return [replace(one, path=self._written(one.path)) for one in mistakes]

    def _written(self, path: str) -> str:
        """A path, with the name that its key, or one above it, has in the file."""
        for at, key in self._found:
            new = path_of((*at, key.new))
            if path == new or path.startswith((f"{new}.", f"{new}[")):
                path = path_of((*at, key.old)) + path[len(new) :]
        return path

    def sentences(self) -> tuple[str, ...]:
        """One sentence for each old key, with the paths where it is used."""
        paths: dict[tuple[str, str], list[str]] = {}
        for at, key in self._found:
            paths.setdefault((key.old, key.new), []).append(path_of((*at, key.old)))
        return tuple(
            f"{', '.join(where)}: write {new} instead of {old}; the former name is still read"
            for (old, new), where in paths.items()
        )


def rename(cluster: dict[str, Any], top: Location) -> Renamed:
    """Give the former keys of a section `slurm-stacks:cluster` their new names, in place.

    Args:
        cluster: The section as it is in the file; its values may have any type.
        top: The location of the section.
    """
    renamed = Renamed()
    for key in KEYS:
        for at, section in _sections(cluster, key.section, top):
            if key.old not in section:
                continue
            value = section.pop(key.old)
            if key.new in section:
                renamed.mistakes.append(
                    Mistake(
                        path_of((*at, key.old)),
                        f"a key that stands beside {key.new}, which is its new name",
                        f"one of the two; {key.new} is better",
                        f"remove {key.old}",
                    )
                )
            else:
                section[key.new] = value
                renamed._found.append((at, key))
    return renamed


def _sections(value: Any, path: tuple[str, ...], at: Location) -> Iterator[tuple[Location, dict[str, Any]]]:
    """The sections at a path, with their locations. Anything else is left to the checks of types."""
    if not path:
        if isinstance(value, dict):
            yield at, value
    elif path[0] == EACH:
        for index, item in enumerate(value if isinstance(value, list) else []):
            yield from _sections(item, path[1:], (*at, index))
    elif isinstance(value, dict):
        yield from _sections(value.get(path[0]), path[1:], (*at, path[0]))
