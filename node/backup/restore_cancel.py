"""Gives up a restore."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from node.backup import archive
from node.backup.archive import BackupError
from node.bootstrap.command import Runner
from node.design.folders import Folders
from node.design.model import Settings

if TYPE_CHECKING:
    pass
from node.backup.restore import BOOT, BOOT_SECONDS, await_boot
from node.backup.restore_journal import (
    CANCELLED,
    CLEARED,
    FORMER,
    JOURNAL,
    SWAPPED,
    discard,
    phase_of,
    work_folder,
    write_journal,
)

# Giving up a restore.


def cancel(settings: Settings, run: Runner, *, say: Callable[[str], None]) -> dict[str, Any]:
    """Give up a restore, and return what `./cluster restore --cancel --json` shows. The caller is alone.

    The files of before are in force afterwards. Only a boot moves files back, because only then nothing uses
    them; so the controller boots if it has to.

    Raises:
        BackupError: There is none, or it is in its place; nothing was changed. Or the boot failed.
    """
    folders = Folders(settings)
    work = work_folder(folders)
    has_journal = (work / JOURNAL).exists()
    if not work.exists() or (not has_journal and (work / CLEARED).exists()):
        # The end of one that is complete may be left.
        shutil.rmtree(work, ignore_errors=True)
        raise BackupError(
            "restore.none",
            f"no restore is under way on the controller of cluster {settings.design.name}: there is none to "
            "give up",
        )
    if not has_journal:
        # It died while it unpacked. Nothing uses that.
        discard(folders, run)
        return {"cancelled": True, "moved_back": False}
    _check_cancellable(folders)
    # A boot may be putting it in its place just now. It can be stopped anywhere, and is repeated below.
    run("systemctl", "stop", BOOT, timeout=BOOT_SECONDS)
    try:
        _check_cancellable(folders)
        moves_back = (work / FORMER).exists()
        if moves_back:
            _note_cancelled(folders)
        else:
            discard(folders, run)
    finally:
        run("systemctl", "restart", "--no-block", BOOT)
    say("the controller boots: jobs and commands wait")
    await_boot(run)
    if work.exists():
        raise BackupError(
            "restore.boot-failed",
            "the restore is given up, and the controller's boot, which puts the state of before back, "
            f"failed and is repeated: `./cluster logs --stack {settings.design.stack} controller` says why",
        )
    return {"cancelled": True, "moved_back": moves_back}


def _check_cancellable(folders: Folders) -> None:
    """Check that a restore is not in its place.

    Raises:
        BackupError: It is: Slurm has gone on from it.
    """
    phase, journal = phase_of(folders)
    # Without any journal it was completed meanwhile.
    if phase == SWAPPED or not (work_folder(folders) / JOURNAL).exists():
        when = "" if journal is None else f" of {archive.when(journal.created)}"
        raise BackupError(
            "restore.in-place",
            f"the backup{when} is in its place, and Slurm has begun with it: there is no way back but to "
            "restore another backup with --replace",
        )


def _note_cancelled(folders: Folders) -> None:
    _, journal = phase_of(folders)
    # One that cannot be read counts as given up.
    if journal is not None:
        write_journal(folders, replace(journal, phase=CANCELLED))
