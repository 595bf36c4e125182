"""What a sweep runs: pure. Arguments are checked here, and a plan is plain data that survives in a file."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import NamedTuple

from infra.errors import EXIT_USAGE, UserError
from infra.node import words

DEFAULT_NODES = (1, 2, 4)
MAX_RUNS = 200
API_VERSION = "slurm-stacks/sweep/v1"


class Wish(NamedTuple):
    """The arguments of a sweep."""

    nodes: tuple[int, ...]
    """Ascending, each once."""
    repeat: int

    def __str__(self) -> str:
        repeat = f" --repeat {self.repeat}" if self.repeat > 1 else ""
        return f"--nodes {','.join(map(str, self.nodes))}{repeat}"


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """One training of a sweep."""

    number: int
    """From 1, in the order in which they run."""
    nodes: int
    repetition: int
    """From 1."""
    folder: str
    """Relative to `<shared>/bench`."""
    job: int | None = None
    """None: not known to be submitted."""
    refused: str | None = None
    """Slurm's words, where it took no such job."""
    kept: str | None = None
    """The name of the kept result's file."""

    @property
    def open(self) -> bool:
        """Neither refused, nor is its result kept."""
        return self.refused is None and self.kept is None


@dataclass(frozen=True, slots=True)
class Plan:
    """A sweep from before its first submit until its last result is kept or given up."""

    id: str
    stack: str
    partition: str
    began: str
    """UTC, for people: 2026-11-21 14:11 UTC."""
    repeat: int
    needs: tuple[str, ...]
    """Paths on the login machine without which no run works."""
    scripts: dict[str, str]
    """Number of nodes -> `sbatch` script."""
    runs: tuple[PlannedRun, ...]
    api_version: str = API_VERSION

    @property
    def wish(self) -> Wish:
        return Wish(tuple(sorted({run.nodes for run in self.runs})), self.repeat)

    @property
    def unsubmitted(self) -> list[PlannedRun]:
        return [run for run in self.runs if run.open and run.job is None]

    def change(self, *changed: PlannedRun) -> Plan:
        """The plan with runs replaced by those of the same number."""
        new = {run.number: run for run in changed}
        return dataclasses.replace(self, runs=tuple(new.get(run.number, run) for run in self.runs))


def wish(nodes: str | None, repeat: int | None, *, most: int, partition: str, limit: str) -> Wish:
    """The arguments as a user gave them.

    Args:
        nodes: as in `1,2,4`; None for the default.
        most: nodes of the partition.
        limit: where the stack file says so, for the message.

    Raises:
        UserError: exit 2, with every mistake.
    """
    repeat = 1 if repeat is None else repeat
    if nodes is None:
        return Wish(tuple(n for n in DEFAULT_NODES if n <= most), repeat)
    numbers: list[int] = []
    mistakes: list[str] = []
    for item in (part.strip() for part in nodes.split(",")):
        try:
            number = int(item) if item.isdecimal() or item[:1] == "-" else None
        except ValueError:
            number = None
        if number is None:
            mistakes.append(
                f"{item[:40]!r} is no whole number" if item else "there is nothing between two commas"
            )
        elif number < 1:
            mistakes.append(f"{number}: a run needs at least one node")
        elif number > most:
            mistakes.append(
                f"{number} is more than the {words.count(most, 'node')} of partition {partition} ({limit})"
            )
        elif number in numbers:
            mistakes.append(f"{number} stands there twice; --repeat 2 runs every number of nodes twice")
        else:
            numbers.append(number)
    if not mistakes and len(numbers) * repeat > MAX_RUNS:
        mistakes.append(
            f"{len(numbers)} × {repeat} runs are more than the {MAX_RUNS} that one sweep may have"
        )
    if mistakes:
        lines = "".join(f"\n  {line}" for line in dict.fromkeys(mistakes))
        raise UserError(
            f"--nodes {nodes[:60]}:{lines}\nGive numbers of nodes with commas between them: --nodes 1,2,4",
            EXIT_USAGE,
        )
    return Wish(tuple(sorted(numbers)), repeat)


def order(wanted: Wish) -> list[tuple[int, int]]:
    """(nodes, repetition) of every run: fewest nodes first, so that each finds those of the one before."""
    return [(nodes, repetition + 1) for nodes in wanted.nodes for repetition in range(wanted.repeat)]
