"""Backups in a bucket: when one is due, which are old, and how the last one went.

A timer of systemd on the controller calls `run_due` every quarter of an hour, so a backup that failed is
tried again soon, and a controller that was off catches up.
"""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from node.backup import archive, record, restore, take
from node.backup.archive import BackupError
from node.bootstrap.command import CommandError, Runner
from node.design.model import Backup, Settings
from node.slurm.control import Slurm, SlurmError
from node.system import files
from node.system.cloud_api import ServiceError

if TYPE_CHECKING:
    from node.bootstrap.vm.clouds.interface import Bucket

MOST_MIB = 1024
"""The largest backup that goes to a bucket: it is sent in one call, from memory."""
LOOK_MINUTES = 15
"""How often the timer looks whether a backup is due."""
FIRST_SECONDS = 60


def back_up(settings: Settings, settings_file: Path, control: Slurm, run: Runner) -> dict[str, Any]:
    """Write a backup to the bucket, remove old ones, and return what `./cluster backup --json` shows.

    Raises:
        BackupError: It could not be taken or written; the record says so, too.
    """
    began = time.monotonic()
    wanted, bucket, prefix = _place(settings)
    try:
        with take.taken(settings, settings_file, control, run) as (manifest, content):
            whole = content.with_name(manifest.name)
            if manifest.size > MOST_MIB * 2**20:
                raise BackupError(
                    "backup.too-large",
                    f"the backup has {manifest.size // 2**20} MiB, and {MOST_MIB} can go to a bucket: write "
                    f"it to a file (`./cluster backup --stack {settings.design.stack} FILE`), or remove old "
                    "records of the accounting (PurgeJobAfter)",
                )
            with whole.open("xb") as output:
                archive.write(output, manifest, content)
            content.unlink()
            bucket.put(f"{prefix}{manifest.name}", whole.read_bytes())
    except BackupError as error:
        record.note_failure(settings, str(error))
        raise
    except (ServiceError, OSError, CommandError) as error:
        record.note_failure(settings, str(error))
        raise BackupError(
            "backup.bucket", f"the backup was not written to {wanted.bucket}: {error}"
        ) from error
    record.note_success(settings, manifest, wanted.bucket, time.monotonic() - began)
    removed = _prune(settings, wanted, bucket, prefix)
    return {"backup": manifest.as_json(), "name": manifest.name, "bucket": wanted.bucket, "removed": removed}


def _place(settings: Settings) -> tuple[Backup, Bucket, str]:
    """Return the stack file's schedule, its bucket, and the beginning of the names in it.

    Raises:
        BackupError: The stack file names no bucket.
    """
    from node.bootstrap.vm import clouds

    wanted = settings.design.backup
    if wanted is None:
        raise BackupError(
            "backup.no-bucket",
            "the stack file names no bucket for backups: write controller: {backup: {bucket: …}} and run "
            f"`./cluster up --stack {settings.design.stack}`, or name a file",
        )
    url, prefix = wanted.place()
    return wanted, clouds.of(settings).bucket(url), prefix


def names(settings: Settings, bucket: Bucket, prefix: str) -> list[str]:
    """Return the names of this cluster's backups in a bucket, the newest first."""
    ours = re.compile(rf"{re.escape(settings.design.name)}-\d{{8}}T\d{{6}}Z{re.escape(archive.SUFFIX)}")
    keys = [key.removeprefix(prefix) for key in bucket.names(f"{prefix}{settings.design.name}-")]
    return sorted((name for name in keys if ours.fullmatch(name)), reverse=True)


def listed(settings: Settings) -> dict[str, Any]:
    """Return the backups in the bucket, the newest first.

    Raises:
        BackupError: The bucket cannot be listed.
    """
    wanted, bucket, prefix = _place(settings)
    try:
        return {"bucket": wanted.bucket, "names": names(settings, bucket, prefix)}
    except (ServiceError, OSError) as error:
        raise BackupError("backup.bucket", f"{wanted.bucket} cannot be listed: {error}") from error


def fetch(settings: Settings, name: str, into: Path) -> None:
    """Fetch a backup from the bucket.

    Args:
        name: Its name; empty means the newest.

    Raises:
        BackupError: It is not there, or cannot be read.
    """
    wanted, bucket, prefix = _place(settings)
    try:
        kept = names(settings, bucket, prefix)
        if not kept or (name and name not in kept):
            raise BackupError(
                "restore.not-there",
                f"{wanted.bucket} has no backup {name or 'of this cluster'}; it has "
                f"{', '.join(kept[:5]) or 'none'}",
            )
        files.write(into, bucket.get(f"{prefix}{name or kept[0]}"), 0o600)
    except (ServiceError, OSError) as error:
        raise BackupError("backup.bucket", f"{wanted.bucket} cannot be read: {error}") from error


def _prune(settings: Settings, wanted: Backup, bucket: Bucket, prefix: str) -> list[str]:
    """Remove all but the newest backups, and return the names of the removed ones.

    A failure is noted only: the backup is there.
    """
    removed: list[str] = []
    try:
        for name in names(settings, bucket, prefix)[wanted.keep :]:
            bucket.delete(f"{prefix}{name}")
            removed.append(name)
    except (ServiceError, OSError) as error:
        record.note_failure(settings, f"old backups cannot be removed: {error}")
    return removed


def run_due(settings: Settings, settings_file: Path, control: Slurm, run: Runner) -> None:
    """Write a backup to the bucket if one is due.

    A cluster that has had no job has nothing to save: its backup would only take the place of one with jobs.

    Raises:
        BackupError: As `back_up`.
    """
    wanted = settings.design.backup
    if wanted is None or time.time() < _due(record.read(settings), wanted):
        return
    try:
        following, first = restore.next_job(control)
    except SlurmError as error:
        record.note_failure(settings, f"slurmctld does not answer: {error}")
        raise BackupError("backup.no-slurmctld", f"slurmctld does not answer: {error}") from error
    if following > first:
        back_up(settings, settings_file, control, run)


def _due(noted: dict[str, Any], wanted: Backup) -> float:
    last = noted.get("scheduled")
    # It is early rather than late: the next look is a quarter of an hour away.
    return 0.0 if last is None else float(last["at"]) + wanted.every_hours * record.HOUR - LOOK_MINUTES * 30.0
