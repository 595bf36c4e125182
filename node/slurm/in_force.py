"""Which options of the stack file are in force on the controller: the newest with which slurmctld starts.

The stack file's options (`node.slurm.own_settings`) are tried when they are new, or when Slurm's release is.
If slurmctld refuses them, the last ones that it has taken stay, and the rest of slurm.conf is as designed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from node.design.model import Settings
from node.system import files, foreign
from node.system.codec import from_json, to_json

RECORD = "slurm-stacks-settings.json"
"""The record, in slurmctld's folder of saved state, where a new head finds it."""


@dataclass(frozen=True, slots=True)
class Given:
    """The options of slurm.conf that a stack file gives.

    Attributes:
        slurm: Options of the file.
        partitions: Partition -> options of its line; none of those without.
    """

    slurm: dict[str, str] = field(default_factory=dict)
    partitions: dict[str, dict[str, str]] = field(default_factory=dict)

    @staticmethod
    def of(settings: Settings) -> Given:
        design = settings.design
        lines = {name: dict(line.settings) for name, line in design.terms().items() if line.settings}
        return Given(dict(design.slurm.settings), lines)

    def put_in(self, settings: Settings) -> Settings:
        """Return the settings with these options instead of their own."""
        design = settings.design
        partitions = tuple(
            replace(p, settings=self.partitions.get(p.slurm_name, {})) for p in design.partitions
        )
        shared = tuple(replace(p, settings=self.partitions.get(p.name, {})) for p in design.shared_partitions)
        slurm = replace(design.slurm, settings=self.slurm)
        return replace(
            settings,
            design=replace(design, slurm=slurm, partitions=partitions, shared_partitions=shared),
        )


NOTHING = Given()


@dataclass(frozen=True, slots=True)
class Record:
    """What is in force.

    Attributes:
        release: The release that has taken it, as Slurm's programs print it.
        given: The options.
        refused: Why the stack file's are not in force; empty if they are.
    """

    release: str = ""
    given: Given = NOTHING
    refused: str = ""


def read(state: Path) -> Record | None:
    """Return the record; `None` if there is none that can be read: then the options are tried again."""
    try:
        return from_json(Record, foreign.record(state / RECORD))
    except (OSError, foreign.UnusableError, ValueError, TypeError):
        return None


def settings_in_force(settings: Settings, state: Path) -> Settings:
    """Return the settings with the options that slurm.conf has."""
    record = read(state)
    if record is None or not record.refused:
        return settings
    return record.given.put_in(settings)


def refused(state: Path) -> str | None:
    """Return why the stack file's options are not in force; `None` if they are."""
    record = read(state)
    return record.refused or None if record is not None else None


def choose(
    settings: Settings, release: str, state: Path, fault: Callable[[Settings], str]
) -> tuple[Settings, str]:
    """Choose the options that slurm.conf gets, and record them.

    Args:
        release: Slurm's release here, as its programs print it.
        state: slurmctld's folder of saved state.
        fault: Tries settings, and returns why slurmctld does not start with them; empty if it does.

    Returns:
        The settings with the options; why they are not the stack file's, in a sentence, or empty.
    """
    wanted, before = Given.of(settings), read(state)
    if wanted == NOTHING:
        (state / RECORD).unlink(missing_ok=True)
        return settings, ""
    chosen, sentence = NOTHING, ""
    for given in _candidates(wanted, before):
        taken = given == NOTHING or (
            before is not None and (before.release, before.given) == (release, given)
        )
        why = "" if taken else fault(given.put_in(settings))
        if not why:
            chosen = given
            break
        sentence = sentence or _sentence(why, bool(before and before.given != NOTHING), release)
    record = Record(release, chosen, sentence if chosen != wanted else "")
    files.write(state / RECORD, json.dumps(to_json(record)).encode(), durable=True)
    return chosen.put_in(settings), record.refused


def _candidates(wanted: Given, before: Record | None) -> Iterator[Given]:
    yield wanted
    if before is not None and before.given != wanted:
        yield before.given
    yield NOTHING


def _sentence(why: str, has_former: bool, release: str) -> str:
    left = "the former ones stay in force" if has_former else "none of them is in force"
    return (
        f"the stack file's settings of slurm.conf are refused, and {left}: slurmctld ({release}) does not "
        f"start with them: {why}. Change slurm.settings or partitions[].settings, and run `up` again"
    )
