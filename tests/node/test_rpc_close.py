"""Tests that a closing server stops accepting before its socket's descriptor is free for another."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

from node.system import rpc


class SlowToWake:
    """A listening socket whose thread is delayed between the return of the system call and its own code."""

    def __init__(self, real: socket.socket) -> None:
        self._real = real
        self._shut = threading.Event()
        self.accepting = threading.Event()
        self.closed = False
        self.seen: list[bool] = []

    def accept(self) -> None:
        self.accepting.set()
        assert self._shut.wait(60)
        threading.Event().wait(0.2)
        self.seen.append(self.closed)
        raise OSError(22, "Invalid argument")

    def shutdown(self, how: int) -> None:
        self._shut.set()

    def close(self) -> None:
        self.closed = True
        self._real.close()


def test_nobody_accepts_any_more_when_the_socket_is_closed(tmp_path: Path) -> None:
    server = rpc.Server(str(tmp_path / "s"), lambda *_: None)
    slow = SlowToWake(server._socket)
    server._socket = slow  # type: ignore[assignment]
    serving = threading.Thread(target=server.serve)
    serving.start()
    assert slow.accepting.wait(60)
    server.close()
    serving.join(60)
    assert slow.seen == [False]
