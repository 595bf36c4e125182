"""Restores a backup into a cluster of the same name, in two parts.

`stage` checks the backup, unpacks it beside slurmctld's files, and loads the accounting beside the database
that is in use. Until then nothing has changed. Then it writes a journal. From that moment on each boot of the
controller does what the journal says, however often it is interrupted, and `stage` has the controller boot.

`cancel` gives up a restore that is not in its place yet. No boot fails for a journal that cannot be read:
what is in its place stays there, and what is half in its place goes back.

The nodes of the cluster are other machines than those of the backup. So their states are the present ones,
and jobs that ran at the backup lose their nodes: Slurm queues them again, or ends those that may not run
again, as it does whenever a node is lost.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from node.backup import archive, database
from node.backup.archive import BackupError, Manifest
from node.backup.take import SPARE_MIB
from node.bootstrap.command import CommandError, Runner
from node.design.folders import Folders
from node.design.model import Settings
from node.elastic.view import REASON_PREFIX
from node.slurm import version
from node.slurm.control import Slurm, SlurmError
from node.system import accounts, plurals

if TYPE_CHECKING:
    pass
from node.backup.restore_journal import (
    CANCELLED,
    PARTS,
    SWAPPED,
    Journal,
    how_to_give_up,
    pending,
    work_folder,
    write_journal,
)

BOOT = "slurm-stacks-boot.service"
"""The unit of the boot's steps (`infra.clouds.userdata`)."""
BOOT_SECONDS = 900.0
REASON = f"{REASON_PREFIX}restored: the job of this node was of a backup, whose machine this is not"
LEAVE_SECONDS = 120.0


def stage(
    settings: Settings, file: Path, control: Slurm, run: Runner, *, replace: bool, say: Callable[[str], None]
) -> dict[str, Any]:
    """Restore a backup, and return what `./cluster restore --json` shows. The caller is alone (`take.alone`).

    Args:
        file: The backup, below the folder of slurmctld.
        replace: Whether to restore into a cluster that has had jobs, which it then forgets.
        say: Called with a sentence on the progress.

    Raises:
        BackupError: It is refused, and nothing was changed; or the controller's boot failed with it.
    """
    folders = Folders(settings)
    journal, manifest = pending(folders), archive.read(file)
    if journal is not None and journal.phase == SWAPPED and replace and manifest.sha256 != journal.sha256:
        # With a state that slurmctld cannot begin with, no boot ends that restore: this one takes its place.
        say(f"the backup of {archive.when(journal.created)}, which is in its place, is replaced")
        journal = None
    if journal is not None:
        if journal.phase == CANCELLED:
            raise BackupError(
                "restore.other-under-way",
                f"a restore is being given up: {how_to_give_up(folders)} completes that, then restore",
            )
        if manifest.sha256 != journal.sha256:
            instead = (
                "restore this one in its place (--replace)"
                if journal.phase == SWAPPED
                else f"give it up first ({how_to_give_up(folders)})"
            )
            raise BackupError(
                "restore.other-under-way",
                f"the restore of another backup, of {archive.when(journal.created)}, is half done: run this "
                f"command with that backup, which continues it, or {instead}",
            )
        say("an earlier restore of this backup was interrupted: it is continued")
    else:
        manifest = _prepare(settings, file, control, run, replace=replace, say=say)
    _boot(settings, run, say)
    return {"backup": manifest.as_json(), "jobs": manifest.jobs, **_result(control)}


def _result(control: Slurm) -> dict[str, Any]:
    jobs = control.jobs().values()
    return {"pending": sum(job.is_pending for job in jobs), "next_job_id": next_job(control)[0]}


def _prepare(
    settings: Settings, file: Path, control: Slurm, run: Runner, *, replace: bool, say: Callable[[str], None]
) -> Manifest:
    folders = Folders(settings)
    work = work_folder(folders)
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(mode=0o700)
    try:
        content = work / archive.CONTENT
        manifest = archive.read(file, content)
        check(settings, manifest, control, _release(folders, run), replace=replace)
        _check_space(work, manifest)
        say("the backup fits this cluster: unpacking it")
        archive.unpack(content, work / PARTS, manifest.unpacked)
        content.unlink()
        _check_parts(work / PARTS, manifest)
        _own(work / PARTS / archive.STATE, settings.site.user)
        if manifest.accounting:
            say("loading its accounting")
            dump = work / PARTS / archive.ACCOUNTING
            database.load(dump, run)
            dump.unlink()
        os.sync()
        write_journal(
            folders, Journal(manifest.cluster, manifest.created, manifest.accounting, manifest.sha256)
        )
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
    return manifest


def _release(folders: Folders, run: Runner) -> str:
    return run("slurmctld", "-V", env={"SLURM_CONF": str(folders.slurm_conf)}).strip()


def check(settings: Settings, manifest: Manifest, control: Slurm, release: str, *, replace: bool) -> None:
    """Check that a backup fits a cluster.

    Args:
        release: The release of the cluster's Slurm.

    Raises:
        BackupError: It does not fit; nothing was changed.
    """
    design = settings.design
    if manifest.cluster != design.name:
        raise BackupError(
            "restore.other-cluster",
            f"the backup is of cluster {manifest.cluster}, and this cluster is {design.name}: Slurm takes a "
            f"state of another name for another cluster's. Write name: {manifest.cluster} in the stack file "
            "of a new cluster, and restore into that",
        )
    try:
        version.check_readable(manifest.slurm, release)
    except ValueError as error:
        raise BackupError("restore.release", str(error)) from None
    if manifest.accounting and not design.slurm.accounting:
        raise BackupError(
            "restore.accounting",
            "the backup has an accounting, and this cluster has none: write slurm: {accounting: true} "
            f"and run `./cluster up --stack {design.stack}`, then restore",
        )
    if replace:
        return
    try:
        following, first = next_job(control)
    except SlurmError as error:
        raise BackupError("restore.no-slurmctld", f"slurmctld does not answer: {error}") from error
    if following > first:
        raise BackupError(
            "restore.not-empty",
            f"this cluster has had {plurals.count(following - first, 'job')}, which it would forget: restore "
            f"into a new cluster before its first job (`./cluster up --stack {design.stack} "
            "--no-benchmark`), or use --replace",
        )


def next_job(control: Slurm) -> tuple[int, int]:
    """Return the id of the next job, and the first id that a job of this cluster can have."""
    text = control.run("scontrol", "show", "config")
    numbers = {
        name: re.search(rf"^{name}\s*=\s*(\d+)", text, re.MULTILINE) for name in ("NEXT_JOB_ID", "FirstJobId")
    }
    following, first = numbers["NEXT_JOB_ID"], numbers["FirstJobId"]
    return int(following[1]) if following else 1, int(first[1]) if first else 1


def _check_space(work: Path, manifest: Manifest) -> None:
    # The accounting is there as a dump and as tables.
    needed = (2 * manifest.unpacked + manifest.size) // 2**20 + SPARE_MIB
    if (free := shutil.disk_usage(work).free // 2**20) < needed:
        raise BackupError(
            "restore.no-space",
            f"{work.parent}: {free} MiB are free, and this restore needs {needed}: make room there, or "
            "give the controller a larger disk",
        )


def _check_parts(parts: Path, manifest: Manifest) -> None:
    """Check that a backup has what each boot will look for.

    Raises:
        BackupError: It lacks a part.
    """
    needed = {archive.STATE: (parts / archive.STATE).is_dir()}
    if manifest.accounting:
        needed[archive.ACCOUNTING] = (parts / archive.ACCOUNTING).is_file()
    if missing := [name for name, there in needed.items() if not there]:
        raise BackupError(
            "backup.content", f"the backup's content has no {' and no '.join(missing)}: use another backup"
        )


def _own(folder: Path, user: str) -> None:
    owner, group = accounts.ids(user)
    for above, folders, names in os.walk(folder):
        for name in (".", *folders, *names):
            os.chown(Path(above, name), owner, group, follow_symlinks=False)


def await_boot(run: Runner) -> None:
    """Wait for the boot's end. Whoever calls looks at what it has done."""
    try:
        run("systemctl", "start", BOOT, timeout=BOOT_SECONDS)
    except CommandError as error:
        print(error, file=sys.stderr, flush=True)


def _boot(settings: Settings, run: Runner, say: Callable[[str], None]) -> None:
    """Have the controller boot, which puts everything into its place, and wait for it.

    Raises:
        BackupError: The boot failed, or takes too long.
    """
    # From here on systemd does it, whatever becomes of this program.
    run("systemctl", "restart", "--no-block", BOOT)
    say("the controller boots with it: jobs and commands wait")
    await_boot(run)
    folders = Folders(settings)
    if pending(folders) is not None:
        raise BackupError(
            "restore.boot-failed",
            "the controller's boot failed with the restored state, and is repeated: `./cluster logs --stack "
            f"{settings.design.stack} controller` says why. The restore is continued at each boot, and by "
            f"this command; {how_to_give_up(folders)} gives it up, as long as it is not in its place",
        )
