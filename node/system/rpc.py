"""Remote procedure calls over a Unix socket: one request and one answer, each as a line of JSON.

There are two servers: the elastic daemon on the controller, and the local cloud's agent. Clients must start
in milliseconds, because Slurm calls them for every job. So this module imports as little as possible.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from node.system.waiting import pauses_for, retry

Handler = Callable[[str, dict[str, Any]], Any]
MAX_LINE = 64 * 1024 * 1024
_PASSING = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.ECONNABORTED)
"""Errors of `accept` that pass: the server cannot take a further connection now."""
FULL_SECONDS = 0.05
"""Seconds between two attempts to connect to a server whose queue is full."""


class RpcUnavailableError(Exception):
    """No server answers: the socket is missing, refuses, times out, or closes without an answer."""


class RpcSilentError(RpcUnavailableError):
    """A server took the question and said nothing until the timeout."""


class RpcError(Exception):
    """The server answered that it failed.

    Attributes:
        code: The server's error code, for programs.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@contextlib.contextmanager
def _short_path(path: str) -> Iterator[str]:
    """Yield a name for the socket that is shorter than the kernel's limit of 108 bytes."""
    if len(os.fsencode(path)) < 100:
        yield path
        return
    folder = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{os.path.basename(path)}"
    finally:
        os.close(folder)


def call(path: str, method: str, timeout: float = 10.0, /, **params: Any) -> Any:
    """Ask the server at `path` and returns its answer.

    Args:
        timeout: Seconds of silence after which the server counts as unavailable.

    Raises:
        RpcUnavailableError: No server answers.
        RpcError: The server refused or failed.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout)
        try:
            _connect(connection, path, timeout)
            connection.sendall(json.dumps({"method": method, "params": params}).encode() + b"\n")
            with connection.makefile("rb") as stream:
                line = stream.readline(MAX_LINE)
        except TimeoutError as error:
            raise RpcSilentError(f"{path}: {error}") from error
        except OSError as error:
            raise RpcUnavailableError(f"{path}: {error}") from error
    if not line.endswith(b"\n"):
        raise RpcUnavailableError(f"{path}: closed before the answer was whole")
    try:
        answer = json.loads(line)
        if "error" not in answer:
            return answer["result"]
        code, message = answer["error"]["code"], answer["error"]["message"]
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise RpcUnavailableError(f"{path}: what answers there is no server of ours") from error
    raise RpcError(code, message)


def _connect(connection: socket.socket, path: str, timeout: float) -> None:
    """Connect, and tries again while the server's queue is full, as with hundreds of clients at once.

    Raises:
        OSError: There is no server, or its queue was full until the timeout.
    """
    with _short_path(path) as name:
        retry(lambda: connection.connect(name), BlockingIOError, pauses_for(timeout, FULL_SECONDS))


class Caller:
    """A client that waits for its answer, which any thread gives it, once."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def answer(self, result: Any) -> None:
        """Send the result, and close the connection. A client that has ended does not matter."""
        self._send({"result": result})

    def refuse(self, error: Exception) -> None:
        """Send the error in place of a result."""
        code = getattr(error, "code", type(error).__name__)
        self._send({"error": {"code": str(code), "message": str(error)}})

    def is_gone(self) -> bool:
        """Return whether the client has ended. Its end of the connection then reads as empty."""
        try:
            return not self._connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def _send(self, answer: dict[str, Any]) -> None:
        with self._connection, contextlib.suppress(OSError):
            self._connection.sendall(json.dumps(answer).encode() + b"\n")


class Later(NamedTuple):
    """What a handler returns if the answer takes long: no thread waits for it.

    Attributes:
        keep: Takes the caller, and answers it at some time.
    """

    keep: Callable[[Caller], object]


class Server:
    """A server with one thread per request. `close` ends it and removes the socket.

    Args:
        path: The path of the socket. The socket of a dead server is replaced.
        handler: `(method, params) -> result`, or a `Later`. The client gets an exception as an RpcError, with
            its `code` attribute if it has one.
        mode: The socket's permissions.
    """

    def __init__(self, path: str, handler: Handler, mode: int = 0o600) -> None:
        self._path = path
        self._handler = handler
        self._serving = threading.Lock()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        with _short_path(path) as name:
            self._socket.bind(name)
        os.chmod(path, mode)
        self._socket.listen(512)

    def serve(self) -> None:
        """Answer requests until `close`."""
        with self._serving:
            self._serve()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError as error:
                if error.errno not in _PASSING:
                    return
                # Hundreds of prologs may be connected. When one ends, a file descriptor is free again.
                time.sleep(FULL_SECONDS)
                continue
            try:
                threading.Thread(target=self._answer, args=(connection,), daemon=True).start()
            except RuntimeError:  # no further thread can start: the client sees it, and the server stays up
                connection.close()
                time.sleep(FULL_SECONDS)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        # A thread that still accepts would do so on the next socket with the same descriptor.
        with self._serving:
            self._socket.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)

    def _answer(self, connection: socket.socket) -> None:
        caller = Caller(connection)
        try:
            with connection.makefile("rb") as stream:
                request = json.loads(stream.readline(MAX_LINE))
            result = self._handler(request["method"], request.get("params", {}))
            if isinstance(result, Later):
                result.keep(caller)
            else:
                caller.answer(result)
        except Exception as error:  # the client gets every failure, and the server stays up
            caller.refuse(error)
