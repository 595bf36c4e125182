"""The verbs `backup` and `restore` of the cluster's own command, for the controller's root.

`./cluster` calls them, and the timer of scheduled backups does. A failure is one line of JSON on standard
error, with its code; progress is lines of text there.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import json
import os
import shutil
import socket
import sys
import time
from pathlib import Path

from node.backup import archive, record, restore, restore_cancel, schedule, take
from node.backup.archive import BackupError
from node.bootstrap.command import CommandError, run
from node.design.folders import Folders
from node.design.model import Settings
from node.slurm.control import Slurm, SlurmError

INCOMING = ".incoming"
"""The folder below slurmctld's with a backup that comes from elsewhere."""


def main(settings: Settings, settings_file: Path, control: Slurm, options: argparse.Namespace) -> int:
    """Run a verb, and return its exit status."""
    try:
        _check_place(settings)
        if options.verb == "backup":
            _backup(settings, settings_file, control, options)
        elif options.cancel:
            with take.alone(Folders(settings)):
                print(json.dumps(restore_cancel.cancel(settings, run, say=_say)))
        else:
            _restore(settings, control, options)
    except BackupError as error:
        print(json.dumps({"code": error.code, "message": str(error)}), file=sys.stderr)
        return 1
    except (CommandError, SlurmError) as error:
        print(json.dumps({"code": f"{options.verb}.failed", "message": str(error)}), file=sys.stderr)
        return 1
    except OSError as error:
        failure = {"code": f"{options.verb}.failed", "message": _explained(error, settings)}
        print(json.dumps(failure), file=sys.stderr)
        return 1
    return 0


def _explained(error: OSError, settings: Settings) -> str:
    """Return an error of the system with its path, which a write to a full disk does not name."""
    path = Path(str(error.filename or Folders(settings).state))
    text = f"{path} on the controller: {error.strerror or error}"
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return text
    return f"{text}: {shutil.disk_usage(Folders(settings).state).free // 2**20} MiB are free; make room there"


def _check_place(settings: Settings) -> None:
    """Check that this is the controller, and that root asks.

    Raises:
        BackupError: It is not.
    """
    design = settings.design
    if Folders(settings).process or socket.gethostname() != design.controller().name:
        raise BackupError(
            "backup.not-controller", f"this runs on the controller of cluster {design.name} only"
        )
    if os.geteuid() != 0:
        raise BackupError(
            "backup.not-root",
            "a backup has the secrets of all users, so it takes root of the controller: your user there "
            "needs sudo (on Google Cloud the role roles/compute.osAdminLogin)",
        )


def _backup(settings: Settings, settings_file: Path, control: Slurm, options: argparse.Namespace) -> None:
    if options.list:
        print(json.dumps(schedule.listed(settings)))
    elif options.scheduled:
        schedule.run_due(settings, settings_file, control, run)
    elif options.bucket:
        print(json.dumps(schedule.back_up(settings, settings_file, control, run)))
    else:
        began = time.monotonic()
        manifest = take.write(settings, settings_file, control, run, sys.stdout.buffer)
        record.note_success(settings, manifest, "a file", time.monotonic() - began)


def _restore(settings: Settings, control: Slurm, options: argparse.Namespace) -> None:
    folders = Folders(settings)
    incoming = Path(str(folders.state)) / INCOMING
    with take.alone(folders), contextlib.ExitStack() as after:
        # What is killed here leaves this folder, which slurmctld ignores and the next call removes.
        shutil.rmtree(incoming, ignore_errors=True)
        incoming.mkdir(mode=0o700)
        after.callback(shutil.rmtree, incoming, ignore_errors=True)
        file = incoming / f"backup{archive.SUFFIX}"
        if options.bucket is not None:
            schedule.fetch(settings, options.bucket, file)
        else:
            _take_in(file)
        staged = restore.stage(settings, file, control, run, replace=options.replace, say=_say)
    print(json.dumps(staged))


def _take_in(file: Path) -> None:
    """Write standard input to a file, as long as slurmctld, which saves on the same disk, has space there.

    Raises:
        BackupError: It would fill the disk.
    """
    with file.open("xb") as target:
        while block := sys.stdin.buffer.read(archive.BLOCK):
            if shutil.disk_usage(file.parent).free < take.SPARE_MIB * 2**20 + len(block):
                raise BackupError(
                    "restore.no-space",
                    f"{file.parent.parent}: the backup would fill the disk on which Slurm saves its state: "
                    "make room there, or give the controller a larger disk",
                )
            target.write(block)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
