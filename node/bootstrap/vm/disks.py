"""The machine's own disks: those that it exports, and those that come with it.

File systems are made once, and never over existing data.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from node.bootstrap.command import CommandError
from node.bootstrap.context import Context
from node.bootstrap.vm import clouds
from node.design.storage import Mount
from node.system import files, foreign
from node.system.waiting import wait_until

ATTACH_SECONDS = 240.0
"""How long to wait for a disk, which may be attached after the machine has started."""
POLL_SECONDS = 1.0
LOOK_BYTES = 4 << 20
ARRAY = "dev/md/scratch"
NOTHING_FOUND = 2
"""blkid's exit status."""
MOUNTINFO = Path("/proc/self/mountinfo")


def prepare(context: Context) -> str:
    """Make file systems on the volumes that this machine exports, and on its scratch disks.

    `kept_state` does so with the disk that outlives the controller.
    """
    notes = []
    for mount in context.mounts():
        if mount.kind == "nfs" and mount.served_by == context.role:
            disk = volume(context, mount)
            notes.append(f"{mount.path}: {make_file_system(context, disk)} {disk}")
        elif mount.kind == "nvme":
            disk = scratch(context)
            notes.append(f"{mount.path}: {make_file_system(context, disk)} {disk}")
    return "; ".join(notes) or "no disks but the root disk"


def volume(context: Context, mount: Mount) -> str:
    """Wait until the disk of an exported mount is attached, and returns its device.

    Raises:
        TimeoutError: The disk was not attached in time.
    """
    disk = clouds.of(context.settings).disk(context, mount)
    late = (
        f"{mount.path}: {disk.name} was not attached to this machine for {ATTACH_SECONDS:g} s; "
        "it is in another zone, or in use by another machine"
    )
    return wait_until(disk.find, ATTACH_SECONDS, late, POLL_SECONDS)


def scratch(context: Context) -> str:
    """Return the device of the disks that come with the machine. Several disks become one RAID 0.

    Raises:
        FileNotFoundError: The machine has no such disks.
    """
    devices = clouds.of(context.settings).scratch(context)
    if not devices:
        raise FileNotFoundError("this machine has no disks of its own: storage.local_scratch needs them")
    if len(devices) == 1:
        return devices[0]
    array = context.at(ARRAY)
    if not array.exists():
        # After a reboot the disks are still one array. After a stop they are empty.
        context.run("mdadm", "--assemble", "--scan", allow=(0, 1, 2))
    if not array.exists():
        make = ("mdadm", "--create", str(array), "--level=0", f"--raid-devices={len(devices)}", "--run")
        context.run(*make, "--homehost=any", *devices)
    return str(array)


def make_file_system(context: Context, device: str, *options: str) -> str:
    """Make a file system on a device that has none, and return what was done.

    Args:
        options: Further options of `mkfs.ext4`.

    Raises:
        RuntimeError: The device holds something else.
    """
    facts = _facts(context, device)
    if kind := facts.get("TYPE"):
        if kind in ("ext4", "xfs"):
            return f"{kind} was on"
        raise RuntimeError(f"{device} holds {kind} and no file system of ours: it is not changed")
    if facts or not _blank(device):
        what = "a partition table" if "PTTYPE" in facts else "data"
        raise RuntimeError(
            f"{device} holds {what} and no file system: it is not changed; empty it, or give another"
        )
    context.run("mkfs.ext4", "-q", "-E", "lazy_itable_init=1,nodiscard", *options, device, timeout=240.0)
    return "made ext4 on"


def _blank(device: str) -> bool:
    """Return whether a device begins with zeros, like a new volume."""
    with Path(device).open("rb") as disk:
        return not any(disk.read(LOOK_BYTES))


def mounted(path: str) -> tuple[str, str] | None:
    """Return the type and the source of the file system that is mounted at a path."""
    mount = None
    for line in MOUNTINFO.read_text().splitlines():
        fields, _, rest = line.partition(" - ")
        if fields.split()[4].encode().decode("unicode_escape") == path:
            kind, origin = rest.split()[:2]
            mount = kind, origin
    return mount


def mount_volume(context: Context, mount: Mount, device: str, options: str = "defaults") -> None:
    """Mount a machine's own disk. At the first time the image's files at that path are copied to it."""
    target = context.at(mount.path.lstrip("/"))
    if mounted(str(target)):
        return
    files.folder(target)
    if any(target.iterdir()):
        copy_to_disk(context, target, device)
    context.run("mount", "-o", options, device, str(target))
    if mount.kind == "nfs":
        grow(context, mount, device)


def grow(context: Context, mount: Mount, device: str) -> None:
    """Let the file system of a mounted disk have all of it: the disk may have grown since the last boot."""
    if _facts(context, device).get("TYPE") == "ext4":
        try:
            context.run("resize2fs", device, timeout=240.0)
        except CommandError as error:  # the file system works with its present size too
            context.report.content["facts"][f"disk {mount.path}"] = f"was not grown: {error}"


def _facts(context: Context, device: str) -> dict[str, str]:
    """Return what blkid finds on a device: TYPE, PTTYPE, UUID, …. It is empty if blkid finds nothing."""
    exported = context.run("blkid", "--probe", "--output", "export", device, allow=(0, NOTHING_FOUND))
    return dict(line.split("=", 1) for line in exported.splitlines() if "=" in line)


def copy_to_disk(context: Context, target: Path, device: str) -> None:
    """Copy the files at a mount point to the disk, such as the login user's home with its SSH key.

    Files that the disk has already stay as they are.
    """
    draft = files.folder(context.at("run/slurm-stacks-seed"), 0o700)
    context.run("mount", device, str(draft))
    try:
        for entry in sorted(target.iterdir()):
            destination = draft / entry.name
            if not destination.exists():
                context.run("cp", "--archive", str(entry), str(destination), timeout=120.0)
            else:
                _add_keys(entry, destination)
    finally:
        context.run("umount", str(draft))


def _add_keys(image: Path, disk: Path) -> None:
    """Add the image's authorized keys, because a replaced controller may have a new key. Both are valid."""
    new = image / ".ssh" / "authorized_keys"
    if not new.is_file():
        return
    # The disk has been a user's, whose links may lead anywhere.
    flags = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        with foreign.folder(disk) as home, foreign.folder(Path(".ssh"), home) as folder:
            handle = os.open("authorized_keys", flags, dir_fd=folder)
    except (FileNotFoundError, foreign.UnusableError):
        return
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENXIO):
            raise
        return
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        return
    with os.fdopen(handle, "r+") as stream:
        lines = stream.read().splitlines()
        more = [line for line in new.read_text().splitlines() if line not in lines]
        stream.write("".join(f"{line}\n" for line in more))
    if more:
        os.sync()
