"""Which nodes a job may have together, and how many of them it may have now. Pure.

A job gets all of its nodes from one pool of a partition, unless the stack file says `mixed`. All other nodes
of a partition it may have together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from node.design.model import ClusterDesign
from node.elastic.capacity_drains import may_power_up
from node.elastic.failures import Failure
from node.elastic.pending_jobs import PartitionCapacity
from node.elastic.pools import joint_cause
from node.slurm.states import NodeState

Place = str | None
"""The name of a pool of which a job gets all of its nodes; `None` stands for the nodes of no such pool."""


class Placing:
    """The places of the nodes of a design."""

    def __init__(self, design: ClusterDesign) -> None:
        self._group = {node: p for p in design.partitions for node in p.nodes()}
        self._static = design.static_nodes()
        self._pool = {p.name: p.pool for p in design.partitions}
        self._most = {p.name: p.max for p in design.partitions}
        self._place = {
            pool.name: pool.name if len(pools) > 1 and not pool.mixed else None
            for pools in design.slurm_partitions().values()
            for pool in pools
        }
        self._designed = {
            name: self._by_place(pool.name for pool in pools)
            for name, pools in design.slurm_partitions().items()
        }

    def capacities(
        self, nodes: Mapping[str, NodeState], failures: Mapping[str, Failure | None]
    ) -> dict[str, list[PartitionCapacity]]:
        """Return what each of Slurm's partitions has for jobs, also those that people have made.

        Args:
            nodes: Node -> its state.
            failures: Partition or pool of the design -> why it gets no more machines.
        """
        free: Counter[tuple[str, Place]] = Counter()
        for state in nodes.values():
            group = self._group.get(state.name)
            idle = state.is_up and not (state.has_job or state.is_drained)
            if group is not None and (idle or may_power_up(state)):
                for name in state.partitions or (group.slurm_name,):
                    free[name, self._place[group.name]] += 1
        return {
            name: [
                PartitionCapacity(
                    free[name, place],
                    failures.get(place) if place else self._common(groups, failures),
                    pool=self._pool[place] if place else None,
                    most=self._most[place] if place else None,
                    groups=frozenset(groups),
                )
                for place, groups in places.items()
            ]
            for name, places in {**self._designed, **self._made(nodes)}.items()
        }

    def _made(self, nodes: Mapping[str, NodeState]) -> dict[str, dict[Place, list[str]]]:
        """Return the places of the partitions that people have made."""
        found: dict[str, set[str]] = {}
        for state in nodes.values():
            for name in state.partitions:
                group = self._group.get(state.name)
                if name not in self._designed and group is not None and state.name not in self._static:
                    found.setdefault(name, set()).add(group.name)
        # In the order of the stack file.
        return {
            name: self._by_place(group for group in self._pool if group in groups)
            for name, groups in found.items()
        }

    def _common(self, groups: Iterable[str], failures: Mapping[str, Failure | None]) -> Failure | None:
        """Return why none of these partitions and pools gets more machines; `None` if one of them may."""
        causes = [(self._pool[group], failures.get(group)) for group in groups]
        found = [(pool, failure) for pool, failure in causes if failure is not None]
        return joint_cause(found) if len(found) == len(causes) else None

    def _by_place(self, groups: Iterable[str]) -> dict[Place, list[str]]:
        found: dict[Place, list[str]] = {}
        for group in groups:
            found.setdefault(self._place[group], []).append(group)
        return found
