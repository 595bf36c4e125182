"""The checks of a checkout on Windows: WSL's first version, and a checkout on a Windows disk."""

from __future__ import annotations

import platform
from collections.abc import Iterable
from pathlib import Path

from cli.doctor.finding import Finding, stops, warns

MOUNTS = Path("/proc/self/mounts")
PAGE = "docs/windows.md"
WINDOWS_DISKS = ("9p", "drvfs")
"""The file systems by which WSL shows Windows' disks, version 2 and 1."""


def windows(project: Path, release: str | None = None, mounts: str | None = None) -> Iterable[Finding]:
    """Check this machine, if it is WSL.

    Args:
        release: The kernel's release instead of this machine's: `4.4.0-19041-Microsoft` in WSL 1,
            `5.15.90.1-microsoft-standard-WSL2` in WSL 2 (microsoft/WSL#4555, #423).
        mounts: The content of /proc/self/mounts instead of this machine's.
    """
    release = release or platform.release()
    if "microsoft" not in release.lower():
        return
    if "Microsoft" in release:
        yield stops(
            "windows.wsl",
            f"this is WSL 1 (kernel {release}), which has no Linux kernel: no namespaces, no control groups",
            f"In PowerShell: wsl --set-version <distribution> 2. {PAGE} has all steps.",
        )
    kind = _file_system(project, mounts)
    if kind in WINDOWS_DISKS:
        yield warns(
            "windows.disk",
            f"{project} is on a Windows disk ({kind}), where files have no modes and each access is slow",
            f"Clone into Linux's own file system: git clone … ~/slurm-stacks. {PAGE} says why.",
        )


def _file_system(path: Path, mounts: str | None) -> str:
    """The kind of the file system that a path is on; empty if the system does not say."""
    if mounts is None:
        try:
            mounts = MOUNTS.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""
    found = (Path("/"), "")
    for line in mounts.splitlines():
        _, _, rest = line.partition(" ")
        point, _, rest = rest.partition(" ")
        # A blank in a path is \\040 there.
        folder = Path(point.replace("\\040", " "))
        # The last of several mounts on a folder is the one that is seen.
        if path.resolve().is_relative_to(folder) and len(folder.parts) >= len(found[0].parts):
            found = (folder, rest.partition(" ")[0])
    return found[1]
