"""What every check reads, and where it reports."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from infra.config.cluster import BenchmarkConfig, ClusterConfig, PartitionConfig
from infra.config.mistakes import Location, Mistake, path_of, shown
from infra.machines import Catalog, Machine

CLUSTER: Location = ("slurm-stacks:cluster",)
BENCHMARK: Location = ("slurm-stacks:benchmark",)

MISSING = "nothing: the key is missing"


@dataclass(frozen=True, slots=True)
class Place:
    """Where the clouds' own settings put the stack."""

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
    """A cluster under examination."""

    cluster: ClusterConfig
    benchmark: BenchmarkConfig | None
    place: Place
    facts: Catalog
    broken: set[Location]
    """Places whose values have been found wrong already, and replaced."""
    stack: str
    """The stack's name, for the commands that an advice spells out."""
    project: Path | None = None
    """The project's folder; None where files are not looked at."""
    region: str | None = None
    """Where the stack is; None while unknown, or where what is said is no region."""
    mistakes: list[Mistake] = field(default_factory=list)
    _near: dict[str, list[str]] = field(default_factory=dict)

    @property
    def provider(self) -> str:
        return self.cluster.provider

    def add(self, location: Location, given: Any, allowed: str, advice: str = "") -> None:
        """Report a mistake, unless its place is known to be wrong: one mistake, one message.

        Args:
            given: the value; a text that begins with "nothing" is shown as it is.
        """
        if not self.sound(location):
            return
        text = given if isinstance(given, str) and given.startswith("nothing") else shown(given)
        self.mistakes.append(Mistake(path_of(location), text, allowed, advice))

    def sound(self, location: Location) -> bool:
        """Whether everything there is as it was given: nothing above or below it was wrong."""
        return all(wrong[: len(location)] != location[: len(wrong)] for wrong in self.broken)

    def machine(self, name: str) -> Machine | None:
        """Facts of a machine of this provider."""
        machine = self.facts.machine(name)
        return machine if machine and machine.provider == self.provider else None

    def near(self, name: str) -> list[str]:
        """Machines of this provider whose names are like `name`, best first; looked for once a name."""
        if name not in self._near:
            self._near[name] = self.facts.near(name, self.provider)
        return self._near[name]

    def default_partition(self) -> PartitionConfig | None:
        partitions = self.cluster.partitions
        return next((p for p in partitions if p.default), partitions[0] if partitions else None)
