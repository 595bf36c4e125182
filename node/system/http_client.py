"""One HTTP call, with a time limit and with retries after errors that pass by themselves."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

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
    proxies: Mapping[str, str] | None = None,
) -> Answer:
    """Send a request and returns the response. Repeats it after errors that pass by themselves.

    Args:
        attempts: The number of attempts, at least 1.
        proxies: The proxies as urllib takes them. `None` means the environment's, {} means none.

    Raises:
        UnreachableError: No attempt got a response.
    """
    handler = urllib.request.ProxyHandler(None if proxies is None else dict(proxies))
    opener = urllib.request.build_opener(handler, _NoRedirects())

    def once() -> Answer:
        request = urllib.request.Request(url, data=body, headers=dict(headers()), method=method)
        with opener.open(request, timeout=timeout) as response:
            return Answer(response.status, response.read(), _lower(response.headers.items()))

    try:
        return retried(once, attempts)
    except urllib.error.HTTPError as error:
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


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A handler that follows no redirects, because the signature would be for another host."""

    def redirect_request(self, *_arguments: object) -> None:
        return None


def _lower(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers}
