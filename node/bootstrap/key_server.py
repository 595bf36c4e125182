"""Serves the munge key on the controller to root on the cluster's other machines, and to nobody else.

With the key one can impersonate any user to Slurm, including root. A machine's cloud identity must not give
access to it, because every process of a machine can ask the metadata address for that identity. So only the
controller may read the secret store. The other machines ask the controller from a source port below 1024,
which the kernel gives to root only (`root_port`). The server listens on such a port too, so that no ordinary
user of the controller can take its place. The cloud's firewall decides which machines can reach the server at
all (`infra.clouds.firewall`).

After the key comes the controller's time, with which the other machines compare theirs (`clock`), and then
the password with which all machines ask the directory of users, if there is one.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import sys
import time
from pathlib import Path
from typing import NamedTuple

from node.bootstrap import root_port
from node.bootstrap.services import Service

NAME = "keys"
PORT = 816
"""The port of the key server. IANA has not assigned it."""
KEY_BYTES = 1024
TIME = struct.Struct(">d")
"""The controller's clock, in seconds since the epoch."""
ANSWER_BYTES = KEY_BYTES + TIME.size
LONGEST = ANSWER_BYTES + 4096
"""The longest answer, with a password."""
SECONDS = 5.0
"""The time limit of one connection."""
BACKLOG = 1024


class KeyUnavailableError(OSError):
    """The controller does not serve the key now. The message says why."""


class Given(NamedTuple):
    """What the controller gives.

    Attributes:
        time: The controller's clock, in seconds since the epoch.
        password: The password for the directory of users; empty if the controller has none.
    """

    key: bytes
    time: float
    password: bytes = b""


def fetch(address: str, port: int = PORT) -> Given:
    """Fetch the key and the time from the controller.

    Raises:
        KeyUnavailableError: The controller cannot be reached, or does not have the key yet.
        PermissionError: This process may not bind a source port below 1024.
    """
    try:
        connection = root_port.connect(address, port, SECONDS)
    except PermissionError:
        raise
    except OSError as error:
        raise KeyUnavailableError(f"{address}, port {port}: {error}") from error
    with contextlib.closing(connection):
        given = b""
        try:
            while len(given) <= LONGEST and (part := connection.recv(LONGEST + 1)):
                given += part
        except OSError as error:
            raise KeyUnavailableError(f"{address}, port {port}: {error}") from error
    if not ANSWER_BYTES <= len(given) <= LONGEST:
        raise KeyUnavailableError(f"{address}, port {port}: sent {len(given)} of {ANSWER_BYTES} bytes")
    (time_there,) = TIME.unpack(given[KEY_BYTES:ANSWER_BYTES])
    return Given(given[:KEY_BYTES], time_there, given[ANSWER_BYTES:])


def service(
    python: str, code: object, key_file: object, log: Path, password_file: object | None = None
) -> Service:
    """Return the server as a service of the controller, which runs as root."""
    start = f"import sys; sys.path.insert(0, {str(code)!r}); from node.bootstrap.key_server import main"
    files = [str(file) for file in (key_file, password_file) if file is not None]
    return Service(NAME, (python, "-I", "-S", "-c", f"{start}; main(*{files!r})"), log)


def main(key_file: str, password_file: str | None = None, port: int = PORT) -> None:
    """Serve the key and the password for ever."""
    refusals = root_port.Refusals()
    with socket.create_server(("", port), backlog=BACKLOG) as server:
        print(f"serving on port {port}", flush=True)
        while True:
            try:
                connection, (address, source, *_) = server.accept()
            except OSError as error:
                print(f"accept: {error}", file=sys.stderr, flush=True)
                continue
            with connection:
                answer(connection, address, source, Path(key_file), refusals, password_file)


def answer(
    connection: socket.socket,
    address: str,
    source: int,
    key_file: Path,
    refusals: root_port.Refusals,
    password_file: str | None = None,
) -> None:
    """Send the key, the time and the password to a peer whose source port shows that it is root.

    Closes any other connection.
    """
    if source not in root_port.RESERVED:
        refusals.add(f"{address}: refused, for its source port is not reserved")
        return
    try:
        connection.settimeout(SECONDS)
        key = key_file.read_bytes()
        password = Path(password_file).read_bytes() if password_file is not None else b""
        connection.sendall(key + TIME.pack(time.time()) + password)
        connection.shutdown(socket.SHUT_WR)
    except OSError as error:
        print(f"{address}: {error}", file=sys.stderr, flush=True)
    else:
        print(f"{address}: has the key", flush=True)
