"""The machine's own disks, those that it exports and those that came with it: file systems on both, made once
and never over data.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from infra.node.bootstrap import files
from infra.node.bootstrap.command import CommandError
from infra.node.bootstrap.context import Context
from infra.node.bootstrap.vm import clouds
from infra.node.model import Mount

ATTACH_SECONDS = 240.0
"""A disk may be attached after its machine has started."""
POLL_SECONDS = 1.0
LOOK_BYTES = 4 << 20
ARRAY = "dev/md/scratch"
NOTHING_FOUND = 2
"""blkid's exit status."""
MOUNTINFO = Path("/proc/self/mountinfo")


def prepare(context: Context) -> str:
    """File systems on the volumes that this machine exports, and on its scratch disks."""
    said = []
    for mount in context.mounts():
        if mount.kind == "nfs" and mount.served_by == context.role:
            disk = volume(context, mount)
            said.append(f"{mount.path}: {_format(context, disk)} {disk}")
        elif mount.kind == "nvme":
            disk = scratch(context)
            said.append(f"{mount.path}: {_format(context, disk)} {disk}")
    return "; ".join(said) or "no disks but the root's"


def volume(context: Context, mount: Mount) -> str:
    """The device of the disk of an exported mount; waits until it is attached.

    Raises:
        TimeoutError: it was not.
    """
    disk = clouds.of(context.settings).disk(context, mount)
    deadline = time.monotonic() + ATTACH_SECONDS
    while (device := disk.find()) is None:
        if time.monotonic() > deadline:
            raise TimeoutError(
                f"{mount.path}: {disk.name} was not attached to this machine for {ATTACH_SECONDS:g} s; "
                "it is in another zone, or in use by another machine"
            )
        time.sleep(POLL_SECONDS)
    return device


def scratch(context: Context) -> str:
    """The device of the disks that came with the machine, several as one RAID 0.

    Raises:
        FileNotFoundError: it has none.
    """
    own = clouds.of(context.settings).scratch(context)
    if not own:
        raise FileNotFoundError("this machine has no disks of its own: storage.local_scratch needs them")
    if len(own) == 1:
        return own[0]
    array = context.at(ARRAY)
    if not array.exists():
        # After a reboot the disks still are one array; after a stop they are empty.
        context.run("mdadm", "--assemble", "--scan", allow=(0, 1, 2))
    if not array.exists():
        make = ("mdadm", "--create", str(array), "--level=0", f"--raid-devices={len(own)}", "--run")
        context.run(*make, "--homehost=any", *own)
    return str(array)


def _format(context: Context, device: str) -> str:
    """Have a file system on a device.

    Raises:
        RuntimeError: there is something on it that is none.
    """
    facts = _facts(context, device)
    if kind := facts.get("TYPE"):
        if kind in ("ext4", "xfs"):
            return f"{kind} was on"
        raise RuntimeError(f"{device} holds {kind} and no file system of ours: it is left alone")
    if facts or not _blank(device):
        what = "a partition table" if "PTTYPE" in facts else "data"
        raise RuntimeError(
            f"{device} holds {what} and no file system: it is left alone; empty it, or give another"
        )
    context.run("mkfs.ext4", "-q", "-E", "lazy_itable_init=1,nodiscard", device, timeout=240.0)
    return "made ext4 on"


def _blank(device: str) -> bool:
    """Whether a device begins with zeros, as a new volume does."""
    with Path(device).open("rb") as disk:
        return not any(disk.read(LOOK_BYTES))


def mounted(path: str) -> tuple[str, str] | None:
    """What is mounted at a path: its type and source."""
    found = None
    for line in MOUNTINFO.read_text().splitlines():
        fields, _, rest = line.partition(" - ")
        if fields.split()[4].encode().decode("unicode_escape") == path:
            kind, origin = rest.split()[:2]
            found = kind, origin
    return found


def mount_volume(context: Context, mount: Mount, device: str, options: str = "defaults") -> None:
    """Mount a disk of the machine's own; what the image has at that place comes along the first time."""
    target = context.at(mount.path.lstrip("/"))
    if mounted(str(target)):
        return
    files.folder(target)
    if any(target.iterdir()):
        seed(context, target, device)
    context.run("mount", "-o", options, device, str(target))
    # It may have grown since.
    if mount.kind == "nfs" and _facts(context, device).get("TYPE") == "ext4":
        try:
            context.run("resize2fs", device, timeout=240.0)
        except CommandError as error:  # what is there is of use as it is
            context.report.content["facts"][f"disk {mount.path}"] = f"was not grown: {error}"


def _facts(context: Context, device: str) -> dict[str, str]:
    """What blkid finds on a device: TYPE, PTTYPE, UUID, …; empty where it finds nothing."""
    found = context.run("blkid", "--probe", "--output", "export", device, allow=(0, NOTHING_FOUND))
    return dict(line.split("=", 1) for line in found.splitlines() if "=" in line)


def seed(context: Context, target: Path, device: str) -> None:
    """Take what lies at a mount's place over to the disk: the login user's home, with the key that lets in.

    What the disk has already stays as it is.
    """
    draft = files.folder(context.at("run/slurm-stacks-seed"), 0o700)
    context.run("mount", device, str(draft))
    try:
        for entry in sorted(target.iterdir()):
            there = draft / entry.name
            if not there.exists():
                context.run("cp", "--archive", str(entry), str(there), timeout=120.0)
            else:
                _add_keys(entry, there)
    finally:
        context.run("umount", str(draft))


def _add_keys(image: Path, disk: Path) -> None:
    """A head that was replaced may have been given another key: both let in."""
    new, old = (home / ".ssh" / "authorized_keys" for home in (image, disk))
    if new.is_file() and old.is_file():
        lines = old.read_text().splitlines()
        more = [line for line in new.read_text().splitlines() if line not in lines]
        if more:
            with old.open("a") as stream:
                stream.write("".join(f"{line}\n" for line in more))
            os.sync()
