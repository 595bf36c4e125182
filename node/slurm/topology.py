"""Renders topology.conf, which tells Slurm which nodes are close together. The code is pure.

A place is a node's path in the cloud's network: the network nodes above its machine, the widest first. Only
machines that run have one. Every node is under exactly one leaf switch and every switch is under one root, so
a job may have any nodes: Slurm never gives a job nodes that no switch joins.

Slurm's traps (docs/internals/slurm_traps.md): missing-topology.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from node.design.model import ClusterDesign
from node.slurm.hostlist import fold
from node.system import foreign

FILE = "topology.conf"
"""slurmctld ends at its start if it is to read this file and finds none."""
RECORD = "places.json"
"""The file of the elastic daemon's folder with the places by which Slurm chooses nodes now."""
ROOT = "cluster"
UNKNOWN = "unplaced"
"""Nodes of unknown place are below the leaf `unplaced.<partition>`. No other switch has a name like this."""
DIGEST = 8
_NOT_NAME = re.compile(r"[^A-Za-z0-9_-]+")

Place = tuple[str, ...]
"""A node's path in the cloud's network, the widest network node first."""


def wanted(design: ClusterDesign) -> bool:
    """Return whether some partition's nodes are chosen by their places."""
    return any(partition.topology for partition in design.partitions)


def render(design: ClusterDesign, places: Mapping[str, Place]) -> str:
    """Return the content of topology.conf.

    Args:
        places: The places of nodes, as far as they are known. Nodes that no partition with `topology` has are
            left out.
    """
    switches: dict[Place, set[Place]] = {}
    leaves: dict[Place, list[str]] = {}
    top: list[tuple[str, list[str]]] = []
    for partition in design.partitions:
        unknown = []
        for node in partition.nodes():
            place = tuple(filter(None, places.get(node, ()))) if partition.topology else ()
            if not place:
                unknown.append(node)
                continue
            leaves.setdefault(place, []).append(node)
            for depth in range(1, len(place)):
                switches.setdefault(place[:depth], set()).add(place[: depth + 1])
        if unknown:
            top.append((f"{UNKNOWN}.{partition.name}", unknown))
    # A place that is above another one has switches, and a switch has nodes or switches. So its own nodes get
    # a leaf below it.
    for place in sorted(leaves.keys() & switches.keys()):
        leaves[(*place, "")] = leaves.pop(place)
        switches[place].add((*place, ""))
    names = _names([*switches, *leaves])
    widest = sorted({place[:1] for place in (*switches, *leaves)})
    children = [*(names[place] for place in widest), *(name for name, _ in top)]
    lines = [f"SwitchName={ROOT} Switches={','.join(children)}"]
    for place in sorted(switches):
        below = ",".join(names[child] for child in sorted(switches[place]))
        lines.append(f"SwitchName={names[place]} Switches={below}")
    lines += [f"SwitchName={names[place]} Nodes={fold(leaves[place])}" for place in sorted(leaves)]
    lines += [f"SwitchName={name} Nodes={fold(nodes)}" for name, nodes in top]
    return "".join(f"{line}\n" for line in lines)


def _names(places: Iterable[Place]) -> dict[Place, str]:
    """Name each switch by the last part of its place, and distinguish equal names by a digest of all."""
    plain = {place: _NOT_NAME.sub("_", place[-1] or f"{place[-2]}-own") for place in places}
    count = Counter(plain.values())
    return {
        place: name if count[name] == 1 and name != ROOT else f"{name}.{_digest(place)}"
        for place, name in plain.items()
    }


def _digest(place: Place) -> str:
    return hashlib.sha256("\0".join(place).encode()).hexdigest()[:DIGEST]


def read(folder: Path) -> dict[str, Place]:
    """Return the recorded places of nodes. A record that cannot be read counts as none."""
    try:
        content = foreign.record(folder / RECORD)
        return {str(node): tuple(map(str, place)) for node, place in content.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def text(places: Mapping[str, Place]) -> str:
    """Return the content of the record."""
    return json.dumps({node: list(places[node]) for node in sorted(places)}, indent=1) + "\n"


def options(design: ClusterDesign) -> Iterator[tuple[str, object]]:
    """Yield the options of slurm.conf."""
    if wanted(design):
        yield "TopologyPlugin", "topology/tree"
