"""How far a restore is: its journal, and the folder of what it restores."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from node.backup import archive, database
from node.backup.archive import BackupError
from node.bootstrap.command import CommandError, Runner
from node.design.folders import Folders
from node.system import files, foreign
from node.system.codec import from_json, shown

if TYPE_CHECKING:
    pass


WORK = ".restore"
"""The folder below slurmctld's with what is restored. slurmctld ignores it."""
JOURNAL, PARTS, FORMER, FORMER_KEYS, CLEARED = "journal.json", "parts", "former", "former-ssh", "cleared"
OF_NODES = ("node_state", "front_end_state")
"""The beginnings of the names of files about nodes, which stay the cluster's own."""
CLUSTER_ID = "clustername"
"""Slurm's file with the cluster's name and, in newer releases, its number in the accounting."""


PREPARED, SWAPPED, CANCELLED = "prepared", "swapped", "cancelled"
MOST_JOURNAL = 64 * 1024
"""The greatest size of a journal, in bytes."""


@dataclass(frozen=True, slots=True)
class Journal:
    """What a restore has done. It is there from the moment from which a restore is continued.

    Attributes:
        sha256: The digest of the backup's content.
        phase: prepared: everything is unpacked; swapped: it is in its place; cancelled: it is given up.
        swapped: When it took its place, in seconds since the epoch.
    """

    cluster: str
    created: float
    accounting: bool
    sha256: str
    phase: str = PREPARED
    swapped: float = 0.0

    def __post_init__(self) -> None:
        """Check each value.

        Raises:
            ValueError: A value is impossible; the message has its field.
        """
        for field, form in (
            ("cluster", archive.FORMS["cluster"]),
            ("sha256", archive.FORMS["sha256"]),
            ("phase", f"{PREPARED}|{SWAPPED}|{CANCELLED}"),
        ):
            if not re.fullmatch(form, getattr(self, field)):
                raise ValueError(f"{field}: {form} is expected, not {shown(getattr(self, field))}")
        archive.check_time("created", self.created)
        archive.check_time("swapped", self.swapped)


class JournalError(BackupError):
    """The journal of a restore cannot be read. The text says why, and what to do."""


def pending(folders: Folders) -> Journal | None:
    """Return the journal of a restore that is not over; `None` if there is none.

    Raises:
        JournalError: It cannot be read.
    """
    file = work_folder(folders) / JOURNAL
    try:
        return from_json(Journal, foreign.parse_strictly(foreign.read(file, MOST_JOURNAL).data))
    except FileNotFoundError:
        return None
    except (foreign.UnusableError, OSError, ValueError) as error:
        raise JournalError(
            "restore.journal",
            f"{file}, which says how far a restore is, is damaged ({str(error)[:300]}): "
            f"{how_to_give_up(folders)} removes it, then restore again",
        ) from None


def how_to_give_up(folders: Folders) -> str:
    return f"`./cluster restore --cancel --stack {folders.settings.design.stack}`"


def work_folder(folders: Folders) -> Path:
    return Path(str(folders.state)) / WORK


def write_journal(folders: Folders, journal: Journal) -> None:
    text = json.dumps(asdict(journal), indent=1).encode()
    files.write(work_folder(folders) / JOURNAL, text, 0o600, durable=True)


def phase_of(folders: Folders) -> tuple[str | None, Journal | None]:
    """Return a restore's phase and its journal.

    If the journal cannot be read, the files tell: they are all in their place, or are to go back.
    """
    try:
        journal = pending(folders)
    except JournalError:
        work = work_folder(folders)
        if not (work / FORMER).exists():
            return None, None
        return SWAPPED if is_swapped(work) else CANCELLED, None
    return (None, None) if journal is None else (journal.phase, journal)


def is_swapped(work: Path) -> bool:
    """Return whether all files of a restore are in their place."""
    state = work / PARTS / archive.STATE
    stay = (".", CLUSTER_ID, *OF_NODES)
    left = state.iterdir() if state.is_dir() else ()
    return (work / CLEARED).exists() and all(path.name.startswith(stay) for path in left)


def synchronize(*folders: Path) -> None:
    for folder in folders:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def discard(folders: Folders, run: Runner) -> None:
    """Remove what a restore has left. From the journal's end on no boot uses it."""
    work = work_folder(folders)
    (work / JOURNAL).unlink(missing_ok=True)
    if work.exists():
        synchronize(work)
    shutil.rmtree(work, ignore_errors=True)
    if folders.settings.design.slurm.accounting:
        try:
            database.drop_loaded(run)
        except CommandError as error:  # the next restore drops it, too
            print(f"the loaded accounting stays for now: {error}", file=sys.stderr, flush=True)
