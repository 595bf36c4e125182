"""What each node's line in slurm.conf says of its hardware, while some nodes have what was said before.

As slurmctld starts, it ends the job of a node whose CPUs, cores or devices differ from those with which the
job began. So a node keeps its line until it is off and no job holds it (`kept`); the others have the new one
at once. Which line each node has is remembered on the controller's disk: it outlives slurmctld, the elastic
daemon and the machine.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from infra.node.codec import from_json, to_json
from infra.node.model import Accelerator, ClusterDesign, Partition
from infra.node.slurm.hostlist import expand, fold

RECORD, RENEWAL = "hardware.json", "renewal.json"
"""In the elastic daemon's folder: the line of each node; what the daemon asks of the next start."""
FRESH_SECONDS = 60.0
"""How old the daemon's word that a node is empty may be."""
_NOT_FEATURE = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class Hardware:
    """Attributes:
    features: what `--constraint` may ask for.
    """

    cpus: int
    memory_mib: int
    accelerator: Accelerator | None
    features: tuple[str, ...]

    @classmethod
    def of(cls, partition: Partition) -> Hardware:
        """What the stack file says of a partition's nodes."""
        return cls(partition.cpus, partition.memory_mib, partition.accelerator, tuple(_features(partition)))


def _features(partition: Partition) -> Iterator[str]:
    yield _NOT_FEATURE.sub("_", partition.machine)
    yield "spot" if partition.spot else "ondemand"
    if partition.accelerator is not None:
        yield partition.accelerator.type
    if partition.efa:
        yield "efa"


@dataclass(frozen=True, slots=True)
class Line:
    """Attributes:
    nodes: a host list.
    """

    nodes: str
    hardware: Hardware


@dataclass(frozen=True, slots=True)
class Record:
    """How slurm.conf was rendered last.

    Attributes:
        release: of Slurm, as it spells itself.
        seen: kept nodes that the elastic daemon has looked at since: their partitions are in service.
    """

    release: str
    lines: tuple[Line, ...] = ()
    seen: tuple[str, ...] = ()

    def nodes(self) -> dict[str, Hardware]:
        return {node: line.hardware for line in self.lines for node in expand(line.nodes)}

    def kept(self, design: ClusterDesign) -> dict[str, Hardware]:
        """The nodes of a design whose lines are of before, with those lines."""
        found = {}
        before = self.nodes()
        for partition in design.partitions:
            new = Hardware.of(partition)
            for node in partition.nodes():
                if before.get(node, new) != new:
                    found[node] = before[node]
        return found


@dataclass(frozen=True, slots=True)
class Lines:
    """What deviates from the design.

    Attributes:
        kept: nodes with the hardware that their lines keep.
        closed: partitions in which no job may start: of nodes that nobody has looked at yet.
    """

    kept: Mapping[str, Hardware] = field(default_factory=dict)
    closed: frozenset[str] = frozenset()

    def groups(self, nodes: Iterable[str], new: Hardware) -> Iterator[tuple[list[str], Hardware]]:
        """Neighbours with the same hardware: a line each."""
        group: list[str] = []
        last = new
        for node in nodes:
            hardware = self.kept.get(node, new)
            if group and hardware != last:
                yield group, last
                group = []
            group.append(node)
            last = hardware
        if group:
            yield group, last

    def accelerators(self, design: ClusterDesign) -> list[Accelerator]:
        """Of all nodes, those that keep theirs too."""
        found = [p.accelerator for p in design.partitions] + [h.accelerator for h in self.kept.values()]
        return list(dict.fromkeys(a for a in found if a is not None))


def lines(design: ClusterDesign, release: str, lib: Path) -> tuple[Lines, Record]:
    """What the next slurm.conf says, and what is to be remembered of it.

    Args:
        lib: the elastic daemon's folder, with the record of the last rendering and what the daemon asks for.
    """
    before = read(lib)
    kept = before.kept(design) if before is not None else {}
    free, seen = _renewal(lib)
    kept = {node: hardware for node, hardware in kept.items() if node not in free}
    looked_at = (seen | frozenset(before.seen if before is not None else ())) & kept.keys()
    closed = {p.name for p in design.partitions if any(n in kept and n not in looked_at for n in p.nodes())}
    deviation = Lines(kept, frozenset(closed))
    said = [
        Line(fold(group), hardware)
        for p in design.partitions
        for group, hardware in deviation.groups(p.nodes(), Hardware.of(p))
    ]
    return deviation, Record(release, tuple(said), tuple(sorted(looked_at)))


def read(lib: Path) -> Record | None:
    """How slurm.conf was rendered last; None: not yet, or by a release that did not remember."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return from_json(Record, json.loads((lib / RECORD).read_text()))
    return None


def text(record: Record) -> str:
    return json.dumps(to_json(record))


def ask(lib: Path, free: Iterable[str], seen: Iterable[str]) -> None:
    """Have the next start of slurmctld give these nodes their new lines.

    Args:
        free: nodes that are off, and that no job can get until then.
        seen: nodes that keep their lines, and whose partitions may be in service all the same.
    """
    content: dict[str, Any] = {"at": time.monotonic(), "free": sorted(free), "seen": sorted(seen)}
    draft = lib / f".{RENEWAL}.new"
    draft.write_text(json.dumps(content))
    draft.replace(lib / RENEWAL)


def done(lib: Path) -> None:
    """What was asked for has been done: by a later start the nodes may be in use."""
    (lib / RENEWAL).unlink(missing_ok=True)


def _renewal(lib: Path, clock: Callable[[], float] = time.monotonic) -> tuple[frozenset[str], frozenset[str]]:
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        asked = json.loads((lib / RENEWAL).read_text())
        if 0 <= clock() - asked["at"] <= FRESH_SECONDS:
            return frozenset(asked["free"]), frozenset(asked["seen"])
    return frozenset(), frozenset()
