"""Signed calls to the AWS services of a region."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

from node.aws.signatures import Credentials, signed
from node.system import http_client as http

OTHER_TIME = (
    b"RequestTimeTooSkewed", b"Signature expired", b"Signature not yet current", b"RequestExpired",
    b"AuthFailure",
)  # fmt: skip
"""What services say of a signature of another time, by more than 15 minutes (S3) or 5 (others).

The last two are EC2's, which have other causes, too.
"""
SKEW_SECONDS = 60.0
"""A smaller difference of the clocks does not explain a refusal."""


@dataclass(frozen=True, slots=True)
class Service:
    """A service of a region.

    Attributes:
        name: The service's name in signatures: s3, secretsmanager.
        credentials: Returns the credentials. It is called before each attempt.
    """

    name: str
    region: str
    credentials: Callable[[], Credentials]

    def call(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        attempts: int = http.ATTEMPTS,
        timeout: float = http.TIMEOUT_SECONDS,
        connect_timeout: float | None = None,
    ) -> http.Answer:
        """Send a signed request and returns the response.

        If the service refuses this machine's clock, the request is repeated with the service's time. So a
        machine whose clock is wrong can still report that.

        Raises:
            UnreachableError: The service did not answer.
        """
        behind = timedelta()

        def sign() -> dict[str, str]:
            sent = signed(
                method, url, headers or {}, body, self.credentials(),
                region=self.region, service=self.name, now=datetime.now(UTC) + behind,
            )  # fmt: skip
            # urllib adds its own `host` header.
            return {name: value for name, value in sent.items() if name != "host"}

        data = body if method in ("PUT", "POST") else None

        def send() -> http.Answer:
            return http.call(
                method, url, sign, data,
                attempts=attempts, timeout=timeout, connect_timeout=connect_timeout, ca=certificates(),
            )  # fmt: skip

        answer = send()
        behind = _clock_difference(answer)
        return send() if behind else answer


def _clock_difference(answer: http.Answer) -> timedelta:
    """Return how far this machine's clock is behind a service that refuses its time; 0 if it does not."""
    date = answer.headers.get("date")
    if date and answer.status in (400, 401, 403) and any(words in answer.body for words in OTHER_TIME):
        behind = parsedate_to_datetime(date) - datetime.now(UTC)
        return behind if abs(behind.total_seconds()) > SKEW_SECONDS else timedelta()
    return timedelta()


def override(variable: str) -> str | None:
    """Return the endpoint that the environment sets for a service. `None` means the service's own."""
    return os.environ.get(f"AWS_ENDPOINT_URL_{variable}") or os.environ.get("AWS_ENDPOINT_URL") or None


def certificates() -> str | None:
    """Return the file of certificates that the environment sets. `None` means the system's."""
    return os.environ.get("AWS_CA_BUNDLE") or None


def domain(region: str) -> str:
    """Return the parent domain of a region's endpoints."""
    return "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"


HELP = {
    "RequestTimeTooSkewed": "this machine's clock is wrong by minutes: chronyc tracking",
    "InvalidSignatureException": "the signature was not accepted; is this machine's clock right?",
    "SignatureDoesNotMatch": "the signature was not accepted; is this machine's clock right?",
    "ExpiredToken": "the credentials of the machine's role have ended",
    "ExpiredTokenException": "the credentials of the machine's role have ended",
    "AccessDenied": "the machine's role does not allow it",
    "AccessDeniedException": "the machine's role does not allow it",
    "NoSuchBucket": "there is no such bucket",
    "PermanentRedirect": "the bucket is in another region",
}
"""Explanations of AWS's error codes for readers of a boot report."""


def explain(code: str, message: str) -> str:
    """Return a refusal as a sentence: its meaning, and the code and message of AWS."""
    answer_text = f"{code}: {message}" if message else code
    return f"{HELP[code]} ({answer_text})" if code in HELP else answer_text
