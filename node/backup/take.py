"""Takes a backup on the controller, while jobs and commands go on.

slurmctld writes each of its files by a draft that it renames, but a copy of its folder that takes a while
would have one file from before a change and another from after it. So slurmctld stands still (SIGSTOP) until
its files are linked or copied and the accounting's dump has begun its transaction. What is saved is what a
controller finds that lost its power in this moment, and Slurm goes on from that. Commands wait meanwhile.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from node.backup import archive, database, machines
from node.backup.archive import BackupError, Manifest
from node.bootstrap.accounting import DATABASE
from node.bootstrap.command import Runner
from node.bootstrap.systemd_services import PREFIX
from node.design.folders import Folders
from node.design.model import Settings
from node.slurm.control import Slurm, SlurmError
from node.system import locks, rpc, subprocesses
from node.system.waiting import wait_at_most

SLURMCTLD = f"{PREFIX}slurmctld.service"
WORK = ".backup"
"""The folder below slurmctld's, which thus is on the same file system. slurmctld ignores it."""
WRITE_ONCE = "hash."
"""The beginning of the names of folders with jobs' scripts and environments. Slurm never rewrites these."""
FLUSH_SECONDS = 15.0
"""How long slurmctld, which saves within five seconds, may take to save what is new."""
STILL_SECONDS = 30.0
"""The longest time for which slurmctld stands still. Its clients wait longer, and nodes too."""
STOP_SECONDS = 10.0
HOST_KEYS = "ssh_host_*_key*"
SPARE_MIB = 64
RELEASE_SECONDS = 30.0
RECORD_SECONDS = 30.0


@contextmanager
def taken(
    settings: Settings, settings_file: Path, control: Slurm, run: Runner
) -> Iterator[tuple[Manifest, Path]]:
    """Take a backup, and give its manifest and its packed content, which are removed at the end.

    Raises:
        BackupError: It cannot be taken now; nothing was changed.
    """
    folders = Folders(settings)
    state = Path(str(folders.state))
    work = state / WORK
    with alone(folders):
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(mode=0o700)
        try:
            yield _take(settings, settings_file, control, run, work)
        finally:
            shutil.rmtree(work, ignore_errors=True)


@contextmanager
def alone(folders: Folders) -> Iterator[None]:
    """Be the only backup or restore of the cluster.

    Raises:
        BackupError: Another one is under way.
    """
    lock = Path(str(folders.lib)) / "backup.lock"
    try:
        with locks.locked(lock, wait=False, mode=0o600):
            yield
    except BlockingIOError:
        raise BackupError(
            "backup.busy", "another backup or restore of this cluster is under way: try again when it is done"
        ) from None


def _take(
    settings: Settings, settings_file: Path, control: Slurm, run: Runner, work: Path
) -> tuple[Manifest, Path]:
    folders, accounting = Folders(settings), settings.design.slurm.accounting
    state, parts = Path(str(folders.state)), work / "parts"
    parts.mkdir()
    pid = int(run("systemctl", "show", "--property=MainPID", "--value", SLURMCTLD).strip() or 0)
    try:
        jobs = _saved(control, state) if pid else 0
    except SlurmError as error:
        raise BackupError(
            "backup.no-slurmctld", f"slurmctld does not answer, so nothing is saved: {error}"
        ) from error
    if not pid:
        raise BackupError(
            "backup.no-slurmctld",
            "slurmctld does not run, so nothing is saved: "
            f"`./cluster doctor --stack {settings.design.stack}` says why",
        )
    with suppress(rpc.RpcError, rpc.RpcUnavailableError):
        # What people have changed at run time is beside slurmctld's files.
        rpc.call(str(folders.daemon_socket), "record", RECORD_SECONDS)
    _check_space(state, accounting, machines.size(folders))
    dump = None
    try:
        with standing_still(pid):
            created = time.time()
            copy_state(state, parts / archive.STATE, created + STILL_SECONDS)
            if accounting:
                dump = database.Dump(parts / archive.ACCOUNTING)
                dump.until_begun()
        if dump is not None:
            dump.finish()
    except BaseException:
        if dump is not None:
            dump.stop()
        raise
    _copy_configuration(folders, settings_file, parts)
    machines.copy(folders, parts / archive.MACHINES)
    content = work / archive.CONTENT
    unpacked = archive.pack(parts, content)
    release = run(
        "slurmctld", "-V", timeout=RELEASE_SECONDS, env={"SLURM_CONF": str(folders.slurm_conf)}
    ).strip()
    design = settings.design
    return (
        Manifest(
            design.name,
            design.stack,
            round(created, 3),
            release,
            accounting,
            jobs,
            unpacked,
            content.stat().st_size,
            archive.digest(content),
        ),
        content,
    )


def _saved(control: Slurm, state: Path) -> int:
    """Make slurmctld save what is new, and return the number of jobs that have not ended.

    It saves by itself only every five minutes that jobs began and nodes came up. A slurmctld that is too slow
    has saved an earlier moment, which is as consistent.
    """
    began = time.time()
    unfinished = [job for job in control.jobs().values() if not job.is_over]
    wanted = []
    for job in unfinished[:3]:
        try:
            control.save_all(job)
        except SlurmError:  # it has just ended, and that is saved as well
            continue
        wanted.append(state / "job_state")
        break
    nodes = control.nodes().values()
    if (node := next((node for node in nodes if not node.reason), next(iter(nodes), None))) is not None:
        control.save_nodes(node)
        wanted.append(state / "node_state")
    wait_at_most(lambda: all(_newer(file, began) for file in wanted), FLUSH_SECONDS, 0.05)
    return len(unfinished)


def _newer(file: Path, since: float) -> bool:
    try:
        # The clock of files is coarser than the other one.
        return file.stat().st_mtime >= since - 0.02
    except FileNotFoundError:
        return False


def _check_space(state: Path, accounting: bool, more: int) -> None:
    """Check that there is space for the copy, and for the dump and what is packed of both.

    Args:
        more: The bytes of what else is copied.

    Raises:
        BackupError: There is too little.
    """
    size = more + sum(file.stat().st_size for file in state.rglob("*") if file.is_file())
    if accounting:
        tables = Path("/var/lib/mysql") / DATABASE
        size += sum(file.stat().st_size for file in tables.glob("*.ibd"))
    needed = 2 * size // 2**20 + SPARE_MIB
    if (free := shutil.disk_usage(state).free // 2**20) < needed:
        raise BackupError(
            "backup.no-space", f"{state}: {free} MiB are free, and a backup needs {needed}: make room there"
        )


@contextmanager
def standing_still(pid: int) -> Iterator[None]:
    """Stop a process, and let it go on at the end, also if this program is killed meanwhile.

    Raises:
        BackupError: The process has ended, or does not stop.
    """
    reading, writing = os.pipe()
    # This program ends at the end of its input: when the pipe is closed, by us or by our end.
    guard = subprocesses.start(
        # It outlives a signal to all of this program's processes, as systemd and a lost terminal send.
        ("/bin/sh", "-c", 'trap "" HUP INT TERM; read -r _; kill -CONT "$1"', "guard", str(pid)),
        {"PATH": subprocesses.SEARCH},
        subprocess.DEVNULL,
        stdin=reading,
    )
    os.close(reading)
    try:
        os.kill(pid, signal.SIGSTOP)
        if not wait_at_most(lambda: _stopped(pid), STOP_SECONDS):
            raise BackupError(
                "backup.not-still", "slurmctld does not stand still, so nothing is saved: try again"
            )
        yield
    except ProcessLookupError:
        raise BackupError("backup.no-slurmctld", "slurmctld has just ended: try again") from None
    finally:
        os.close(writing)
        guard.wait()


def _stopped(pid: int) -> bool:
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        return all((task / "stat").read_text().rpartition(") ")[2].startswith("T") for task in tasks)
    except FileNotFoundError:
        return False


def copy_state(state: Path, target: Path, until: float) -> None:
    """Copy slurmctld's folder, without drafts, and without what is not Slurm's.

    Args:
        until: The end of the time for it, in seconds since the epoch.

    Raises:
        BackupError: It takes too long.
    """
    target.mkdir()
    for folder, folders, files in os.walk(state):
        above = Path(folder)
        folders[:] = [name for name in folders if not name.startswith(".")]
        copy = target / above.relative_to(state)
        once = copy != target and copy.relative_to(target).parts[0].startswith(WRITE_ONCE)
        for name in folders:
            (copy / name).mkdir()
        for name in files:
            if name.startswith(".") or name.endswith(".new") or (above / name).is_symlink():
                continue
            if once:
                os.link(above / name, copy / name)
            else:
                shutil.copy2(above / name, copy / name)
            if time.time() > until:
                raise BackupError(
                    "backup.too-slow",
                    f"{state} could not be copied within {STILL_SECONDS:g} s, in which slurmctld stands "
                    "still: its disk is slow, or has very many jobs; try again when it is less busy",
                )


def _copy_configuration(folders: Folders, settings_file: Path, parts: Path) -> None:
    config, keys = parts / archive.CONFIG, parts / archive.HOST_KEYS
    config.mkdir()
    keys.mkdir()
    for file in sorted(Path(str(folders.etc)).iterdir()):
        if file.is_file():
            shutil.copy(file, config / file.name)
    shutil.copy(settings_file, config / "settings.json")
    for key in sorted(Path(str(folders.root / "etc/ssh")).glob(HOST_KEYS)):
        shutil.copy2(key, keys / key.name)


def write(settings: Settings, settings_file: Path, control: Slurm, run: Runner, output: BinaryIO) -> Manifest:
    """Take a backup and write it to a stream.

    Raises:
        BackupError: As `taken`.
    """
    with taken(settings, settings_file, control, run) as (manifest, content):
        archive.write(output, manifest, content)
        output.flush()
    return manifest
