"""Renders topology.conf, which tells Slurm which nodes are close together. The code is pure.

A place is a node's path in the cloud's network: the network nodes above its machine, the widest first. Only
machines that run have one. Every node is under exactly one leaf switch.

Slurm never gives a job nodes that no switch joins. Each pool of a partition has a switch of its own that none
joins with others, so a job's nodes are all of one pool. All other nodes are under one root, so a job may have
any of them.

Slurm's traps (docs/internals/slurm_traps.md): missing-topology, topology-levels.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from node.design.model import ClusterDesign, Partition
from node.slurm.hostlist import fold
from node.system import foreign

FILE = "topology.conf"
"""slurmctld ends at its start if it is to read this file and finds none."""
RECORD = "places.json"
"""The file of the elastic daemon's folder with the places by which Slurm chooses nodes now."""
ROOT = "cluster"
POOL = "pool"
"""The root of a pool's nodes is `pool.<partition>-<pool>`."""
UNKNOWN = "unplaced"
"""Nodes of unknown place are below the leaf `unplaced.<partition>`. No other switch has a name like this."""
DIGEST = 8
_NOT_NAME = re.compile(r"[^A-Za-z0-9_-]+")

Place = tuple[str, ...]
"""A node's path in the cloud's network, the widest network node first."""


def wanted(design: ClusterDesign) -> bool:
    """Return whether nodes are chosen by their places or by their pools."""
    return bool(_pools(design)) or any(partition.topology for partition in design.partitions)


def render(design: ClusterDesign, places: Mapping[str, Place]) -> str:
    """Return the content of topology.conf.

    Args:
        places: The places of nodes, as far as they are known. Nodes that no partition with `topology` has are
            left out.
    """
    pools = _pools(design)
    rest = [partition for partition in design.partitions if partition not in pools]
    joined = [_Tree.of(ROOT, rest, places)] if rest else []
    # From 23.11 on Slurm takes the pool whose nodes have the lowest weight. Former releases take the one that
    # stands last here.
    trees = {pool.name: _Tree.of(f"{POOL}.{pool.name}", [pool], places) for pool in reversed(pools)}
    names = _names([place for tree in (*joined, *trees.values()) for place in (*tree.switches, *tree.leaves)])
    lines = [line for tree in joined for line in tree.lines(names)]
    for pool in reversed(pools):
        level = max(trees[other.name].level for other in design.pools_of(pool.slurm_name))
        lines += [*trees[pool.name].lines(names), *trees[pool.name].above(level)]
    return "".join(f"{line}\n" for line in lines)


def _pools(design: ClusterDesign) -> list[Partition]:
    """Return the pools that share a partition and whose nodes no job may have together."""
    return [
        pool for pools in design.pools().values() if len(pools) > 1 and not pools[0].mixed for pool in pools
    ]


@dataclass(frozen=True, slots=True)
class _Tree:
    """The switches that one root joins.

    Attributes:
        switches: Place -> the places below it.
        leaves: Place -> its nodes.
        unknown: Name of a leaf of nodes whose place is not known -> the nodes.
    """

    root: str
    switches: dict[Place, set[Place]]
    leaves: dict[Place, list[str]]
    unknown: dict[str, list[str]]

    @classmethod
    def of(cls, root: str, partitions: Sequence[Partition], places: Mapping[str, Place]) -> _Tree:
        """Return the tree of the nodes of some partitions."""
        tree = cls(root, {}, {}, {})
        for partition in partitions:
            for node in partition.nodes():
                place = tuple(filter(None, places.get(node, ()))) if partition.topology else ()
                if not place:
                    tree.unknown.setdefault(f"{UNKNOWN}.{partition.name}", []).append(node)
                    continue
                # Two trees cannot share a switch.
                place = place if root == ROOT else (root, *place)
                tree.leaves.setdefault(place, []).append(node)
                for depth in range(1, len(place)):
                    tree.switches.setdefault(place[:depth], set()).add(place[: depth + 1])
        # A place that is above another one has switches, and a switch has nodes or switches. So its own nodes
        # get a leaf below it.
        for place in sorted(tree.leaves.keys() & tree.switches.keys()):
            tree.leaves[(*place, "")] = tree.leaves.pop(place)
            tree.switches[place].add((*place, ""))
        return tree

    @property
    def level(self) -> int:
        """The level of a pool's root: how many switches there are from it to the farthest leaf."""
        return max((len(place) - 1 for place in self.leaves), default=0)

    def above(self, level: int) -> Iterator[str]:
        """Yield switches above a pool's root, so that the highest one is of this level.

        Of switches that nothing joins Slurm takes those of the highest level first.
        """
        below = self.root
        for number in range(self.level + 1, level + 1):
            yield f"SwitchName={self.root}.{number} Switches={below}"
            below = f"{self.root}.{number}"

    def lines(self, names: Mapping[Place, str]) -> Iterator[str]:
        """Yield the lines of topology.conf.

        Args:
            names: Place -> the name of its switch.
        """
        top = () if self.root == ROOT else (self.root,)
        if top and not self.switches:
            (nodes,) = self.unknown.values()
            yield f"SwitchName={self.root} Nodes={fold(nodes)}"
            return
        depth = len(top) + 1
        widest = {place[:depth] for place in (*self.switches, *self.leaves) if place != top}
        children = [*(names[place] for place in sorted(widest)), *self.unknown]
        yield f"SwitchName={self.root} Switches={','.join(children)}"
        for place in sorted(self.switches.keys() - {top}):
            below = ",".join(names[child] for child in sorted(self.switches[place]))
            yield f"SwitchName={names[place]} Switches={below}"
        for place in sorted(self.leaves):
            yield f"SwitchName={names[place]} Nodes={fold(self.leaves[place])}"
        for name, nodes in self.unknown.items():
            yield f"SwitchName={name} Nodes={fold(nodes)}"


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
