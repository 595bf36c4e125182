"""A call to one of Google's APIs with the machine's token, and its refusals in words."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from infra.node.cloud import call as http
from infra.node.cloud.errors import MissingError, ServiceError


class Token(Protocol):
    """Gives an access token; `fresh` for another than the last one, which was refused."""

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
    """Ask once, or again with a new token where the known one is refused.

    Args:
        what: names the thing in errors.
        token: asked before each attempt.

    Raises:
        MissingError: there is no such thing.
        UnreachableError: nobody answered.
        ServiceError: it was refused; `code` is Google's reason, like `PERMISSION_DENIED` or `notFound`.
    """
    for fresh in (False, True):
        given: Callable[[], Mapping[str, str]] = _headers(token, headers or {}, fresh)
        answer = http.call(method, url, given, body, attempts=attempts, timeout=timeout)
        if answer.status != 401:
            break
    if answer.status == 200:
        return answer
    code, message = _said(answer.body)
    code = code or f"HTTP status {answer.status}"
    meaning = HELP.get(answer.status)
    said = f"{code}: {message}" if message else code
    kind = MissingError if answer.status == 404 else ServiceError
    raise kind(f"{what}: {f'{meaning} ({said})' if meaning else said}", code, answer.status)


def _headers(token: Token, more: Mapping[str, str], fresh: bool) -> Callable[[], Mapping[str, str]]:
    return lambda: {**more, "authorization": f"Bearer {token(fresh=fresh)}"}


HELP = {
    401: "the token of the machine's service account was not accepted",
    403: "the machine's service account may not do that",
    404: "there is no such thing",
    429: "Google Cloud takes no more calls of this kind for now",
}
"""What HTTP's status means for whoever reads a boot report."""


def _said(body: bytes) -> tuple[str, str]:
    """Google's reason and sentence; both empty where the answer has another form."""
    try:
        error: dict[str, Any] = json.loads(body)["error"]
        reasons = [str(one["reason"]) for one in error.get("errors", []) if one.get("reason")]
        code = str(error.get("status") or (reasons[0] if reasons else ""))
        return code, " ".join(str(error.get("message", "")).split())
    except (ValueError, KeyError, TypeError, AttributeError):
        return "", ""
