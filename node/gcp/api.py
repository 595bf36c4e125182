"""Calls to Google's APIs with the machine's access token, and their errors as sentences."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from node.system import http_client as http
from node.system.cloud_api import MissingError, ServiceError


class Token(Protocol):
    """A function that returns an access token; `fresh` requests another, as the last was refused."""

    def __call__(self, *, fresh: bool = False) -> str: ...


def request(
    method: str,
    url: str,
    what: str,
    token: Token,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    *,
    attempts: int = http.ATTEMPTS,
    timeout: float = http.TIMEOUT_SECONDS,
) -> http.Answer:
    """Send a request and returns the response. If the token is refused, it tries once more with a new one.

    Args:
        what: The requested thing, for error messages.
        token: Returns the access token. It is called before each attempt.

    Raises:
        MissingError: The requested thing does not exist.
        UnreachableError: The service did not answer.
        ServiceError: The service refused. `code` is Google's reason, such as `PERMISSION_DENIED` or
            `notFound`.
    """
    for fresh in (False, True):
        given: Callable[[], Mapping[str, str]] = _headers(token, headers or {}, fresh)
        answer = http.call(method, url, given, body, attempts=attempts, timeout=timeout)
        if answer.status != 401:
            break
    if answer.status in (200, 204):
        return answer
    code, message = _parse_error(answer.body)
    code = code or f"HTTP status {answer.status}"
    meaning = HELP.get(answer.status)
    answer_text = f"{code}: {message}" if message else code
    kind = MissingError if answer.status == 404 else ServiceError
    raise kind(f"{what}: {f'{meaning} ({answer_text})' if meaning else answer_text}", code, answer.status)


def _headers(token: Token, more: Mapping[str, str], fresh: bool) -> Callable[[], Mapping[str, str]]:
    return lambda: {**more, "authorization": f"Bearer {token(fresh=fresh)}"}


HELP = {
    401: "the token of the machine's service account was not accepted",
    403: "the machine's service account may not do that",
    404: "it does not exist",
    429: "Google Cloud takes no more calls of this kind for now",
}
"""Explanations of the HTTP status for readers of a boot report."""


def _parse_error(body: bytes) -> tuple[str, str]:
    """Return the reason and the message of Google's error. Both are empty for any other content."""
    try:
        error: dict[str, Any] = json.loads(body)["error"]
        reasons = [str(entry["reason"]) for entry in error.get("errors", []) if entry.get("reason")]
        code = str(error.get("status") or (reasons[0] if reasons else ""))
        return code, " ".join(str(error.get("message", "")).split())
    except (ValueError, KeyError, TypeError, AttributeError):
        return "", ""
