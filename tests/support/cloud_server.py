"""An HTTP server on a socket in another network. A function gives its answers."""

from __future__ import annotations

import http.server
import socket
import socketserver
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Answer:
    """An HTTP answer.

    Attributes:
        hops: the most network hops that the answer may make.
    """

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    hops: int | None = None


@dataclass(frozen=True)
class Request:
    method: str
    host: str
    target: str
    headers: Mapping[str, str]
    body: bytes


class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True

    def __init__(
        self,
        place: socket.socket,
        answer: Callable[[str, Request], Answer],
        note: Callable[[BaseException], None],
    ) -> None:
        super().__init__(place.getsockname()[:2], _handler(answer, note), bind_and_activate=False)
        self.socket.close()
        self.socket = place

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors: a machine may lose its power in the middle of a request."""


def _handler(
    answer: Callable[[str, Request], Answer], note: Callable[[BaseException], None]
) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def _do(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            ask = Request(self.command, headers.get("host", ""), self.path, headers, body)
            try:
                said = answer(self.client_address[0], ask)
            except Exception as error:
                note(error)
                raise
            if said.hops is not None:
                self.connection.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, said.hops)
            self.send_response(said.status)
            for name, value in {**dict(said.headers), "Content-Length": str(len(said.body))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(said.body)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = do_PATCH = _do  # noqa: N815

        def log_message(self, *_: Any) -> None:
            pass

    return Handler
