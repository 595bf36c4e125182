"""The controller's side of boot reports: the real server, and machines that speak to it from loopback."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from pathlib import Path
from typing import Any

from node.bootstrap.report_server import ReportServer

HERE = "127.0.0.1"


class Controller:
    """A report server in a thread.

    Args:
        folder: The folder of the reports.
        port: The server's port; by default one that is free.
        address: The server's address, one of this host.
    """

    def __init__(self, folder: Path, port: int = 0, address: str = HERE) -> None:
        self.folder = folder
        self.address = address
        self._listener = socket.create_server((address, port), backlog=64)
        self.port: int = self._listener.getsockname()[1]
        self._server = ReportServer(self._listener, folder)
        self._thread = threading.Thread(target=self._server.serve, daemon=True)
        self._thread.start()

    def kept(self, address: str = HERE) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = json.loads((self.folder / f"{address}.json").read_text())
        except FileNotFoundError:
            return None
        return found

    def connect(self, address: str = HERE) -> socket.socket:
        """Return a connection of root of the machine with this address."""
        for source in range(1023, 600, -1):
            made = socket.socket()
            made.settimeout(60)
            try:
                made.bind((address, source))
                made.connect((self.address, self.port))
            except OSError:
                made.close()
            else:
                return made
        raise AssertionError("no port is free")

    def send(self, content: object, address: str = HERE) -> bytes:
        """Send a report, and return the answer."""
        with self.connect(address) as connection:
            connection.sendall(json.dumps(content).encode())
            connection.shutdown(socket.SHUT_WR)
            return connection.recv(4096)

    def close(self) -> None:
        self._server.close()
        with contextlib.suppress(OSError), socket.create_connection((self.address, self.port)):
            pass  # it wakes the server up
        self._thread.join(60)
        self._listener.close()
