"""What the controller's boot does for a restore. Slurm's daemons are stopped when it begins."""

from __future__ import annotations

import shutil
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from node.backup import archive, database, machines
from node.backup.take import HOST_KEYS
from node.slurm.control import Slurm, SlurmError
from node.slurm.hostlist import fold
from node.system import plurals
from node.system.waiting import wait_at_most

if TYPE_CHECKING:
    from node.bootstrap.context import Context
from node.backup.restore import LEAVE_SECONDS, REASON
from node.backup.restore_journal import (
    CANCELLED,
    CLEARED,
    CLUSTER_ID,
    FORMER,
    FORMER_KEYS,
    JOURNAL,
    OF_NODES,
    PARTS,
    PREPARED,
    SWAPPED,
    WORK,
    JournalError,
    discard,
    pending,
    phase_of,
    synchronize,
    work_folder,
    write_journal,
)

NO_DIGEST = "0" * 64
"""That of a backup whose journal cannot be read."""

# What the boot does. Slurm's daemons are stopped when it begins.


def put_in_place(context: Context) -> str | None:
    """Put a prepared restore's files into their place, and return a note on it; `None` if there is none.

    The state takes the place of the present one by renames, which are repeated after an interruption. The
    files of a restore that is given up go back in the same way.
    """
    state = context.path(context.folders.state)
    work = state / WORK
    try:
        pending(context.folders)
    except JournalError as error:
        context.report.content["facts"]["restore"] = str(error)
        print(error, file=sys.stderr, flush=True)
    phase, journal = phase_of(context.folders)
    if phase is None:
        return None
    if phase == CANCELLED:
        swap_back(state, work)
        if journal is not None:
            machines.remove(context.folders, journal.sha256)
        _host_keys(context, work / FORMER_KEYS, "before the restore")
        return "put back the state of before a restore, which was given up"
    if phase == PREPARED and journal is not None:
        _keep_host_keys(context, work)
        swap(state, work, keep_name=not journal.accounting)
    if phase == PREPARED or journal is None:
        _host_keys(context, work / PARTS / archive.HOST_KEYS, "the backup")
        digest = NO_DIGEST if journal is None else journal.sha256
        machines.place(work / PARTS / archive.MACHINES, context.folders, digest, context.slurm_user)
    return (
        "restored a backup" if journal is None else f"restored the backup of {archive.when(journal.created)}"
    )


def swap_back(state: Path, work: Path) -> None:
    """Undo a `swap`, however far it came. It can be repeated after an interruption."""
    source, former = work / PARTS / archive.STATE, work / FORMER
    if not former.exists():
        return
    named = any(path.name.startswith(CLUSTER_ID) for path in former.iterdir())
    stay = (".", *OF_NODES, *(() if named else (CLUSTER_ID,)))
    if (work / CLEARED).exists():
        source.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in sorted(state.iterdir()):
            if not path.name.startswith(stay):
                _replace(path, source / path.name)
        synchronize(state, source)
        # From here on the files that are in their place are those of before.
        (work / CLEARED).unlink()
        synchronize(work)
    for path in sorted(former.iterdir()):
        path.rename(state / path.name)
    synchronize(state, former)


def _replace(path: Path, target: Path) -> None:
    if target.is_dir():
        shutil.rmtree(target)
    path.rename(target)


def swap(state: Path, work: Path, *, keep_name: bool) -> None:
    """Exchange slurmctld's files for those of a restore, except for those about nodes.

    Args:
        work: The restore's folder below `state`.
        keep_name: Whether the file with the cluster's name and number stays, too: they are the accounting's.
    """

    def stays(name: str) -> bool:
        return name.startswith((".", *OF_NODES)) or (keep_name and name.startswith(CLUSTER_ID))

    source, former = work / PARTS / archive.STATE, work / FORMER
    cleared = work / CLEARED
    if not cleared.exists():
        former.mkdir(mode=0o700, exist_ok=True)
        for path in sorted(state.iterdir()):
            if not stays(path.name):
                path.rename(former / path.name)
        synchronize(state, former)
        cleared.touch()
        synchronize(work)
    for path in sorted(source.iterdir()):
        if not stays(path.name):
            path.rename(state / path.name)
    synchronize(state)


def _host_keys(context: Context, keys: Path, name: str) -> None:
    """Give the controller the host keys of the backup, so that users' known_hosts fit."""
    from node.bootstrap.vm import kept_state

    kept_state.restore_host_keys(context, keys, name)


def _keep_host_keys(context: Context, work: Path) -> None:
    """Keep the controller's own host keys, for a restore that is given up."""
    kept, draft = work / FORMER_KEYS, work / f".{FORMER_KEYS}"
    if kept.exists():
        return
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(mode=0o700)
    for key in sorted(context.at("etc/ssh").glob(HOST_KEYS)):
        shutil.copy2(key, draft / key.name)
    draft.rename(kept)


def take_database(context: Context) -> None:
    """Put a prepared restore's accounting into its place, or that of one that is given up back.

    slurmdbd does not run.
    """
    phase, journal = phase_of(context.folders)
    if phase == CANCELLED:
        database.put_back(context.run)
    elif (phase == PREPARED and journal is not None and journal.accounting) or (
        phase == SWAPPED and journal is None
    ):
        database.take_place(context.run)


def note_in_place(context: Context) -> None:
    """Note that everything is in its place. slurmctld has not started yet."""
    phase, journal = phase_of(context.folders)
    if phase == CANCELLED:
        discard(context.folders, context.run)
        context.report.content["facts"]["restore"] = "was given up; the state of before is in force"
    elif phase == PREPARED and journal is not None:
        write_journal(context.folders, replace(journal, phase=SWAPPED, swapped=time.time()))


def finish(context: Context, control: Slurm) -> str | None:
    """Take the restored jobs off nodes that they do not have, remove what is left, and return a note.

    slurmctld answers. `None` means that there is no restore.
    """
    phase, journal = phase_of(context.folders)
    if phase != SWAPPED:
        return None
    work = work_folder(context.folders)
    since = (work / CLEARED).stat().st_mtime if journal is None else journal.swapped
    count = release_lost_nodes(control, since)
    if context.settings.design.slurm.accounting if journal is None else journal.accounting:
        database.drop_former(context.run)
    (work / JOURNAL).unlink()
    shutil.rmtree(work, ignore_errors=True)
    return (
        f"{plurals.count(count, 'job')} that ran at the backup lost their nodes"
        if count
        else "no job ran at the backup"
    )


def release_lost_nodes(control: Slurm, since: float) -> int:
    """Take jobs that began before a time off their nodes, and return their number.

    Their nodes are set DOWN, and given back as soon as Slurm has taken the jobs off them.
    """
    lost = {
        number: job
        for number, job in control.jobs().items()
        if job.is_active and _began(job.start_time, since)
    }
    nodes = sorted({node for job in lost.values() for node in job.nodes})
    if not nodes:
        return len(lost)
    known = control.nodes()
    nodes = [node for node in nodes if node in known]
    control.update_node(nodes, state="DOWN", reason=REASON)

    def left() -> bool:
        now = control.jobs()
        return not any(
            number in now and now[number].is_active and _began(now[number].start_time, since)
            for number in lost
        )

    wait_at_most(left, LEAVE_SECONDS, 0.5)
    _give_back(control, nodes)
    now = control.jobs()
    for number in lost:
        if number in now and now[number].is_pending and not now[number].is_held:
            try:
                control.update_job(now[number].spelling, start_now=True)
            except SlurmError as error:
                print(
                    f"job {number} keeps the delay that Slurm gives requeued jobs: {error}",
                    file=sys.stderr,
                    flush=True,
                )
    return len(lost)


def _began(start: float | None, since: float) -> bool:
    return start is None or start < since


def _give_back(control: Slurm, nodes: list[str]) -> None:
    """Bring nodes back into service: those that are off stay off, and those that are up go on."""
    now = control.nodes()
    # A node that is off is idle at once. Slurm would wait for the registration of one that is resumed.
    off = [node for node in nodes if now[node].is_off and not now[node].is_powering_up]
    coming = [node for node in nodes if node not in off and now[node].is_powering_up]
    on = [node for node in nodes if node not in (*off, *coming)]
    for names, state in ((off, "IDLE"), (coming, "POWER_DOWN_FORCE"), (on, "RESUME")):
        if not names:
            continue
        try:
            control.update_node(names, state=state, reason=REASON if state == "POWER_DOWN_FORCE" else None)
        except SlurmError as error:
            print(f"{fold(names)}: {error}; the elastic daemon takes care", file=sys.stderr, flush=True)
