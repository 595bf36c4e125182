"""Signed calls to the AWS services of a region."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from node.aws.sigv4 import Credentials, signed
from node.cloud import call as http


@dataclass(frozen=True, slots=True)
class Service:
    """A service of a region.

    Attributes:
        name: the service's name in signatures: s3, secretsmanager.
        credentials: returns the credentials. It is called before each attempt.
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
    ) -> http.Answer:
        """Sends a signed request and returns the response.

        Raises:
            UnreachableError: The service did not answer.
        """

        def sign() -> dict[str, str]:
            sent = signed(
                method, url, headers or {}, body, self.credentials(),
                region=self.region, service=self.name, now=datetime.now(UTC),
            )  # fmt: skip
            # urllib adds its own `host` header.
            return {name: value for name, value in sent.items() if name != "host"}

        data = body if method in ("PUT", "POST") else None
        return http.call(method, url, sign, data, attempts=attempts, timeout=timeout)


def override(variable: str) -> str | None:
    """Returns the endpoint that the environment sets for a service. `None` means the service's own."""
    return os.environ.get(f"AWS_ENDPOINT_URL_{variable}") or os.environ.get("AWS_ENDPOINT_URL") or None


def domain(region: str) -> str:
    """Returns the parent domain of a region's endpoints."""
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
    """Returns a refusal as a sentence: its meaning, and the code and message of AWS."""
    said = f"{code}: {message}" if message else code
    return f"{HELP[code]} ({said})" if code in HELP else said
