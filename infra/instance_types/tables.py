"""The tables of infra/instance_types/facts/: a thousand instance types, of which a command needs a few."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

M = TypeVar("M")

COLUMNS = (
    "vcpus",
    "memory_mib",
    "accelerator",
    "count",
    "placement",
    "network_cards",
    "efa",
    "nvme_gib",
    "local_ssds",
    "previous_generation",
    "spot",
    "offer",
)
"""The columns of a table after the type. An empty field means the default.

`offer` is the number of a list of regions; empty means all regions that were surveyed.
"""


class Table(Mapping[str, M], Generic[M]):
    """The instance types of the tables.

    A row is parsed when its type is asked for: a stack has a few types, and parsing all thousand would take
    most of a command's time.

    Args:
        make: Makes an instance type from its facts.
        by_hand: The instance types that no table has.
    """

    def __init__(self, make: Callable[[dict[str, Any]], M], by_hand: Mapping[str, M]) -> None:
        self._make = make
        self._made = dict(by_hand)
        self._rows: dict[str, tuple[str, str]] = {}
        self._offers: dict[str, list[tuple[str, ...]]] = {}
        self._names: list[str] = list(by_hand)
        self._prices: dict[str, list[tuple[str, str]]] = {}
        for line in text("prices.csv").splitlines()[1:]:
            name, region, price = line.split(",")
            self._prices.setdefault(name, []).append((region, price))

    def add(self, provider: str, file: str, offers: list[list[str]]) -> None:
        """Add the rows of a file.

        Args:
            offers: The lists of regions to which the rows refer by number.
        """
        self._offers[provider] = [tuple(regions) for regions in offers]
        header, *lines = text(file).splitlines()
        assert header.split(",") == ["type", *COLUMNS], file
        for line in lines:
            name, _, rest = line.partition(",")
            self._rows[name] = provider, rest
            self._names.append(name)

    def __getitem__(self, name: str) -> M:
        if name not in self._made:
            self._made[name] = self._read(name, *self._rows[name])
        return self._made[name]

    def __contains__(self, name: object) -> bool:
        return name in self._rows or name in self._made

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def _read(self, name: str, provider: str, row: str) -> M:
        facts: dict[str, Any] = {key: said for key, said in zip(COLUMNS, row.split(","), strict=True) if said}
        if kind := facts.pop("accelerator", None):
            facts["accelerator"] = {"type": kind, "count": int(facts.pop("count"))}
        if (offer := facts.pop("offer", None)) is not None:
            facts["regions"] = self._offers[provider][int(offer)]
        price = {region: float(usd) for region, usd in self._prices.get(name, ())}
        return self._make({"provider": provider, **facts, "price": price})


def text(file: str) -> str:
    """The content of a file in `facts/`."""
    return (Path(__file__).parent / "facts" / file).read_text(encoding="utf-8")
