"""A sweep's plan, and the check of its arguments. Pure: a plan is plain data, which its runs' labels hold."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from infra.errors import EXIT_USAGE, UserError
from node.system import plurals
from node.system.codec import from_json, to_json

DEFAULT_NODES = (1, 2, 4)
MAX_RUNS = 200


class SweepRequest(NamedTuple):
    """The arguments of a sweep: every combination of them is run.

    Attributes:
        nodes: Numbers of nodes, ascending, without duplicates.
        partitions: Names of partitions, in the given order. Empty: that of the benchmark.
        gpus: Numbers of GPUs a node, ascending. Empty: the benchmark's, or all that a node of the partition
            has.
    """

    nodes: tuple[int, ...]
    repeat: int
    partitions: tuple[str, ...] = ()
    gpus: tuple[int, ...] = ()

    def __str__(self) -> str:
        text = f"--nodes {','.join(map(str, self.nodes))}"
        if self.partitions:
            text += f" --partition {','.join(self.partitions)}"
        if self.gpus:
            text += f" --gpus {','.join(map(str, self.gpus))}"
        return text + (f" --repeat {self.repeat}" if self.repeat > 1 else "")


class PartitionLimits(NamedTuple):
    """What runs in a partition may ask for.

    Attributes:
        nodes: The largest number of nodes.
        gpus: The number of GPUs of a node that compute: simulated ones do not.
        key: The stack file's key that sets `nodes`, for messages.
    """

    name: str
    nodes: int
    gpus: int
    key: str


class Case(NamedTuple):
    """What distinguishes the scripts of a sweep.

    Attributes:
        partition: The partition; empty means that of the benchmark.
        gpus: GPUs a node. `None`: the benchmark's, or all that a node of the partition has.
    """

    partition: str
    gpus: int | None
    nodes: int

    @property
    def key(self) -> str:
        """The name of the case's script; a sweep over nodes alone has the plain number."""
        gpus = "" if self.gpus is None else f" gpus {self.gpus}"
        return f"{self.nodes}{self.partition and f' {self.partition}'}{gpus}"

    @property
    def where(self) -> str:
        """The case without its nodes, for a table or a sentence; empty for the benchmark's own."""
        gpus = "" if self.gpus is None else f"{plurals.count(self.gpus, 'GPU')} a node"
        return ", ".join(filter(None, (self.partition, gpus)))


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """One training of a sweep.

    Attributes:
        number: Position in the order of the runs, from 1.
        repetition: Which repetition of this number of nodes it is, from 1.
        folder: The run's folder, relative to `<shared>/bench`.
        job: Slurm's job id. `None` means that the run is not known to be submitted.
        refused: Slurm's message if it refused the job.
        partition: The partition that was asked for. Empty: that of the benchmark.
        gpus: The GPUs a node that were asked for. `None`: none were.
    """

    number: int
    nodes: int
    repetition: int
    folder: str
    job: int | None = None
    refused: str | None = None
    partition: str = ""
    gpus: int | None = None

    @property
    def case(self) -> Case:
        return Case(self.partition, self.gpus, self.nodes)


@dataclass(frozen=True, slots=True)
class Label:
    """What the folder of a run says of it and of its sweep; see `Plan`."""

    partition: str
    began: str
    repeat: int
    run: PlannedRun


@dataclass(frozen=True, slots=True)
class Plan:
    """A sweep.

    Attributes:
        partition: The partition of the benchmark, where runs that name none are.
        began: When it began, as text: 2026-11-21 14:11 UTC.
    """

    stack: str
    partition: str
    began: str
    repeat: int
    runs: tuple[PlannedRun, ...]

    @classmethod
    def of(cls, stack: str, seen: Sequence[Mapping[str, Any]]) -> Plan:
        """Return the plan that the labels of its runs hold.

        Args:
            seen: What the cluster says of the runs under way (`node.sweep.Sweep.open`).

        Raises:
            ValueError: A run has no label, or another release's.
        """
        labels = [from_json(Label, run["label"]) for run in seen]
        runs = tuple(
            dataclasses.replace(label.run, job=its["job"] and its["job"]["id"])
            for label, its in zip(labels, seen, strict=True)
        )
        return cls(stack, labels[0].partition, labels[0].began, labels[0].repeat, runs)

    def label(self, run: PlannedRun) -> dict[str, Any]:
        """Return the label of a run, as JSON."""
        return to_json(Label(self.partition, self.began, self.repeat, run))  # type: ignore[no-any-return]

    @property
    def request(self) -> SweepRequest:
        return SweepRequest(
            tuple(sorted({run.nodes for run in self.runs})),
            self.repeat,
            tuple(dict.fromkeys(run.partition for run in self.runs if run.partition)),
            tuple(sorted({run.gpus for run in self.runs if run.gpus is not None})),
        )

    @property
    def unsubmitted(self) -> list[PlannedRun]:
        return [run for run in self.runs if run.job is None and run.refused is None]

    def change(self, *changed: PlannedRun) -> Plan:
        """Return the plan with these runs in place of those with the same numbers."""
        new = {run.number: run for run in changed}
        return dataclasses.replace(self, runs=tuple(new.get(run.number, run) for run in self.runs))


def parse_request(
    nodes: str | None,
    repeat: int | None,
    limits: Sequence[PartitionLimits],
    *,
    partitions: tuple[str, ...] = (),
    gpus: str | None = None,
) -> SweepRequest:
    """Check the arguments that a user gave.

    Args:
        nodes: Numbers of nodes, as in `1,2,4`. `None` means the default.
        repeat: How often each case runs. `None` means once.
        limits: The limits of each partition of the sweep.
        partitions: The names of partitions that were given; they exist.
        gpus: Numbers of GPUs a node, as in `1,2`. `None` means one case: what the stack file says.

    Raises:
        UserError: The arguments are wrong (exit 2). The message lists every mistake.
    """
    repeat = 1 if repeat is None else repeat
    most = min(limit.nodes for limit in limits)
    each = (
        tuple(n for n in DEFAULT_NODES if n <= most)
        if nodes is None
        else _numbers("nodes", nodes, "Give numbers of nodes with commas between: --nodes 1,2,4", limits)
    )
    devices = (
        ()
        if gpus is None
        else _numbers(
            "gpus", gpus, "Give numbers of GPUs a node with commas between them: --gpus 1,2", limits
        )
    )
    wanted = SweepRequest(each, repeat, partitions, devices)
    if (count := len(order(wanted))) > MAX_RUNS:
        raise UserError(
            f"{wanted}: {plurals.count(count, 'run')} are more than the {MAX_RUNS} that one sweep may have. "
            "Give fewer numbers of nodes, partitions or GPUs, or fewer repetitions",
            EXIT_USAGE,
            code="sweep.too-many",
        )
    return wanted


def _numbers(option: str, text: str, how: str, limits: Sequence[PartitionLimits]) -> tuple[int, ...]:
    numbers: list[int] = []
    mistakes: list[str] = []
    for item in (part.strip() for part in text.split(",")):
        try:
            number = int(item) if item.isdecimal() or item[:1] == "-" else None
        except ValueError:
            number = None
        if number is None:
            mistakes.append(
                f"{item[:40]!r} is not a whole number" if item else "there is nothing between two commas"
            )
        elif too_many := _too_many(option, number, limits):
            mistakes += too_many
        elif number in numbers:
            mistakes.append(f"{number} is given twice; --repeat 2 runs every case twice")
        else:
            numbers.append(number)
    if mistakes:
        lines = "".join(f"\n  {line}" for line in dict.fromkeys(mistakes))
        raise UserError(f"--{option} {text[:60]}:{lines}\n{how}", EXIT_USAGE, code="sweep.option")
    return tuple(sorted(numbers))


def _too_many(option: str, number: int, limits: Sequence[PartitionLimits]) -> list[str]:
    """Say which partitions do not have so many nodes or GPUs."""
    if option == "gpus":
        if number < 0:
            return [f"{number}: a run needs no GPU or some"]
        return [
            f"{number}: a node of partition {limit.name} has {plurals.count(limit.gpus, 'GPU')} that compute"
            for limit in limits
            if number > limit.gpus
        ]
    if number < 1:
        return [f"{number}: a run needs at least one node"]
    return [
        f"{number} is more than the {plurals.count(limit.nodes, 'node')} of partition {limit.name} "
        f"({limit.key})"
        for limit in limits
        if number > limit.nodes
    ]


def order(wanted: SweepRequest) -> list[tuple[Case, int]]:
    """Return (case, repetition) of every run.

    Partition follows partition, and in each the fewest nodes come first: a run finds the last one's nodes up.
    """
    gpus: tuple[int | None, ...] = wanted.gpus or (None,)
    return [
        (Case(partition, devices, nodes), repetition + 1)
        for partition in wanted.partitions or ("",)
        for devices in gpus
        for nodes in wanted.nodes
        for repetition in range(wanted.repeat)
    ]
