"""One HTTP call, with a time limit and with retries after errors that pass by themselves."""

from __future__ import annotations

import http.client
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from node.cloud.errors import UnreachableError

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
    """Sends a request and returns the response. Repeats it after errors that pass by themselves.

    Args:
        attempts: the number of attempts, at least 1.
        proxies: the proxies as urllib takes them. `None` means the environment's, {} means none.

    Raises:
        UnreachableError: No attempt got a response.
    """
    handler = urllib.request.ProxyHandler(None if proxies is None else dict(proxies))
    opener = urllib.request.build_opener(handler, _NoRedirects())
    pause, last = FIRST_PAUSE_SECONDS, ""
    for attempt in range(attempts):
        if attempt:
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
        request = urllib.request.Request(url, data=body, headers=dict(headers()), method=method)
        try:
            with opener.open(request, timeout=timeout) as response:
                content = response.read()
                return Answer(response.status, content, _lower(response.headers.items()))
        except urllib.error.HTTPError as error:
            answer = Answer(error.code, error.read(), _lower(error.headers.items()))
            if error.code not in PASSING or attempt == attempts - 1:
                return answer
        except (OSError, http.client.HTTPException) as error:
            last = str(getattr(error, "reason", error)) or repr(error)
    place = urllib.parse.urlsplit(url).netloc
    tries = "once" if attempts == 1 else f"{attempts} times"
    raise UnreachableError(f"{place} did not answer (tried {tries}): {last}")


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Follows no redirects, because the signature would be for another host."""

    def redirect_request(self, *_arguments: object) -> None:
        return None


def _lower(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers}
