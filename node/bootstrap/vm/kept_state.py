"""Puts on a disk of its own what must outlive the controller, so that another machine can take over.

The disk is mounted at `STATE`, and its folders at their usual places:

    slurmctld   Slurm's StateSaveLocation: queue, reservations, node states, accounting records not yet sent
    elastic     the elastic daemon's ledger and records
    mysql       the accounting's database
    ssh         the machine's SSH host keys

One machine has the disk at a time. The cloud attaches it to one machine, and its ext4 has multiple mount
protection (MMP): the kernel that has it mounted writes a sign of life each second, and a kernel that would
mount it waits until it has seen none for a while, or refuses. `state_guard` watches it from then on.
"""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

from node.bootstrap.command import CommandError
from node.bootstrap.context import Context
from node.bootstrap.vm import disks, host_keys, state_guard, users
from node.design.storage import Mount
from node.system import accounts, files, plurals
from node.system.waiting import wait_at_most

SIGN_OF_LIFE_SECONDS = 1
"""MMP's interval. With it the kernel waits 22 s for a machine that has lost its power, instead of 43 s."""
MOUNT_SECONDS = 120.0
COPY_SECONDS = 120.0
HELD_SECONDS = 20.0
STOPPED = ("slurmctld", "elastic", "slurmdbd")
"""The services that write to these folders, besides the database."""
MYSQL = "var/lib/mysql"
KEYS = "ssh_host_*_key*"
MODE = 0o755
FOLDERS = ("slurmctld", "elastic", "mysql", "ssh")
MOST_NAMED = 5
"""The most names that the boot report has of what users have left on the disk."""


def prepare(context: Context, mount: Mount) -> str:
    """Mount the disk and its folders, take the host keys from it, and start to watch it.

    Raises:
        TimeoutError: The disk was not attached in time.
        RuntimeError: Another machine has the disk, or it holds something else.
    """
    device = disks.volume(context, mount)
    if disks.mounted(str(context.at(mount.path.lstrip("/")))) is None:
        # On a machine that is up they may use the folders of the root disk until now.
        _stop(context)
        outcome = disks.make_file_system(context, device)
        _mount(context, mount, device)
        disks.grow(context, mount, device)
    else:
        outcome = "has"
    _close(context, mount)
    fresh = [name for name, place in _places(context).items() if _bind(context, mount, name, place)]
    if "slurmctld" not in fresh:
        # The cluster is up, although this machine may never have been its controller.
        context.report.content["was_ready"] = True
    _host_keys(context, mount)
    log = context.path(context.folders.log) / "state.log"
    files.folder(context.path(context.folders.run), 0o755, context.slurm_user)
    python, code = context.settings.site.python, context.folders.code
    context.services.start(state_guard.service(python, code, mount.path, context.folders.run, log))
    return f"{outcome} {device}" + (f" (new: {', '.join(fresh)})" if fresh else "")


def check_held(context: Context) -> None:
    """Check that this machine holds the disk.

    Raises:
        RuntimeError: It does not, so nothing that writes to it may start.
    """
    status = state_guard.status_file(context.folders.run)
    if not wait_at_most(lambda: state_guard.held(status), HELD_SECONDS):
        why = state_guard.reason(status)
        raise RuntimeError(
            f"this machine does not hold the disk with Slurm's state, so nothing starts: {why}"
        )


def _places(context: Context) -> dict[str, Path]:
    folders = context.folders
    places = {"slurmctld": context.path(folders.state), "elastic": context.path(folders.elastic)}
    if context.settings.design.slurm.accounting:
        places["mysql"] = context.at(MYSQL)
    return places


def _stop(context: Context) -> None:
    for name in STOPPED:
        context.services.stop(name)
    if context.at(MYSQL).is_dir():
        # The unit is not there before the package is.
        context.run("systemctl", "stop", "mariadb", timeout=120.0, allow=range(256))


def _mount(context: Context, mount: Mount, device: str) -> None:
    header = context.run("dumpe2fs", "-h", device, allow=range(256))
    words = next(
        (line.split() for line in header.splitlines() if line.startswith("Filesystem features:")), []
    )
    if not words:
        raise RuntimeError(
            f"{device} has no ext4, which shows whether another machine has it: it is not used"
        )
    if "mmp" not in words:
        context.run("tune2fs", "-O", "mmp", "-E", f"mmp_update_interval={SIGN_OF_LIFE_SECONDS}", device)
    target = files.folder(context.at(mount.path.lstrip("/")))
    # What the kernel still knows of the disk from before may be another machine's by now.
    context.run("blockdev", "--flushbufs", device)
    try:
        context.run("mount", "-o", mount.options, device, str(target), timeout=MOUNT_SECONDS)
    except CommandError as error:
        raise RuntimeError(
            f"{mount.path}: {device} cannot be mounted: another machine may have it, which must end first "
            f"(the kernel's log has the cause: dmesg)\n{error}"
        ) from error


def _close(context: Context, mount: Mount) -> None:
    """Let nobody but root make anything on the disk, below which each daemon has a folder of its own.

    Users could write to disks of earlier releases. What they have left there stays, for root alone, so that
    it does not grow. What stands where a daemon's folder belongs is given another name.
    """
    disk = files.folder(context.at(mount.path.lstrip("/")), MODE)
    if os.geteuid() != 0:
        return
    taken = [_take(entry) for entry in sorted(disk.iterdir()) if not _is_ours(context, entry)]
    if taken:
        count = plurals.count(len(taken), "file or folder", "files and folders")
        names = ", ".join(map(repr, taken[:MOST_NAMED]))
        context.report.content["facts"][f"files in {mount.path}"] = f"{count} of users, now root's: {names}"


def _is_ours(context: Context, entry: Path) -> bool:
    """Return whether what is on the disk is root's or a daemon's."""
    owner = entry.lstat().st_uid
    # The number of the database's user differs between machines, and is below those of people.
    if owner == 0 or (_place(entry) in FOLDERS and owner < users.FIRST_USER):
        return True
    return context.slurm_user is not None and owner == accounts.ids(context.slurm_user)[0]


def _place(entry: Path) -> str:
    """Return the daemon's folder which has this name, or whose draft has."""
    return entry.name.removeprefix(".").removesuffix(".new")


def _take(entry: Path) -> str:
    """Make root the owner of what a user has left, and nobody else a reader; return its name."""
    status = entry.lstat()
    if _place(entry) in FOLDERS:
        entry = entry.rename(entry.with_name(f"{entry.name}.of-{status.st_uid}"))
    os.chown(entry, 0, 0, follow_symlinks=False)
    if not stat.S_ISLNK(status.st_mode):
        entry.chmod(0o700 if stat.S_ISDIR(status.st_mode) else 0o600)
    return entry.name


def _bind(context: Context, mount: Mount, name: str, place: Path) -> bool:
    """Mount a folder of the disk at its place, and return whether the disk did not have it before.

    A folder that is new on the disk begins with the files of its place.
    """
    disk = context.at(mount.path.lstrip("/"))
    if (mounted := disks.mounted(str(place))) is not None and mounted == disks.mounted(str(disk)):
        return False
    source, draft = disk / name, disk / f".{name}.new"
    place.mkdir(parents=True, exist_ok=True)
    new = not source.exists()
    if new:
        shutil.rmtree(draft, ignore_errors=True)
        context.run("cp", "--archive", "--no-target-directory", str(place), str(draft), timeout=COPY_SECONDS)
        _publish(context, draft, source)
    context.run("mount", "--bind", str(source), str(place))
    return new


def _publish(context: Context, draft: Path, place: Path) -> None:
    """Give a finished folder its name.

    A power cut may leave the new name with empty files, unless the disk has their content before.
    """
    context.run("sync", "--file-system", str(draft), timeout=COPY_SECONDS)
    draft.rename(place)


def _host_keys(context: Context, mount: Mount) -> None:
    """Give this machine the host keys on the disk, so that users' known_hosts fit a new controller."""
    ssh_folder, kept = context.at("etc/ssh"), context.at(mount.path.lstrip("/")) / "ssh"
    if not kept.exists():
        host_keys.host_keys(context)
        draft = files.folder(kept.with_name(".ssh.new"), 0o700)
        for key in ssh_folder.glob(KEYS):
            shutil.copy2(key, draft / key.name)
        _publish(context, draft, kept)
        context.report.content["host_keys"] = host_keys.host_keys(context)
    else:
        adopt_host_keys(context, kept, mount.path)


def adopt_host_keys(context: Context, folder: Path, name: str) -> None:
    """Give this machine the host keys in a folder, and publish them; an empty folder changes nothing.

    Args:
        name: Where they come from, for the boot report.
    """
    ssh_folder = context.at("etc/ssh")
    if changed := [key for key in sorted(folder.glob(KEYS)) if not _same(ssh_folder / key.name, key)]:
        _replace_keys(folder, ssh_folder)
        context.run("systemctl", "try-reload-or-restart", "ssh.service", allow=range(256))
        context.report.content["facts"]["host keys"] = f"{plurals.count(len(changed), 'file')} from {name}"
    context.report.content["host_keys"] = host_keys.host_keys(context)


def restore_host_keys(context: Context, folder: Path, name: str) -> None:
    """Give this machine, and the disk that outlives it, other host keys, such as those of a backup.

    Args:
        name: Where they come from, for the boot report.
    """
    if (mount := context.settings.design.state()) is not None and list(folder.glob(KEYS)):
        _replace_keys(folder, context.at(mount.path.lstrip("/")) / "ssh")
    adopt_host_keys(context, folder, name)


def _replace_keys(source: Path, target: Path) -> None:
    for key in target.glob(KEYS):
        key.unlink()
    for key in sorted(source.glob(KEYS)):
        files.write(target / key.name, key.read_bytes(), 0o644 if key.suffix == ".pub" else 0o600)


def _same(file: Path, other: Path) -> bool:
    try:
        return file.read_bytes() == other.read_bytes()
    except OSError:
        return False
