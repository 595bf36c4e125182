"""Work in other namespaces in a thread of this process, while its other threads stay where they are.

Python has no `setns` before 3.12. A socket belongs to the network in which it was made, and a program to the
namespaces of the thread that started it. So this whole process can use what such a thread has made.
"""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
_FS, _MOUNTS, _NETWORK = 0x00000200, 0x00020000, 0x40000000
_LIBC = ctypes.CDLL(None, use_errno=True)


def _call(name: str, *arguments: int) -> None:
    if getattr(_LIBC, name)(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def _in_thread(work: Callable[[], T]) -> T:
    """Run `work` in a thread of its own. Returns or raises what it does."""
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def listener(network: Path, address: str, port: int) -> socket.socket:
    """Return a socket that listens in another network, for this process to serve.

    Args:
        network: the file of the network namespace, such as /proc/PID/ns/net.
    """

    def listen() -> socket.socket:
        with network.open("rb") as file:
            _call("setns", file.fileno(), _NETWORK)
        return socket.create_server((address, port), backlog=256)

    return _in_thread(listen)


class Mounts:
    """Mounts that only threads see that called `enter`, and the programs that these threads start.

    The kernel removes them when this object and the last process that sees them are gone.

    Args:
        wanted: folder -> the name of the file system in memory that is mounted there.
    """

    def __init__(self, wanted: Mapping[Path, str]) -> None:
        def make() -> int:
            _call("unshare", _FS | _MOUNTS)
            subprocess.run(["mount", "--make-rprivate", "/"], check=True)
            for folder, name in wanted.items():
                folder.mkdir(parents=True)
                subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", name, str(folder)], check=True)
            return os.open("/proc/thread-self/ns/mnt", os.O_RDONLY)

        self._file = _in_thread(make)

    def enter(self) -> None:
        """Make the calling thread, and what it starts from now on, see these mounts."""
        _call("unshare", _FS)
        _call("setns", self._file, _MOUNTS)

    def close(self) -> None:
        os.close(self._file)
