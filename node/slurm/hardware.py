"""A node's hardware: its line in slurm.conf, also after the stack file has changed, and its device files.

When slurmctld starts, it ends the job of a node whose CPUs, cores or devices differ from those at the job's
start. So a node keeps its former line until it is off and no job holds it (`kept`). Other nodes get the new
line at once. The line of each node is recorded on the controller's disk, which outlives slurmctld, the
elastic daemon and the machine.

Slurm's traps (docs/internals/slurm_traps.md): changed-hardware.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from node.design.accelerators import Accelerator
from node.design.model import ClusterDesign, Partition, node_names
from node.slurm.hostlist import expand, fold
from node.system import files, foreign
from node.system.codec import from_json, to_json

RECORD, RENEWAL, CLOSED = "hardware.json", "renewal.json", "renewed-partitions.json"
"""Files in the elastic daemon's folder: the line of each node; the daemon's request for the next start; the
partitions that the daemon has closed until then."""
FRESH_SECONDS = 60.0
"""How old the daemon's request may be. After that a node that was empty may be in use."""
_NOT_FEATURE = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class Hardware:
    """The hardware of a node.

    Attributes:
        features: The features for `--constraint`.
        sockets: 0: the line does not say it, as former releases of this program wrote lines.
    """

    cpus: int
    memory_mib: int
    accelerator: Accelerator | None
    features: tuple[str, ...]
    sockets: int = 0
    tmp_disk_mib: int = 0

    @classmethod
    def of(cls, partition: Partition) -> Hardware:
        """Return the hardware of a partition's nodes by the stack file."""
        return cls(
            partition.cpus,
            partition.memory_mib,
            partition.accelerator,
            tuple(_features(partition)),
            partition.sockets,
            partition.tmp_disk_mib,
        )

    def topology(self) -> list[tuple[str, object]]:
        """Return how the CPUs lie in sockets, as options of a node line.

        Each CPU is a core, also where two of them are threads of one core. With ThreadsPerCore=2 Slurm gives
        a core to one job only, and a node would run half as many jobs of one CPU (slurm.conf, CR_CPU). slurmd
        numbers a machine's threads socket by socket and core by core, so a CPU is the same thread either way.
        """
        if not self.sockets:
            return []
        return [
            ("Sockets", self.sockets),
            ("CoresPerSocket", self.cpus // self.sockets),
            ("ThreadsPerCore", 1),
        ]


def _features(partition: Partition) -> Iterator[str]:
    yield _NOT_FEATURE.sub("_", partition.instance_type)
    yield "spot" if partition.spot else "ondemand"
    if partition.accelerator is not None:
        yield partition.accelerator.type
    if partition.aws.efa:
        yield "efa"


def device_files(accelerator: Accelerator) -> str:
    """Return the device files that a node must have before it registers, in Slurm's notation.

    They are in the order of the devices' numbers. Slurm numbers devices by their files, refuses a name that
    occurs twice, and waits for ever for a file that does not exist. Simulated devices are different spellings
    of the one device file that every container has. Jobs then see CUDA_VISIBLE_DEVICES=0,1,… (a regular file
    would leave it empty).
    """
    if accelerator.simulated:
        return ",".join(f"/dev/{'./' * i}null" for i in range(accelerator.count))
    # Files are named here, because the distributions' Slurm is built without NVML and cannot find them.
    prefix = "/dev/neuron" if accelerator.gres == "neuron" else "/dev/nvidia"
    return f"{prefix}0" if accelerator.count == 1 else f"{prefix}[0-{accelerator.count - 1}]"


@dataclass(frozen=True, slots=True)
class Line:
    """A line of slurm.conf: nodes with the same hardware.

    Attributes:
        nodes: A host list.
    """

    nodes: str
    hardware: Hardware


@dataclass(frozen=True, slots=True)
class Record:
    """The record of the last rendering of slurm.conf.

    Attributes:
        release: Slurm's release, as its programs print it.
        lines: The node lines.
        seen: Nodes with former lines that the elastic daemon has checked since. Their partitions are in
            service.
    """

    release: str
    lines: tuple[Line, ...] = ()
    seen: tuple[str, ...] = ()

    def nodes(self) -> dict[str, Hardware]:
        return {node: line.hardware for line in self.lines for node in expand(line.nodes)}

    def kept(self, design: ClusterDesign) -> dict[str, Hardware]:
        """Return the nodes of a design whose recorded hardware differs from it, with that hardware."""
        return dict(_kept(self.lines, tuple((p.name, p.max, Hardware.of(p)) for p in design.partitions)))


@lru_cache(maxsize=4)  # each pass asks, and there may be tens of thousands of nodes
def _kept(lines: tuple[Line, ...], designed: tuple[tuple[str, int, Hardware], ...]) -> Mapping[str, Hardware]:
    before = Record("", lines).nodes()
    return {
        node: before[node]
        for name, count, new in designed
        for node in node_names(name, count)
        if before.get(node, new) != new
    }


@dataclass(frozen=True, slots=True)
class Lines:
    """The differences between slurm.conf and the design.

    Attributes:
        kept: Node -> the former hardware that its line keeps.
        closed: Partitions in which no job may start, because some of their nodes have not been checked yet.
    """

    kept: Mapping[str, Hardware] = field(default_factory=dict)
    closed: frozenset[str] = frozenset()

    def groups(self, nodes: Iterable[str], new: Hardware) -> Iterator[tuple[list[str], Hardware]]:
        """Group neighbours with the same hardware. Each group is a line."""
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
        """Return the accelerators of all nodes, with those of nodes that keep former lines."""
        used = [p.accelerator for p in design.partitions] + [h.accelerator for h in self.kept.values()]
        return list(dict.fromkeys(a for a in used if a is not None))


def lines(design: ClusterDesign, release: str, lib: Path) -> tuple[Lines, Record]:
    """Return the lines of the next slurm.conf, and the record of it to save.

    Args:
        lib: The elastic daemon's folder, with the record of the last rendering and the daemon's request.
    """
    before = read(lib)
    kept = before.kept(design) if before is not None else {}
    free, seen = _renewal(lib)
    kept = {node: hardware for node, hardware in kept.items() if node not in free}
    looked_at = (seen | frozenset(before.seen if before is not None else ())) & kept.keys()
    unseen = kept.keys() - looked_at
    closed = {
        name
        for name, pools in design.slurm_partitions().items()
        if any(not unseen.isdisjoint(pool.nodes()) for pool in pools)
    }
    deviation = Lines(kept, frozenset(closed))
    values = [
        Line(fold(group), hardware)
        for p in design.partitions
        for group, hardware in deviation.groups(p.nodes(), Hardware.of(p))
    ]
    return deviation, Record(release, tuple(values), tuple(sorted(looked_at)))


def read(lib: Path) -> Record | None:
    """Read the record of the last rendering. `None` means that there is none yet."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return from_json(Record, foreign.record(lib / RECORD))
    return None


def text(record: Record) -> str:
    """Return the record as JSON, for `read`."""
    return json.dumps(to_json(record))


def request_renewal(lib: Path, free: Iterable[str], seen: Iterable[str]) -> None:
    """Request that the next start of slurmctld gives these nodes their new lines.

    Args:
        free: Nodes that are off, and that no job can get before that start.
        seen: Nodes that keep their former lines. Their partitions may be in service.
    """
    content: dict[str, Any] = {"at": time.monotonic(), "free": sorted(free), "seen": sorted(seen)}
    files.write(lib / RENEWAL, json.dumps(content).encode())


def done(lib: Path) -> None:
    """Remove the request, because the nodes may be in use at a later start; slurm.conf opens partitions."""
    (lib / RENEWAL).unlink(missing_ok=True)
    (lib / CLOSED).unlink(missing_ok=True)


def _renewal(lib: Path, clock: Callable[[], float] = time.monotonic) -> tuple[frozenset[str], frozenset[str]]:
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        renewal = foreign.record(lib / RENEWAL)
        if 0 <= clock() - renewal["at"] <= FRESH_SECONDS:
            return frozenset(renewal["free"]), frozenset(renewal["seen"])
    return frozenset(), frozenset()
