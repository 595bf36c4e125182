"""The two services of AWS that machines call, S3 and Secrets Manager, by signed HTTP requests.

The client library of AWS is not installed on every machine, and its import would delay a boot.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import math
import os
import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from html import unescape
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from node.system import http_client as http
from node.system.cloud_api import MissingError, ServiceError, checked

# AWS Signature Version 4:
# https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html

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


# Signed calls to the AWS services of a region.

OTHER_TIME = (b"RequestTimeTooSkewed", b"Signature expired", b"Signature not yet current")
"""What services say of a signature of another time, by more than 15 minutes (S3) or 5 (others)."""


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
        answer = http.call(method, url, sign, data, attempts=attempts, timeout=timeout)
        date = answer.headers.get("date")
        if date and answer.status in (400, 403) and any(words in answer.body for words in OTHER_TIME):
            behind = parsedate_to_datetime(date) - datetime.now(UTC)
            answer = http.call(method, url, sign, data, attempts=attempts, timeout=timeout)
        return answer


def override(variable: str) -> str | None:
    """Return the endpoint that the environment sets for a service. `None` means the service's own."""
    return os.environ.get(f"AWS_ENDPOINT_URL_{variable}") or os.environ.get("AWS_ENDPOINT_URL") or None


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


# Reads and writes whole objects of the cluster's bucket in S3, and checks their digests.

SCHEME = "s3://"
PAGE = 1000
"""How many keys a list of a bucket has at most (S3's limit)."""


class Bucket:
    """A client of one bucket.

    Args:
        url: `s3://name`.
        attempts: The number of attempts per call. The boot report has no time for many.
    """

    def __init__(
        self,
        url: str,
        region: str,
        credentials: Callable[[], Credentials],
        *,
        attempts: int = http.ATTEMPTS,
        timeout: float = http.TIMEOUT_SECONDS,
    ) -> None:
        self.url = url.rstrip("/")
        self._name = self.url.removeprefix(SCHEME)
        self._region = region
        self._service = Service("s3", region, credentials)
        self._attempts, self._timeout = attempts, timeout

    def get(self, key: str, sha256: str | None = None) -> bytes:
        """Return an object's content.

        Args:
            sha256: The expected digest in hexadecimal. `None` means that any content is accepted.

        Raises:
            MissingError: The object does not exist.
            UnreachableError: S3 did not answer.
            ServiceError: S3 refused, or the digest is wrong.
        """
        return checked(self._call("GET", key).body, sha256, f"{self.url}/{key}")

    def put(self, key: str, content: bytes) -> None:
        """Write an object. S3 compares the content with the digest that the signature covers.

        Raises:
            UnreachableError: S3 did not answer.
            ServiceError: S3 refused.
        """
        self._call("PUT", key, content)

    def names(self, prefix: str) -> list[str]:
        """Return the keys that begin with a prefix.

        Raises:
            UnreachableError: S3 did not answer.
            ServiceError: S3 refused.
        """
        found: list[str] = []
        more = ""
        while True:
            query = {"list-type": "2", "max-keys": str(PAGE), "prefix": prefix}
            query |= {"continuation-token": more} if more else {}
            body = self._call("GET", "", query=urlencode(query, quote_via=quote)).body
            found += [unescape(key) for key in re.findall("<Key>([^<]*)</Key>", body.decode())]
            more = unescape(_tag(body, "NextContinuationToken"))
            if not more:
                return found

    def delete(self, key: str) -> None:
        """Delete an object. There may be none.

        Raises:
            UnreachableError: S3 did not answer.
            ServiceError: S3 refused.
        """
        self._call("DELETE", key)

    def _call(self, method: str, key: str, body: bytes = b"", query: str = "") -> http.Answer:
        url = f"{self._base()}/{quote(key, safe='/-_.~')}{'?' if query else ''}{query}"
        # Without this header urllib would send the content type of a form.
        kind = {"content-type": "application/octet-stream"} if method == "PUT" else {}
        answer = self._service.call(method, url, kind, body, attempts=self._attempts, timeout=self._timeout)
        if answer.status in (200, 204):
            return answer
        code, message = (_tag(answer.body, name) for name in ("Code", "Message"))
        what = f"{self.url}/{key}"
        if code == "NoSuchKey":
            raise MissingError(f"{what}: there is no such object", code, answer.status)
        if code == "PermanentRedirect" or answer.status in (301, 307):
            bucket_region = answer.headers.get("x-amz-bucket-region", "another region")
            raise ServiceError(
                f"{what}: the bucket is in {bucket_region}, not in {self._region}", code, answer.status
            )
        explanation = explain(code or f"HTTP status {answer.status}", message)
        # Without the permission to list a bucket, a missing object is reported as AccessDenied too.
        unsure = ", or there is no such object" if code == "AccessDenied" and method == "GET" else ""
        raise ServiceError(f"{what}: {explanation}{unsure}", code, answer.status)

    def _base(self) -> str:
        if endpoint := override("S3"):
            return f"{endpoint.rstrip('/')}/{self._name}"
        host = f"s3.{self._region}.{domain(self._region)}"
        # The certificate does not cover a host name with further dots.
        return f"https://{host}/{self._name}" if "." in self._name else f"https://{self._name}.{host}"


def _tag(body: bytes, name: str) -> str:
    """Return the text of a tag in S3's error document, which is small and flat."""
    found = re.search(f"<{name}>([^<]*)</{name}>", body.decode(errors="replace"))
    return found[1] if found else ""


class Secret:
    """A client of one secret.

    Args:
        name: The secret's name or ARN.
    """

    def __init__(self, name: str, region: str, credentials: Callable[[], Credentials]) -> None:
        self.name = name
        self._region = region
        self._service = Service("secretsmanager", region, credentials)

    def get(self) -> bytes | None:
        """Return the current value. `None` means that the secret has no value yet.

        Raises:
            MissingError: The secret does not exist.
            UnreachableError: The service did not answer.
            ServiceError: The service refused.
        """
        try:
            value = self._call("GetSecretValue", SecretId=self.name)
        except MissingError as error:
            # A secret without a value and a missing secret have the same code. Only the message differs.
            if "staging label" in str(error):
                return None
            raise
        if "SecretBinary" in value:
            return base64.b64decode(value["SecretBinary"])
        return str(value["SecretString"]).encode()

    def put(self, content: bytes) -> None:
        """Set the value. A repeated attempt makes no second version.

        Raises:
            MissingError: The secret does not exist.
            UnreachableError: The service did not answer.
            ServiceError: The service refused.
        """
        self._call(
            "PutSecretValue",
            SecretId=self.name,
            SecretBinary=base64.b64encode(content).decode(),
            ClientRequestToken=str(uuid.uuid4()),
        )

    def _call(self, action: str, **arguments: str) -> dict[str, Any]:
        endpoint = override("SECRETS_MANAGER")
        url = endpoint or f"https://secretsmanager.{self._region}.{domain(self._region)}"
        headers = {"x-amz-target": f"secretsmanager.{action}", "content-type": "application/x-amz-json-1.1"}
        answer = self._service.call("POST", f"{url.rstrip('/')}/", headers, json.dumps(arguments).encode())
        try:
            content: dict[str, Any] = json.loads(answer.body or b"{}")
        except ValueError:
            content = {}
        if answer.status == 200:
            return content
        code = str(content.get("__type", f"HTTP status {answer.status}")).rpartition("#")[2]
        message = str(content.get("message") or content.get("Message") or "")
        kind = MissingError if code == "ResourceNotFoundException" else ServiceError
        raise kind(f"secret {self.name}: {explain(code, message)}", code, answer.status)
