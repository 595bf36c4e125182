"""Restores a backup into a cluster of the same name, in two parts.

`stage` checks the backup, unpacks it beside slurmctld's files, and loads the accounting beside the database
that is in use. Until then nothing has changed. Then it writes a journal. From that moment on the restore is
only ever continued: each boot of the controller does what the journal says, however often it is interrupted,
and `stage` has the controller boot.

The nodes of the cluster are other machines than those of the backup. So their states are the present ones,
and jobs that ran at the backup lose their nodes: Slurm queues them again, or ends those that may not run
again, as it does whenever a node is lost.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from node import plurals
from node.backup import archive, database
from node.backup.archive import BackupError, Manifest
from node.backup.take import SPARE_MIB
from node.bootstrap import accounts, files
from node.bootstrap.command import CommandError, Runner
from node.elastic.view import REASON_PREFIX
from node.folders import Folders
from node.model import Settings
from node.slurm import version
from node.slurm.control import Slurm, SlurmError
from node.slurm.hostlist import fold
from node.waiting import wait_at_most

if TYPE_CHECKING:
    from node.bootstrap.context import Context

WORK = ".restore"
"""The folder below slurmctld's with what is restored. slurmctld ignores it."""
JOURNAL, PARTS, FORMER = "journal.json", "parts", "former"
OF_NODES = ("node_state", "front_end_state")
"""The beginnings of the names of files about nodes, which stay the cluster's own."""
CLUSTER_ID = "clustername"
"""Slurm's file with the cluster's name and, in newer releases, its number in the accounting."""
BOOT = "slurm-stacks-boot.service"
"""The unit of the boot's steps (`infra.clouds.userdata`)."""
BOOT_SECONDS = 900.0
REASON = f"{REASON_PREFIX}restored: the job of this node was of a backup, whose machine this is not"
LEAVE_SECONDS = 120.0
PREPARED, SWAPPED = "prepared", "swapped"


@dataclass(frozen=True, slots=True)
class Journal:
    """What a restore has done. It is there from the moment from which a restore is continued.

    Attributes:
        sha256: The digest of the backup's content.
        phase: prepared: everything is unpacked; swapped: it is in its place.
        swapped: When it took its place, in seconds since the epoch.
    """

    cluster: str
    created: float
    accounting: bool
    sha256: str
    phase: str = PREPARED
    swapped: float = 0.0


def pending(folders: Folders) -> Journal | None:
    """Return the journal of a restore that is not over; `None` if there is none."""
    try:
        return Journal(**json.loads((_work(folders) / JOURNAL).read_text()))
    except FileNotFoundError:
        return None


def _work(folders: Folders) -> Path:
    return Path(str(folders.state)) / WORK


def _note(folders: Folders, journal: Journal) -> None:
    text = json.dumps(asdict(journal), indent=1).encode()
    files.write(_work(folders) / JOURNAL, text, 0o600, durable=True)


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
    if (journal := pending(folders)) is not None:
        manifest = archive.read(file)
        if manifest.sha256 != journal.sha256:
            when = time.strftime("%F %T UTC", time.gmtime(journal.created))
            raise BackupError(
                "restore.other-under-way",
                f"the restore of another backup, of {when}, is half done, and can only be continued: "
                "run this command with that backup first",
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
    work = _work(folders)
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(mode=0o700)
    try:
        content = work / archive.CONTENT
        manifest = archive.read(file, content)
        check(settings, manifest, control, _release(folders, run), replace=replace)
        _check_space(work, manifest)
        say("the backup fits this cluster: unpacking it")
        archive.unpack(content, work / PARTS)
        content.unlink()
        _own(work / PARTS / archive.STATE, settings.site.user)
        if manifest.accounting:
            say("loading its accounting")
            dump = work / PARTS / archive.ACCOUNTING
            database.load(dump, run)
            dump.unlink()
        os.sync()
        _note(folders, Journal(manifest.cluster, manifest.created, manifest.accounting, manifest.sha256))
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
    found = {
        name: re.search(rf"^{name}\s*=\s*(\d+)", text, re.MULTILINE) for name in ("NEXT_JOB_ID", "FirstJobId")
    }
    following, first = found["NEXT_JOB_ID"], found["FirstJobId"]
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


def _own(folder: Path, user: str) -> None:
    owner, group = accounts.ids(user)
    for above, folders, names in os.walk(folder):
        for name in (".", *folders, *names):
            os.chown(Path(above, name), owner, group, follow_symlinks=False)


def _boot(settings: Settings, run: Runner, say: Callable[[str], None]) -> None:
    """Have the controller boot, which puts everything into its place, and wait for it.

    Raises:
        BackupError: The boot failed, or takes too long.
    """
    # From here on systemd does it, whatever becomes of this program.
    run("systemctl", "restart", "--no-block", BOOT)
    say("the controller boots with it: jobs and commands wait")
    try:
        run("systemctl", "start", BOOT, timeout=BOOT_SECONDS)
    except CommandError as error:
        print(error, file=sys.stderr, flush=True)
    if pending(Folders(settings)) is not None:
        raise BackupError(
            "restore.boot-failed",
            "the controller's boot failed with the restored state, and is repeated: `./cluster logs --stack "
            f"{settings.design.stack} controller` says why. The restore is continued at each boot, and by "
            "this command",
        )


# What the boot does. Slurm's daemons are stopped when it begins.


def put_in_place(context: Context) -> str | None:
    """Put a prepared restore's files into their place, and return a note on it; `None` if there is none.

    The state takes the place of the present one by renames, which are repeated after an interruption.
    """
    if (journal := pending(context.folders)) is None:
        return None
    if journal.phase == PREPARED:
        state = context.path(context.folders.state)
        swap(state, state / WORK, keep_name=not journal.accounting)
        _host_keys(context, state / WORK / PARTS / archive.HOST_KEYS)
    return f"restored the backup of {time.strftime('%F %T UTC', time.gmtime(journal.created))}"


def swap(state: Path, work: Path, *, keep_name: bool) -> None:
    """Exchange slurmctld's files for those of a restore, except for those about nodes.

    Args:
        work: The restore's folder below `state`.
        keep_name: Whether the file with the cluster's name and number stays, too: they are the accounting's.
    """

    def stays(name: str) -> bool:
        return name.startswith((".", *OF_NODES)) or (keep_name and name.startswith(CLUSTER_ID))

    source, former = work / PARTS / archive.STATE, work / FORMER
    cleared = work / "cleared"
    if not cleared.exists():
        former.mkdir(mode=0o700, exist_ok=True)
        for path in sorted(state.iterdir()):
            if not stays(path.name):
                path.rename(former / path.name)
        _synchronize(state, former)
        cleared.touch()
        _synchronize(work)
    for path in sorted(source.iterdir()):
        if not stays(path.name):
            path.rename(state / path.name)
    _synchronize(state)


def _synchronize(*folders: Path) -> None:
    for folder in folders:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _host_keys(context: Context, keys: Path) -> None:
    """Give the controller the host keys of the backup, so that users' known_hosts fit."""
    from node.bootstrap.vm import kept_state

    kept_state.restore_host_keys(context, keys)


def take_database(context: Context) -> None:
    """Put a prepared restore's accounting into its place. slurmdbd does not run."""
    journal = pending(context.folders)
    if journal is not None and journal.phase == PREPARED and journal.accounting:
        database.take_place(context.run)


def note_in_place(context: Context) -> None:
    """Note that everything is in its place. slurmctld has not started yet."""
    journal = pending(context.folders)
    if journal is not None and journal.phase == PREPARED:
        given = {**asdict(journal), "phase": SWAPPED, "swapped": time.time()}
        _note(context.folders, Journal(**given))


def finish(context: Context, control: Slurm) -> str | None:
    """Take the restored jobs off nodes that they do not have, remove what is left, and return a note.

    slurmctld answers. `None` means that there is no restore.
    """
    folders = context.folders
    if (journal := pending(folders)) is None:
        return None
    count = release_lost_nodes(control, journal.swapped)
    if journal.accounting:
        database.drop_former(context.run)
    work = _work(folders)
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
    off = [node for node in nodes if "POWERED_DOWN" in now[node].flags and not now[node].is_powering_up]
    coming = [node for node in nodes if node not in off and now[node].is_powering_up]
    on = [node for node in nodes if node not in (*off, *coming)]
    for names, state in ((off, "IDLE"), (coming, "POWER_DOWN_FORCE"), (on, "RESUME")):
        if not names:
            continue
        try:
            control.update_node(names, state=state, reason=REASON if state == "POWER_DOWN_FORCE" else None)
        except SlurmError as error:
            print(f"{fold(names)}: {error}; the elastic daemon takes care", file=sys.stderr, flush=True)
