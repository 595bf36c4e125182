"""Serves the munge key on the controller to root on the cluster's other machines, and to nobody else.

With the key one can impersonate any user to Slurm, including root. A machine's cloud identity must not give
access to it, because every process of a machine can ask the metadata address for that identity. So only the
controller may read the secret store. The other machines ask the controller from a source port below 1024,
which the kernel gives to root only, as for NFS's `secure` exports. The server listens on such a port too, so
that no ordinary user of the controller can take its place. The cloud's firewall decides which machines can
reach the server at all (`infra.clouds.firewall`).

After the key comes the controller's time, with which the other machines compare theirs (`clock`).
"""

from __future__ import annotations

import contextlib
import errno
import random
import socket
import struct
import sys
import time
from pathlib import Path
from typing import NamedTuple

from node.bootstrap.services import Service

NAME = "keys"
PORT = 816
"""The port of the key server. IANA has not assigned it."""
RESERVED = range(512, 1024)
"""Source ports that only root can bind (the range of rresvport(3))."""
KEY_BYTES = 1024
TIME = struct.Struct(">d")
"""The controller's clock, in seconds since the epoch."""
SECONDS = 5.0
"""The time limit of one connection."""
BACKLOG = 1024


class KeyUnavailableError(OSError):
    """The controller does not serve the key now. The message says why."""


class Given(NamedTuple):
    """What the controller gives.

    Attributes:
        time: the controller's clock, in seconds since the epoch. `None`: it runs code that does not say.
    """

    key: bytes
    time: float | None


def fetch(address: str, port: int = PORT) -> Given:
    """Fetches the key and the time from the controller.

    Raises:
        KeyUnavailableError: The controller cannot be reached, or does not have the key yet.
        PermissionError: This process may not bind a source port below 1024.
    """
    with contextlib.closing(_connect(address, port)) as connection:
        given = b""
        try:
            while part := connection.recv(KEY_BYTES + TIME.size + 1):
                given += part
        except OSError as error:
            raise KeyUnavailableError(f"{address}, port {port}: {error}") from error
    # While `up` brings a new release, a new node may ask a controller that still runs the former one.
    if len(given) not in (KEY_BYTES, KEY_BYTES + TIME.size):
        raise KeyUnavailableError(f"{address}, port {port}: sent {len(given)} of {KEY_BYTES} bytes")
    key, clock = given[:KEY_BYTES], given[KEY_BYTES:]
    return Given(key, TIME.unpack(clock)[0] if clock else None)


def _connect(address: str, port: int) -> socket.socket:
    """Connects from a free reserved source port."""
    for source in random.sample(RESERVED, len(RESERVED)):
        connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        connection.settimeout(SECONDS)
        try:
            connection.bind(("", source))
            connection.connect((address, port))
        except OSError as error:
            connection.close()
            if isinstance(error, PermissionError):
                raise
            if error.errno not in (errno.EADDRINUSE, errno.EADDRNOTAVAIL):
                raise KeyUnavailableError(f"{address}, port {port}: {error}") from error
        else:
            return connection
    raise KeyUnavailableError("all source ports below 1024 are in use on this machine")


def service(python: str, code: object, key_file: object, log: Path) -> Service:
    """The server as a service of the controller, which runs as root."""
    start = f"import sys; sys.path.insert(0, {str(code)!r}); from node.bootstrap.key_server import main"
    return Service(NAME, (python, "-I", "-S", "-c", f"{start}; main({str(key_file)!r})"), log)


def main(key_file: str, port: int = PORT) -> None:
    """Serves the key file for ever."""
    with socket.create_server(("", port), backlog=BACKLOG) as server:
        print(f"serving on port {port}", flush=True)
        while True:
            try:
                connection, (address, source, *_) = server.accept()
            except OSError as error:
                print(f"accept: {error}", file=sys.stderr, flush=True)
                continue
            with connection:
                answer(connection, address, source, Path(key_file))


def answer(connection: socket.socket, address: str, source: int, key_file: Path) -> None:
    """Sends the key and the time to a peer whose source port shows that it is root.

    Closes any other connection.
    """
    if source not in RESERVED:
        print(f"{address}: refused, for source port {source} is not reserved", file=sys.stderr, flush=True)
        return
    try:
        connection.settimeout(SECONDS)
        key = key_file.read_bytes()
        connection.sendall(key + TIME.pack(time.time()))
        connection.shutdown(socket.SHUT_WR)
    except OSError as error:
        print(f"{address}: {error}", file=sys.stderr, flush=True)
    else:
        print(f"{address}: has the key", flush=True)
