"""Hands the munge key from the controller to root on the cluster's other machines, and to nobody else there.

Whoever has the key can forge any user to Slurm, root included. A machine's cloud identity must not give it:
every process of a machine can ask the metadata address for that identity. So the controller alone may read
the secret store, and the others ask the controller from a source port below 1024, which the kernel gives to
root alone, as NFS's `secure` exports do. The server listens on such a port too: no ordinary user of the
controller can take its place. The cloud's firewall decides who may reach it at all (`infra.clouds.reach`).
"""

from __future__ import annotations

import contextlib
import errno
import random
import socket
import sys
from pathlib import Path

from infra.node.bootstrap.services import Service

NAME = "keys"
PORT = 816
"""Where the controller serves the key. IANA has assigned it to nobody."""
RESERVED = range(512, 1024)
"""Source ports of which only root can have one (as rresvport(3) takes them)."""
KEY_BYTES = 1024
SECONDS = 5.0
"""How long one connection may take."""
BACKLOG = 1024


class KeyUnavailableError(OSError):
    """The controller does not hand out the key now; the message says what it came to."""


def fetch(address: str, port: int = PORT) -> bytes:
    """The key, from the controller.

    Raises:
        KeyUnavailableError: the controller cannot be reached, or does not have the key yet.
        PermissionError: this process may not take a source port below 1024.
    """
    with contextlib.closing(_connect(address, port)) as connection:
        key = b""
        try:
            while part := connection.recv(KEY_BYTES + 1):
                key += part
        except OSError as error:
            raise KeyUnavailableError(f"{address}, port {port}: {error}") from error
    if len(key) != KEY_BYTES:
        raise KeyUnavailableError(f"{address}, port {port}: sent {len(key)} of {KEY_BYTES} bytes")
    return key


def _connect(address: str, port: int) -> socket.socket:
    """A connection from a reserved source port that is free."""
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
    """The server as a daemon of the controller's, which root runs."""
    start = f"import sys; sys.path.insert(0, {str(code)!r}); from infra.node.bootstrap.key_server import main"
    return Service(NAME, (python, "-I", "-S", "-c", f"{start}; main({str(key_file)!r})"), log)


def main(key_file: str, port: int = PORT) -> None:
    """Serve the key file for ever."""
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
    """Send the key to a peer whose source port says that it is root on its machine; close on every other."""
    if source not in RESERVED:
        print(f"{address}: refused, for source port {source} is not reserved", file=sys.stderr, flush=True)
        return
    try:
        connection.settimeout(SECONDS)
        connection.sendall(key_file.read_bytes())
        connection.shutdown(socket.SHUT_WR)
    except OSError as error:
        print(f"{address}: {error}", file=sys.stderr, flush=True)
    else:
        print(f"{address}: has the key", flush=True)
