"""Sends a node's boot reports to the controller, where `report_server` takes them."""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from collections.abc import Callable
from functools import partial

from node.bootstrap import report, root_port
from node.bootstrap.report_server import ANSWER_BYTES, PORT, SECONDS, TAKEN

# --- the node ---------------------------------------------------------------------------------------------


def send(address: str, content: bytes, port: int = PORT, seconds: float = SECONDS) -> None:
    """Send this machine's report to the controller.

    Raises:
        PermissionError: This process may not bind a source port below 1024.
        OSError: The controller cannot be reached, or does not take the report. The message says why.
    """
    with root_port.connect(address, port, seconds) as connection:
        connection.sendall(content)
        connection.shutdown(socket.SHUT_WR)
        answer = b""
        while part := connection.recv(ANSWER_BYTES):
            answer += part
    if answer != TAKEN:
        raise OSError(f"{address}, port {port}: {answer.decode(errors='replace') or 'no answer'}")


def sender(address: str) -> Sender:
    """Return a function that sends this machine's report to the controller."""
    return Sender(partial(send, address))


LIMITS = {"failed": 900.0}
"""State -> how long the report is sent again until the controller has it. A failed boot has nothing else to
do, and the controller may be restarting."""
LIMIT = 30.0
PAUSE_SECONDS = 2.0


class Sender:
    """The sender of a boot's report: at first, so that the machine counts as heard, and at its end.

    The steps in between change nothing there. The boot never waits: a thread sends, and of reports that come
    faster than the controller answers only the last. The thread is not a daemon, so the process waits at its
    end until the last report is sent or its time is up.

    Args:
        send: Sends a report, or raises an OSError.
    """

    def __init__(self, send: Callable[[bytes], None]) -> None:
        self._send = send
        self._changed = threading.Condition()
        self._content: bytes | None = None
        self._until = 0.0
        self._thread: threading.Thread | None = None
        self._error = ""
        self._heard = False

    def __call__(self, text: str) -> None:
        state = json.loads(text)["state"]
        if state == "booting" and self._heard:
            return
        content, limit = report.brief(text), LIMITS.get(state, LIMIT)
        with self._changed:
            self._content, self._until = content, time.monotonic() + limit
            self._changed.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="report")
                self._thread.start()

    def _run(self) -> None:
        content = self._next(None, over=False)
        while content is not None:
            error = self._try(content)
            late = time.monotonic() >= self._until
            content = self._next(content, over=error is None or isinstance(error, PermissionError) or late)

    def _next(self, tried: bytes | None, *, over: bool) -> bytes | None:
        """Return what to send now. `None` ends the thread.

        Args:
            tried: What was sent last.
            over: Whether it is not to be sent again.
        """
        with self._changed:
            if self._content is tried and not over:
                self._changed.wait(PAUSE_SECONDS)
            elif self._content is tried:
                self._content = self._thread = None
            return self._content

    def _try(self, content: bytes) -> OSError | None:
        try:
            self._send(content)
        except OSError as error:
            if str(error) != self._error:
                self._error = str(error)
                print(f"the controller has no boot report: {error}", file=sys.stderr, flush=True)
            return error
        self._heard = True
        return None
