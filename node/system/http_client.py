"""One HTTP call, with a time limit and with retries after errors that pass by themselves."""

from __future__ import annotations

import functools
import http.client
import socket
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from node.system.cloud_api import UnreachableError
from node.system.waiting import doubling_pauses, retry

T = TypeVar("T")

TIMEOUT_SECONDS = 10.0
"""The time limit for a connection, and for each wait for data."""
ATTEMPTS = 6
FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 8.0
PASSING = frozenset({429, 500, 502, 503, 504})


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP response with any status. The names of headers are in lower case."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


Headers = Callable[[], Mapping[str, str]]
"""Makes the headers for each attempt, because a signature holds the time and credentials may be renewed."""


def call(
    method: str,
    url: str,
    headers: Headers,
    body: bytes | None = None,
    *,
    attempts: int = ATTEMPTS,
    timeout: float = TIMEOUT_SECONDS,
    connect_timeout: float | None = None,
    proxies: Mapping[str, str] | None = None,
    ca: str | None = None,
) -> Answer:
    """Send a request and returns the response. Repeats it after errors that pass by themselves.

    Args:
        attempts: The number of attempts, at least 1.
        connect_timeout: The time limit for a connection, where it is not `timeout`.
        proxies: The proxies as urllib takes them. `None` means the environment's, {} means none.
        ca: A file of certificates to trust in place of the system's.

    Raises:
        UnreachableError: No attempt got a response. Its cause is the last attempt's error.
    """
    opener = _opener(proxies, timeout if connect_timeout is None else connect_timeout, ca)

    def once() -> Answer:
        request = urllib.request.Request(url, data=body, headers=dict(headers()), method=method)
        with opener.open(request, timeout=timeout) as response:
            return Answer(response.status, response.read(), _lower(response.headers.items()))

    try:
        try:
            return retried(once, attempts)
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, error.read(), _lower(error.headers.items()))
    except (OSError, http.client.HTTPException) as error:
        place = urllib.parse.urlsplit(url).netloc
        tries = "once" if attempts == 1 else f"{attempts} times"
        raise UnreachableError(f"{place} did not answer (tried {tries}): {reason(error)}") from error


def retried(once: Callable[[], T], attempts: int = ATTEMPTS) -> T:
    """Return the result of a request, which is repeated after errors that pass by themselves.

    Raises:
        urllib.error.HTTPError: The last response has another status than success.
        OSError, http.client.HTTPException: The last attempt got no response, or only a part of one.
    """
    pauses = doubling_pauses(attempts - 1, FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
    return retry(once, (OSError, http.client.HTTPException), pauses, _passes)


def _passes(error: Exception) -> bool:
    return not isinstance(error, urllib.error.HTTPError) or error.code in PASSING


def reason(error: Exception) -> str:
    """Return why a request got no response."""
    return str(getattr(error, "reason", error)) or repr(error)


def _opener(
    proxies: Mapping[str, str] | None, connect_timeout: float, ca: str | None
) -> urllib.request.OpenerDirector:
    """Return what opens URLs. `build_opener` would read the system's certificates at each call."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(None if proxies is None else dict(proxies)),
        urllib.request.UnknownHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        _NoRedirects(),
        _Http(connect_timeout),
        _Https(connect_timeout, ca),
    ):
        opener.add_handler(handler)
    return opener


class _Connection(http.client.HTTPConnection):
    """A connection with a time limit of its own for being made."""

    def __init__(self, *arguments: Any, connect_timeout: float, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._connect_timeout = connect_timeout

    def connect(self) -> None:
        answer_timeout, self.timeout = self.timeout, self._connect_timeout
        super().connect()
        self.sock.settimeout(answer_timeout)
        # Routers on the way forget a connection that says nothing while the server works.
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


class _TlsConnection(_Connection, http.client.HTTPSConnection):
    """The same over TLS."""


class _Http(urllib.request.HTTPHandler):
    def __init__(self, connect_timeout: float) -> None:
        super().__init__()
        self._connection = functools.partial(_Connection, connect_timeout=connect_timeout)

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(self._connection, req)


class _Https(urllib.request.AbstractHTTPHandler):
    def __init__(self, connect_timeout: float, ca: str | None) -> None:
        super().__init__()
        self._connection = functools.partial(_TlsConnection, connect_timeout=connect_timeout)
        self._ca = ca

    https_request = urllib.request.AbstractHTTPHandler.do_request_

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(self._connection, req, context=_context(self._ca))


@functools.cache
def _context(ca: str | None) -> ssl.SSLContext:
    """Return what checks certificates. Reading the system's takes 20 ms, so that is done once.

    Raises:
        OSError: The file cannot be read, or holds no certificates.
    """
    try:
        return ssl.create_default_context(cafile=ca)
    except OSError as error:
        raise OSError(f"{ca or 'the system'} gives no certificates to trust: {error}") from error


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A handler that follows no redirects, because the signature would be for another host."""

    def redirect_request(self, *_arguments: object) -> None:
        return None


def _lower(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers}
