"""TCP ports of this machine: which are free, and which process listens on one. The source is /proc."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterable
from pathlib import Path

_LISTENING = "0A"


def free(port: int) -> bool:
    """Return whether a daemon that listens on all addresses, as Slurm's daemons do, could bind the port."""
    with socket.socket() as probe:
        # slurmctld sets the same option, so a port in TIME_WAIT is free for it.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def listening(pids: Iterable[int]) -> set[int]:
    """Return the ports on which these processes listen. Processes of other users are left out."""
    sockets = _sockets()
    return {sockets[inode] for pid in pids for inode in _held(pid) if inode in sockets}


def holder(port: int) -> str:
    """Return the process that listens on a port: `python3 (pid 123)`, or a phrase for another user's."""
    wanted = {inode for inode, number in _sockets().items() if number == port}
    for entry in os.listdir("/proc"):  # noqa: PTH208 - pathlib doubles the cost of a scan
        if entry.isdigit() and wanted & set(_held(int(entry))):
            with contextlib.suppress(OSError):
                return f"{Path(f'/proc/{entry}/comm').read_text().strip()} (pid {entry})"
    return "a process of another user"


def _sockets() -> dict[str, int]:
    """Return inode -> port of every listening TCP socket."""
    ports: dict[str, int] = {}
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTENING:
                    ports[fields[9]] = int(fields[1].rpartition(":")[2], 16)
    return ports


def _held(pid: int) -> list[str]:
    """Return the inodes of a process's sockets."""
    inodes = []
    with contextlib.suppress(OSError):
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                target = os.readlink(entry.path)  # noqa: PTH115
                if target.startswith("socket:["):
                    inodes.append(target[8:-1])
    return inodes
