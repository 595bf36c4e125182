"""File systems of a test's own (small, full, noexec), which no other process sees: a mount namespace."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

FILL = "head -c 200000000 /dev/zero"
"""More than any file system of a test has, and no more than any machine can spare."""
STAGE = Path("/mnt")


class PrivateMounts:
    """A mount namespace; its mounts end with it.

    Skips the test where this user may not have one.
    """

    def __init__(self) -> None:
        unshare = ["unshare", "--mount", "--propagation", "private"]
        if os.geteuid() != 0 or subprocess.run([*unshare, "true"], check=False).returncode:
            pytest.skip("needs a mount namespace of its own, which is root's to make")
        # It says when it is there: before that nobody could enter it.
        self._holder = subprocess.Popen(
            [*unshare, "sh", "-c", "echo; exec sleep infinity"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
        )
        assert self._holder.stdout is not None
        self._holder.stdout.readline()
        self._staged = 0

    def __call__(self, *command: str) -> list[str]:
        """The command that runs `command` inside."""
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

        Not on a folder that somebody outside may remove: that takes the mount away in here, too.
        """
        self.run("mkdir", "-p", str(folder))
        mounted = self.run("sh", "-c", f"mountpoint -q '{folder}' && echo yes || true") != ""
        given = ",".join([*(["remount"] if mounted else []), f"size={size}", "mode=755", *options])
        self.run("mount", "-t", "tmpfs", "-o", given, "tmpfs", str(folder))

    def replace(self, folder: Path, keep: Sequence[Path], size: str, mode: str = "755") -> None:
        """Put an empty file system in a folder's place; what shall be kept of it is there as it was."""
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
        """Leave no room at all."""
        self.run("sh", "-c", f"mountpoint -q '{folder}' && {{ {FILL} >'{folder}/filling' || true; }}")

    def empty(self, folder: Path) -> None:
        """Take the filling away."""
        self.run("rm", f"{folder}/filling")

    def close(self) -> None:
        self._holder.kill()
        self._holder.communicate()
