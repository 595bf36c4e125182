"""Disks of the local cloud: image files of this host that one machine has at a time, as loop devices.

A machine sees such a disk as a block device, and makes and mounts its file system itself, as on a cloud.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from node.system import subprocesses
from node.system.subprocesses import SEARCH
from node.system.waiting import wait_at_most

SYS_BLOCK = Path("/sys/block")
DETACH_SECONDS = 30.0
"""How long a disk of a machine that has just ended may stay in use: its files are written out first."""
COMMAND_SECONDS = 60.0


class VolumeError(OSError):
    """A disk cannot be attached."""


def attach(image: Path, size_gib: int) -> Path:
    """Attach a disk to a machine that starts, and return its device. The file is made if it is missing.

    Raises:
        VolumeError: Another machine has the disk, or this host gives no loop device.
        OSError: The file cannot be made.
    """
    image.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(image, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        # It grows with the design, and takes no space before it is written.
        if os.fstat(handle).st_size < size_gib << 30:
            os.truncate(handle, size_gib << 30)
    finally:
        os.close(handle)
    if not wait_at_most(lambda: not attached(image), DETACH_SECONDS, 0.05):
        devices = ", ".join(map(str, attached(image)))
        raise VolumeError(f"{image} is attached as {devices}: one machine has it at a time")
    done = subprocesses.run(["losetup", "--find", "--show", str(image)], {"PATH": SEARCH}, COMMAND_SECONDS)
    if done.status:
        raise VolumeError(f"{image} cannot be attached: losetup: {done.last_line()}")
    return Path(done.output.strip())


def detach(below: Path) -> list[Path]:
    """Detach disks from machines that have ended, and return the devices that are still in use.

    Args:
        below: An image file, or a folder of image files.
    """

    def gone() -> bool:
        for device in attached(below):
            # A device in use goes with its last user.
            subprocesses.run(["losetup", "--detach", str(device)], {"PATH": SEARCH}, COMMAND_SECONDS)
        return not attached(below)

    wait_at_most(gone, DETACH_SECONDS, 0.05)
    return attached(below)


def unavailable() -> str:
    """Return why this host gives no loop device; empty if it gives one."""
    try:
        done = subprocesses.run(["losetup", "--find"], {"PATH": SEARCH}, COMMAND_SECONDS)
    except OSError as error:
        return str(error)
    return done.last_line() if done.status else ""


def attached(below: Path) -> list[Path]:
    """Return the devices of an image file, or of all image files below a folder."""
    devices = []
    for backing in SYS_BLOCK.glob("loop*/loop/backing_file"):
        with contextlib.suppress(OSError):
            # The kernel adds a word to the path of a file that was removed.
            file = Path(backing.read_text().rstrip("\n").removesuffix(" (deleted)"))
            if file == below or below in file.parents:
                devices.append(Path("/dev") / backing.parent.parent.name)
    return devices
