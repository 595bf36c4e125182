"""Takes nodes' boot reports on the controller, each from the machine that it is about, and keeps the newest.

What a node reports changes what happens to it: a failed boot powers it down, a notice moves its jobs. Every
process of a node has the node's cloud identity, and all nodes share one role, so the bucket cannot say who
wrote an object there. Here the source port shows that root speaks, and the source address which machine does
(`root_port`). So a machine can only speak about itself, and from the first moment on: neither its role nor
munge is involved. The elastic daemon joins address and machine by the cloud's own list
(`node.elastic.drivers.boot_reports`).

The server runs as Slurm's user, once it has the port. It reads from many machines at once, in one thread, and
none can keep the others out: a connection has a limit of time and of length, an address has few connections,
and when there are too many, the oldest gives way. A time that counts is the controller's own.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import selectors
import socket
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from node.bootstrap import report, root_port
from node.bootstrap.services import Service
from node.design.folders import Folders
from node.system import files

NAME = "reports"
PORT = 817
"""The server's port. IANA has not assigned it. An ordinary user of the controller cannot take it."""
SECONDS = 5.0
"""The time limit of one connection."""
CONNECTIONS = 512
"""The most connections at once."""
EACH = 4
"""The most connections at once of one address."""
KEPT = 20_000
"""The most reports that are kept. A subnet has fewer nodes."""
BACKLOG = 1024
ALIVE_SECONDS = 10.0
"""The longest time between two marks that the server serves."""
SERVING = "serving"
"""The file with the mark: since when the server serves, in seconds of the machine's monotonic clock."""
TAKEN = b"taken"
"""The answer to a report that is kept. Any other answer says why it is not."""
ANSWER_BYTES = 1024


def folder(folders: Folders) -> PurePosixPath:
    """Return the folder with the newest report of each address, and with the mark."""
    return folders.lib / "reports"


# --- the controller ---------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Peer:
    """A connection from which a report comes.

    Attributes:
        until: When it must be over, on `time.monotonic`.
    """

    connection: socket.socket
    address: str
    until: float
    content: bytearray = field(default_factory=bytearray)


class ReportServer:
    """The server of a listening socket.

    Args:
        target: The folder of the reports. It must exist.
        clock: Returns seconds since the epoch.
    """

    def __init__(self, listener: socket.socket, target: Path, clock: Callable[[], float] = time.time) -> None:
        self._listener = listener
        self._folder = target
        self._clock = clock
        self._selector = selectors.DefaultSelector()
        # In the order of their arrival, which is also that of their time limits.
        self._peers: dict[int, _Peer] = {}
        self._of: Counter[str] = Counter()
        self._refusals = root_port.Refusals()
        self._marked = float("-inf")
        self._ended = False
        for draft in target.glob(".*"):
            draft.unlink(missing_ok=True)
        self._known = {path.stem for path in target.glob("*.json")}

    def serve(self) -> None:
        """Serve until `close`."""
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        files.write(self._folder / SERVING, json.dumps(time.monotonic()).encode(), 0o600)
        while not self._ended:
            self._mark()
            for key, _ in self._selector.select(min(SECONDS, ALIVE_SECONDS) / 5):
                if key.fileobj is self._listener:
                    self._accept()
                elif (peer := self._peers.get(key.fd)) is not None:
                    self._receive(peer)
            self._end_late()
            self._refusals.log()
        for peer in list(self._peers.values()):
            self._drop(peer)
        self._selector.close()

    def close(self) -> None:
        self._ended = True

    def _mark(self) -> None:
        if (now := time.monotonic()) - self._marked >= ALIVE_SECONDS:
            self._marked = now
            with contextlib.suppress(OSError):
                os.utime(self._folder / SERVING)

    def _accept(self) -> None:
        # A flood of connections must not keep those that are here from being read.
        for _ in range(BACKLOG):
            try:
                connection, (address, source, *_) = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:  # such as no further file descriptor: the oldest gives one back
                self._refusals.add(f"accept: {error}")
                self._drop_oldest()
                return
            if source not in root_port.RESERVED:
                self._refusals.add(f"{address}: a source port that is not reserved")
                connection.close()
            elif self._of[address] >= EACH:
                self._refusals.add(f"{address}: {EACH} connections already")
                connection.close()
            else:
                if len(self._peers) >= CONNECTIONS:
                    self._drop_oldest()
                connection.setblocking(False)
                self._peers[connection.fileno()] = _Peer(connection, address, time.monotonic() + SECONDS)
                self._of[address] += 1
                self._selector.register(connection, selectors.EVENT_READ)

    def _receive(self, peer: _Peer) -> None:
        try:
            part = peer.connection.recv(report.MOST_BYTES + 1)
        except BlockingIOError:
            return
        except OSError:
            self._drop(peer)
            return
        peer.content += part
        if part and len(peer.content) <= report.MOST_BYTES:
            return
        try:
            answer = self.take(peer.address, bytes(peer.content))
        except Exception as error:  # whatever a machine sends, the server stays up for the others
            answer = f"the controller cannot keep the report: {error!r}"
            self._refusals.add(f"{peer.address}: {error!r}"[:ANSWER_BYTES])
        with contextlib.suppress(OSError):
            peer.connection.send(answer.encode()[:ANSWER_BYTES] if answer else TAKEN)
        self._drop(peer)

    def take(self, address: str, content: bytes) -> str:
        """Keep a report of the machine with this address, and return why not, or an empty text."""
        now = self._clock()
        try:
            checked = report.checked(content, now)
        except report.BrokenReportError as error:
            self._refusals.add(f"{address}: a broken report: {error}")
            return f"the report is broken: {error}"
        if address not in self._known and len(self._known) >= KEPT:
            oldest = min(self._folder.glob("*.json"), key=lambda path: path.stat().st_mtime)
            oldest.unlink()
            self._known.discard(oldest.stem)
        kept = {"received": now, **checked._asdict()}
        files.write(self._folder / f"{address}.json", json.dumps(kept).encode(), 0o600)
        self._known.add(address)
        return ""

    def _end_late(self) -> None:
        now = time.monotonic()
        while self._peers and (oldest := next(iter(self._peers.values()))).until <= now:
            self._refusals.add(f"{oldest.address}: no whole report in {SECONDS:g} s")
            self._drop(oldest)

    def _drop_oldest(self) -> None:
        if self._peers:
            self._drop(next(iter(self._peers.values())))

    def _drop(self, peer: _Peer) -> None:
        del self._peers[peer.connection.fileno()]
        self._selector.unregister(peer.connection)
        peer.connection.close()
        self._of[peer.address] -= 1
        if not self._of[peer.address]:
            del self._of[peer.address]


def service(python: str, code: object, target: object, user: str | None, log: Path) -> Service:
    """Return the server as a service of the controller. It begins as root, for its port."""
    start = f"import sys; sys.path.insert(0, {str(code)!r}); from node.bootstrap.report_server import main"
    return Service(NAME, (python, "-I", "-S", "-c", f"{start}; main({str(target)!r}, {user!r})"), log)


def main(target: str, user: str | None, port: int = PORT) -> None:
    """Serve for ever, as the user. `None` means the user of this process."""
    with socket.create_server(("", port), backlog=BACKLOG) as listener:
        path = files.folder(Path(target), 0o700, user)
        if user is not None:
            entry = pwd.getpwnam(user)
            os.initgroups(user, entry.pw_gid)
            os.setgid(entry.pw_gid)
            os.setuid(entry.pw_uid)
        print(f"serving on port {port}", flush=True)
        ReportServer(listener, path).serve()
