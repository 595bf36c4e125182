"""The input of every check, and the list of mistakes that it adds to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from infra.config import placeholders
from infra.config.cluster import ClusterConfig
from infra.config.jobs import BenchmarkConfig
from infra.config.mistakes import Location, Mistake, path_of, shown
from infra.config.partitions import PartitionConfig, PoolConfig
from infra.instance_types.catalog import Catalog, InstanceType

CLUSTER: Location = ("slurm-stacks:cluster",)
BENCHMARK: Location = ("slurm-stacks:benchmark",)

POOL: Location = (*CLUSTER, "partitions", 0, "pools", 0)
"""The form of a pool's location."""
MISSING = "nothing: the key is missing"


@dataclass(frozen=True, slots=True)
class CloudLocation:
    """The region, zone and project from the settings of the clouds' providers."""

    aws_region: str | None = None
    gcp_region: str | None = None
    zone: str | None = None
    project: str | None = None

    def region_of(self, provider: str) -> str | None:
        if provider == "aws":
            return self.aws_region
        if provider == "gcp":
            return self.gcp_region or (self.zone.rpartition("-")[0] if self.zone else None)
        return None


@dataclass(slots=True)
class Context:
    """A cluster whose configuration is checked.

    Attributes:
        broken: Locations whose values were found wrong and replaced by placeholders.
        stack: The stack's name, for commands in messages.
        project: The project's folder; `None` if files are not checked.
        region: The stack's region; `None` if it is unknown or not valid.
    """

    cluster: ClusterConfig
    benchmark: BenchmarkConfig | None
    location: CloudLocation
    facts: Catalog
    broken: set[Location]
    stack: str
    project: Path | None = None
    region: str | None = None
    mistakes: list[Mistake] = field(default_factory=list)
    _near: dict[str, list[str]] = field(default_factory=dict)

    @property
    def provider(self) -> str:
        return self.cluster.provider

    def add(self, code: str, location: Location, given: Any, allowed: str, advice: str = "") -> None:
        """Report a mistake, unless its location is known to be wrong already, or has a placeholder.

        Args:
            code: The rule's name. It never changes, and another rule never gets it.
            given: The value. A text that begins with "nothing" is shown without quotes.
        """
        location = self._given(location)
        if not self.sound(location) or placeholders.stands_at(location, given):
            return
        text = given if isinstance(given, str) and given.startswith("nothing") else shown(given)
        mistake = Mistake(code, path_of(location), text, allowed, advice)
        # Pools share what they do not say themselves.
        if mistake not in self.mistakes:
            self.mistakes.append(mistake)

    def sound(self, location: Location) -> bool:
        """Return whether the value is the file's: no mistake is at this location, above or below it."""
        location = self._given(location)
        return all(wrong[: len(location)] != location[: len(wrong)] for wrong in self.broken)

    def groups(self) -> Iterator[tuple[Location, PartitionConfig]]:
        """Yield each kind of nodes with its location: each pool, and each partition without pools."""
        for at, group in self.cluster.groups():
            yield (*CLUSTER, *at), group

    def label(self, at: Location, group: PartitionConfig) -> str:
        """Return nodes' name for a sentence, as `Partition.label` has it: debug, or debug/spot of a pool.

        Args:
            at: Their location, as `groups` yields it.
        """
        if "pools" not in at:
            return group.name
        whole = self.cluster.partitions[int(at[2])].name
        return f"{whole}/{group.name.removeprefix(f'{whole}-')}"

    def _given(self, location: Location) -> Location:
        """Return where the file has the value: what a pool leaves out is its partition's."""
        if len(location) <= len(POOL) or location[:2] != POOL[:2] or location[3] != "pools":
            return location
        index, number, key = location[2], location[4], location[5]
        pool = self.cluster.partitions[int(index)].pools[int(number)]
        if key == "nodes":
            if pool.max is not None:
                return (*location[:5], "max")
        elif key in PoolConfig.model_fields and getattr(pool, str(key)) is not None:
            return location
        return (*location[:3], *location[5:])

    def instance_type(self, name: str) -> InstanceType | None:
        """Return the facts of an instance type, if it is this provider's."""
        machine = self.facts.instance_type(name)
        return machine if machine and machine.provider == self.provider else None

    def near(self, name: str) -> list[str]:
        """Return this provider's instance types with similar names, the most similar first; cached."""
        if name not in self._near:
            self._near[name] = self.facts.near(name, self.provider)
        return self._near[name]

    def default_partition(self) -> PartitionConfig | None:
        partitions = self.cluster.partitions
        return next((p for p in partitions if p.default), partitions[0] if partitions else None)

    def with_machines(self, partition: PartitionConfig) -> PartitionConfig | None:
        """Return the partition whose nodes a partition has; `None` if that is not known."""
        if partition.nodes_of is None:
            return partition
        return next(
            (p for p in self.cluster.partitions if p.name == partition.nodes_of and p.by_pool()), None
        )
