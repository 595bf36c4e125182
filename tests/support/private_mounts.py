"""File systems of a test (small, full, noexec) in a mount namespace, which other processes do not see."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

FILL = "head -c 200000000 /dev/zero"
"""Writes more than a test's file system can hold, but no more than any machine can spare."""
STAGE = Path("/mnt")
EXT4_SHUTDOWN, WITHOUT_LOG = 0x8004587D, (2).to_bytes(4, "little")
"""EXT4_IOC_SHUTDOWN of the kernel's fs/ext4/ext4.h: the file system then answers as if its disk were gone."""


class PrivateMounts:
    """A mount namespace. Its mounts end with it.

    The test is skipped if this user may not make one.
    """

    def __init__(self) -> None:
        unshare = ["unshare", "--mount", "--propagation", "private"]
        if os.geteuid() != 0 or subprocess.run([*unshare, "true"], check=False).returncode:
            pytest.skip("needs a mount namespace of its own, which is root's to make")
        # The process prints a line when the namespace exists, which cannot be entered before.
        self._holder = subprocess.Popen(
            [*unshare, "sh", "-c", "echo; exec sleep infinity"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
        )
        assert self._holder.stdout is not None
        self._holder.stdout.readline()
        self._staged = 0

    def __call__(self, *command: str) -> list[str]:
        """Return a command that runs `command` inside."""
        return ["nsenter", f"--target={self._holder.pid}", "--mount", *command]

    def run(self, *command: str) -> str:
        """Run a command inside, as root, and return what it printed."""
        done = subprocess.run(
            PrivateMounts.__call__(self, *command), capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def tmpfs(self, folder: Path, size: str, *options: str) -> None:
        """Mount a file system of `size` (`8m`) on a folder, or give the one there another size.

        The folder must not be one that is removed outside: that removes the mount in here, too.
        """
        self.run("mkdir", "-p", str(folder))
        mounted = self.run("sh", "-c", f"mountpoint -q '{folder}' && echo yes || true") != ""
        given = ",".join([*(["remount"] if mounted else []), f"size={size}", "mode=755", *options])
        self.run("mount", "-t", "tmpfs", "-o", given, "tmpfs", str(folder))

    def replace(self, folder: Path, keep: Sequence[Path], size: str, mode: str = "755") -> None:
        """Mount an empty file system over a folder. The parts to be kept are there as they were."""
        if not self._staged:
            self.tmpfs(STAGE, "1m")
        for path in keep:
            place = STAGE / str(self._staged)
            self.run("sh", "-c", f"mkdir '{place}' && mount --bind '{path}' '{place}'")
            self._staged += 1
        self.run("mount", "-t", "tmpfs", "-o", f"size={size},mode={mode}", "tmpfs", str(folder))
        for number, path in enumerate(keep, self._staged - len(keep)):
            self.run("sh", "-c", f"mkdir -p '{path}' && mount --move '{STAGE}/{number}' '{path}'")

    def fill(self, folder: Path) -> None:
        """Fill the file system completely."""
        self.run("sh", "-c", f"mountpoint -q '{folder}' && {{ {FILL} >'{folder}/filling' || true; }}")

    def empty(self, folder: Path) -> None:
        """Remove what `fill` has written."""
        self.run("rm", f"{folder}/filling")

    def close(self) -> None:
        self._holder.kill()
        self._holder.communicate()
