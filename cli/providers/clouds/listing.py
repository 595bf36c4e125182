"""What `./cluster list` says of one cluster, and how it is made from a cloud's list of machines."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from infra.instance_types.catalog import catalog
from operations.clouds.cloud import TaggedMachine

State = Literal["up", "off", "silent", "not asked", "not found"]
"""`silent`: it runs and its elastic daemon does not answer. `not asked`: it is on a cloud."""


@dataclass(frozen=True, slots=True)
class Listed:
    """One cluster of a user, as far as it is known without a login.

    Attributes:
        cluster: The cluster's name; `None` if it is not known.
        since: Since when it has existed, in seconds since the epoch; `None` if it is not known.
        nodes: The number of nodes that are up; `None` if nobody was asked.
        node_hours: What its nodes have used so far; `None` if it is not known.
        usd: What that cost. On a cloud it is the cost of all machines that are there now, since their start.
        place: The region, and the project on Google Cloud; empty on the local stack.
    """

    provider: str
    cluster: str | None
    stack: str | None
    since: float | None
    state: State
    nodes: int | None = None
    node_hours: float | None = None
    usd: float | None = None
    place: str = ""


def clusters(
    provider: str, region: str, place: str, machines: Iterable[TaggedMachine], others: Iterable[str] = ()
) -> list[Listed]:
    """Group a region's machines by cluster, with the cost of those that run.

    Args:
        others: Clusters that exist and may have no machine, such as those of AWS Batch.
    """
    by_cluster: dict[str, list[TaggedMachine]] = {name: [] for name in others}
    for machine in machines:
        by_cluster.setdefault(machine.cluster, []).append(machine)
    return [_listed(provider, region, place, name, parts) for name, parts in sorted(by_cluster.items())]


def _listed(provider: str, region: str, place: str, name: str, found: list[TaggedMachine]) -> Listed:
    now, facts = time.time(), catalog()
    running = [machine for machine in found if machine.running]
    hours = {id(machine): max(0.0, now - machine.launched) / 3600 for machine in running}
    prices = [
        (facts.price(machine.instance_type, region, accelerator=machine.accelerator), hours[id(machine)])
        for machine in running
    ]
    known = [price * spent for price, spent in prices if price is not None]
    return Listed(
        provider,
        name,
        next((machine.stack for machine in found if machine.stack), None),
        min((machine.launched for machine in found), default=None),
        "up" if running else "off",
        sum(machine.node for machine in running),
        round(sum(hours[id(machine)] for machine in running if machine.node), 4),
        round(sum(known), 4) if len(known) == len(prices) else None,
        place,
    )
