"""Signs requests to AWS, by its Signature Version 4.

https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html
"""

from __future__ import annotations

import hashlib
import hmac
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import parse_qsl, quote, urlsplit

ALGORITHM = "AWS4-HMAC-SHA256"


@dataclass(frozen=True, slots=True)
class Credentials:
    """The credentials of a role for a limited time, or of a user.

    Attributes:
        expires: The end of their validity, in seconds since the epoch (UTC).
    """

    access_key: str
    secret_key: str
    token: str | None = None
    expires: float = math.inf


def signed(
    method: str,
    url: str,
    headers: Mapping[str, str],
    body: bytes,
    credentials: Credentials,
    *,
    region: str,
    service: str,
    now: datetime,
) -> dict[str, str]:
    """Return the headers to send: the given ones and those of the signature.

    Args:
        url: The URL, with its path and query percent-encoded as they are sent.
        headers: All headers that are signed, without `host`, which comes from the URL.
        now: The present time in UTC.
    """
    parts = urlsplit(url)
    stamp = now.strftime("%Y%m%dT%H%M%SZ")
    payload = hashlib.sha256(body).hexdigest()
    sent = {**headers, "host": parts.netloc, "x-amz-date": stamp}
    if service == "s3":
        sent["x-amz-content-sha256"] = payload
    if credentials.token:
        sent["x-amz-security-token"] = credentials.token
    lines = {name.lower(): " ".join(value.split()) for name, value in sent.items()}
    names = ";".join(sorted(lines))
    path = parts.path or "/"
    canonical = "\n".join(
        [
            method,
            # S3 takes the path as it is sent. For all other services it is encoded once more.
            path if service == "s3" else quote(path, safe="/-_.~"),
            _query(parts.query),
            *(f"{name}:{lines[name]}" for name in sorted(lines)),
            "",
            names,
            payload,
        ]
    )
    scope = f"{stamp[:8]}/{region}/{service}/aws4_request"
    text = "\n".join([ALGORITHM, stamp, scope, hashlib.sha256(canonical.encode()).hexdigest()])
    key = signing_key(credentials.secret_key, stamp[:8], region, service)
    signature = hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
    who = f"Credential={credentials.access_key}/{scope}"
    sent["Authorization"] = f"{ALGORITHM} {who}, SignedHeaders={names}, Signature={signature}"
    return sent


def signing_key(secret: str, day: str, region: str, service: str) -> bytes:
    """Return the signing key of a day, region and service.

    Args:
        day: The date as YYYYMMDD.
    """
    key = f"AWS4{secret}".encode()
    for part in (day, region, service, "aws4_request"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return key


def _query(query: str) -> str:
    pairs = parse_qsl(query.replace("+", "%2B"), keep_blank_values=True)
    return "&".join(
        f"{name}={value}"
        for name, value in sorted((quote(n, safe="-_.~"), quote(v, safe="-_.~")) for n, v in pairs)
    )
