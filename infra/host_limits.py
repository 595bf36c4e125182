"""Names the limit of this machine that a program has reached, from the words of its error.

What a local cluster needs is not known beforehand: it depends on its jobs. So nothing is checked before; who
reaches a limit is told which one it was, and how to raise it.
"""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

NO_INOTIFY = "inotify object: Too many open files"
"""What systemd says as a machine's first process when it gets no inotify object (systemd's manager.c)."""
NO_FILE = "Too many open files"
NO_PROCESS = ("Resource temporarily unavailable", "Cannot fork", "can't start new thread")
"""What the C library, dash and Python say where the kernel refuses a process or a thread (EAGAIN)."""
NO_MEMORY = ("Cannot allocate memory", "bad_alloc", "MemoryError")


def named(text: str, root: Path = Path("/")) -> str | None:
    """Return which limit an error means, and how to raise it; `None` if it means none.

    Args:
        text: What a program of this machine said: its message, or the end of its log.
        root: The folder below which /proc and /sys are read.
    """
    if NO_INOTIFY in text:
        setting = "fs.inotify.max_user_instances"
        return (
            f"The machines of all clusters have used up this host's {setting}. As root: sysctl -w "
            f"{setting}=1024 (and the same line in /etc/sysctl.d); then run up again"
        )
    if NO_FILE in text:
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return f"ulimit -n is {most}: raise it in this shell (ulimit -n 1024), and run the command again"
    if any(words in text for words in NO_PROCESS):
        lowest = [words for _, words in sorted(_of_processes(root))[:2]]
        return (
            "This machine allows no further process or thread: "
            f"{'; '.join(lowest)}. Raise what is too low, and run the command again"
        )
    most = resource.getrlimit(resource.RLIMIT_AS)[0]
    if most != resource.RLIM_INFINITY and any(words in text for words in NO_MEMORY):
        cure = "raise it in this shell (ulimit -v unlimited), and run the command again"
        return f"ulimit -v is {most // 1024} KiB: {cure}"
    return None


def _of_processes(root: Path) -> Iterator[tuple[int, str]]:
    """Yield each limit on processes and threads that this process has, and where it is raised."""
    soft = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    if os.geteuid() and soft != resource.RLIM_INFINITY:  # the kernel exempts root
        yield soft, f"ulimit -u is {soft} (ulimit -u unlimited in this shell, or /etc/security/limits.conf)"
    if (most := min(_of_groups(root), default=None)) is not None:
        yield (
            most,
            f"pids.max of this container or service is {most} (docker: --pids-limit; systemd: TasksMax)",
        )
    for name in ("threads-max", "pid_max"):
        with contextlib.suppress(OSError, ValueError):
            most = int((root / "proc/sys/kernel" / name).read_text())
            yield most, f"kernel.{name} is {most} (sysctl)"


def _of_groups(root: Path) -> Iterator[int]:
    """Yield the limits on processes of the control groups that this process is in."""
    with contextlib.suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, group = line.split(":", 2)
            if controllers not in ("", "pids"):
                continue
            inner = PurePosixPath(controllers) / group.lstrip("/")
            # A container may see its own group as the root.
            for folder in (inner, *inner.parents):
                with contextlib.suppress(OSError, ValueError):  # "max" is no limit
                    yield int((root / "sys/fs/cgroup" / folder / "pids.max").read_text())
