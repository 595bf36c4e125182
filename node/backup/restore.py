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

import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from node.backup import archive, database
from node.backup.archive import BackupError, Manifest
from node.backup.take import HOST_KEYS, SPARE_MIB
from node.bootstrap.command import CommandError, Runner
from node.design.folders import Folders
from node.design.model import Settings
from node.elastic.view import REASON_PREFIX
from node.slurm import version
from node.slurm.control import Slurm, SlurmError
from node.slurm.hostlist import fold
from node.system import accounts, files, foreign, plurals
from node.system.codec import from_json, shown
from node.system.waiting import wait_at_most

if TYPE_CHECKING:
    from node.bootstrap.context import Context

WORK = ".restore"
"""The folder below slurmctld's with what is restored. slurmctld ignores it."""
JOURNAL, PARTS, FORMER, FORMER_KEYS, CLEARED = "journal.json", "parts", "former", "former-ssh", "cleared"
OF_NODES = ("node_state", "front_end_state")
"""The beginnings of the names of files about nodes, which stay the cluster's own."""
CLUSTER_ID = "clustername"
"""Slurm's file with the cluster's name and, in newer releases, its number in the accounting."""
BOOT = "slurm-stacks-boot.service"
"""The unit of the boot's steps (`infra.clouds.userdata`)."""
BOOT_SECONDS = 900.0
REASON = f"{REASON_PREFIX}restored: the job of this node was of a backup, whose machine this is not"
LEAVE_SECONDS = 120.0
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
    file = _work(folders) / JOURNAL
    try:
        return from_json(Journal, foreign.parse_strictly(foreign.read(file, MOST_JOURNAL).data))
    except FileNotFoundError:
        return None
    except (foreign.UnusableError, OSError, ValueError) as error:
        raise JournalError(
            "restore.journal",
            f"{file}, which says how far a restore is, is damaged ({str(error)[:300]}): "
            f"{_give_up(folders)} removes it, then restore again",
        ) from None


def _give_up(folders: Folders) -> str:
    return f"`./cluster restore --cancel --stack {folders.settings.design.stack}`"


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
    journal, manifest = pending(folders), archive.read(file)
    if journal is not None and journal.phase == SWAPPED and replace and manifest.sha256 != journal.sha256:
        # With a state that slurmctld cannot begin with, no boot ends that restore: this one takes its place.
        say(f"the backup of {archive.when(journal.created)}, which is in its place, is replaced")
        journal = None
    if journal is not None:
        if journal.phase == CANCELLED:
            raise BackupError(
                "restore.other-under-way",
                f"a restore is being given up: {_give_up(folders)} completes that, then restore",
            )
        if manifest.sha256 != journal.sha256:
            instead = (
                "restore this one in its place (--replace)"
                if journal.phase == SWAPPED
                else f"give it up first ({_give_up(folders)})"
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
    work = _work(folders)
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


def _await_boot(run: Runner) -> None:
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
    _await_boot(run)
    folders = Folders(settings)
    if pending(folders) is not None:
        raise BackupError(
            "restore.boot-failed",
            "the controller's boot failed with the restored state, and is repeated: `./cluster logs --stack "
            f"{settings.design.stack} controller` says why. The restore is continued at each boot, and by "
            f"this command; {_give_up(folders)} gives it up, as long as it is not in its place",
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
    work = _work(folders)
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
        _discard(folders, run)
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
            _discard(folders, run)
    finally:
        run("systemctl", "restart", "--no-block", BOOT)
    say("the controller boots: jobs and commands wait")
    _await_boot(run)
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
    phase, journal = _phase(folders)
    # Without any journal it was completed meanwhile.
    if phase == SWAPPED or not (_work(folders) / JOURNAL).exists():
        when = "" if journal is None else f" of {archive.when(journal.created)}"
        raise BackupError(
            "restore.in-place",
            f"the backup{when} is in its place, and Slurm has begun with it: there is no way back but to "
            "restore another backup with --replace",
        )


def _note_cancelled(folders: Folders) -> None:
    _, journal = _phase(folders)
    # One that cannot be read counts as given up.
    if journal is not None:
        _note(folders, replace(journal, phase=CANCELLED))


def _discard(folders: Folders, run: Runner) -> None:
    """Remove what a restore has left. From the journal's end on no boot uses it."""
    work = _work(folders)
    (work / JOURNAL).unlink(missing_ok=True)
    if work.exists():
        _synchronize(work)
    shutil.rmtree(work, ignore_errors=True)
    if folders.settings.design.slurm.accounting:
        try:
            database.drop_loaded(run)
        except CommandError as error:  # the next restore drops it, too
            print(f"the loaded accounting stays for now: {error}", file=sys.stderr, flush=True)


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
    phase, journal = _phase(context.folders)
    if phase is None:
        return None
    if phase == CANCELLED:
        swap_back(state, work)
        _host_keys(context, work / FORMER_KEYS, "before the restore")
        return "put back the state of before a restore, which was given up"
    if phase == PREPARED and journal is not None:
        _keep_host_keys(context, work)
        swap(state, work, keep_name=not journal.accounting)
    if phase == PREPARED or journal is None:
        _host_keys(context, work / PARTS / archive.HOST_KEYS, "the backup")
    return (
        "restored a backup" if journal is None else f"restored the backup of {archive.when(journal.created)}"
    )


def _phase(folders: Folders) -> tuple[str | None, Journal | None]:
    """Return a restore's phase and its journal.

    If the journal cannot be read, the files tell: they are all in their place, or are to go back.
    """
    try:
        journal = pending(folders)
    except JournalError:
        work = _work(folders)
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
        _synchronize(state, source)
        # From here on the files that are in their place are those of before.
        (work / CLEARED).unlink()
        _synchronize(work)
    for path in sorted(former.iterdir()):
        path.rename(state / path.name)
    _synchronize(state, former)


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
    phase, journal = _phase(context.folders)
    if phase == CANCELLED:
        database.put_back(context.run)
    elif (phase == PREPARED and journal is not None and journal.accounting) or (
        phase == SWAPPED and journal is None
    ):
        database.take_place(context.run)


def note_in_place(context: Context) -> None:
    """Note that everything is in its place. slurmctld has not started yet."""
    phase, journal = _phase(context.folders)
    if phase == CANCELLED:
        _discard(context.folders, context.run)
        context.report.content["facts"]["restore"] = "was given up; the state of before is in force"
    elif phase == PREPARED and journal is not None:
        _note(context.folders, replace(journal, phase=SWAPPED, swapped=time.time()))


def finish(context: Context, control: Slurm) -> str | None:
    """Take the restored jobs off nodes that they do not have, remove what is left, and return a note.

    slurmctld answers. `None` means that there is no restore.
    """
    phase, journal = _phase(context.folders)
    if phase != SWAPPED:
        return None
    work = _work(context.folders)
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
