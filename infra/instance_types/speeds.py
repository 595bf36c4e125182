"""What EC2 says of an instance type beyond its size: bandwidth to EBS, network, processor.

Nothing is decided by it, so the catalog does not have it. People compare machines by it, as the published
table of machines does.
"""

from __future__ import annotations

import csv
import functools
from dataclasses import dataclass
from pathlib import Path

FILE = Path(__file__).with_name("facts") / "ec2_speeds.csv"
COLUMNS = ("ebs_mbps", "network", "maker", "ghz")
"""The columns of the table after the type. An empty field means that EC2 does not say it."""


@dataclass(frozen=True, slots=True)
class Speeds:
    """One instance type's.

    Attributes:
        ebs_mbps: The bandwidth to EBS that it always has, Mbit/s; `None` if EC2 names none.
        network: EC2's words for the network: Moderate, Up to 25 Gigabit.
        processor: Its maker and clock: Intel, 2.4 GHz.
    """

    ebs_mbps: int | None
    network: str
    processor: str


def of(name: str) -> Speeds | None:
    """Return what is known of an instance type; `None` of other clouds' and unknown ones."""
    return _table().get(name)


@functools.cache
def _table() -> dict[str, Speeds]:
    with FILE.open(encoding="utf-8", newline="") as file:
        return {row["type"]: _speeds(row) for row in csv.DictReader(file)}


def _speeds(row: dict[str, str]) -> Speeds:
    clock = f"{row['ghz']} GHz" if row["ghz"] else ""
    return Speeds(
        int(row["ebs_mbps"]) if row["ebs_mbps"] else None,
        row["network"],
        ", ".join(filter(None, (row["maker"], clock))),
    )
