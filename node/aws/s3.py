"""Reads and writes whole objects of the cluster's bucket in S3, and checks their digests."""

from __future__ import annotations

import re
from collections.abc import Callable
from urllib.parse import quote

from node.aws.service import Service, domain, explain, override
from node.aws.sigv4 import Credentials
from node.cloud import call as http
from node.cloud.errors import MissingError, ServiceError
from node.cloud.objects import checked

SCHEME = "s3://"


class Bucket:
    """A client of one bucket.

    Args:
        url: `s3://name`.
        attempts: the number of attempts per call. The boot report has no time for many.
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
        """Returns an object's content.

        Args:
            sha256: the expected digest in hexadecimal. `None` means that any content is accepted.

        Raises:
            MissingError: The object does not exist.
            UnreachableError: S3 did not answer.
            ServiceError: S3 refused, or the digest is wrong.
        """
        return checked(self._call("GET", key).body, sha256, f"{self.url}/{key}")

    def put(self, key: str, content: bytes) -> None:
        """Writes an object. S3 compares the content with the digest that the signature covers.

        Raises:
            UnreachableError: S3 did not answer.
            ServiceError: S3 refused.
        """
        self._call("PUT", key, content)

    def _call(self, method: str, key: str, body: bytes = b"") -> http.Answer:
        url = f"{self._base()}/{quote(key, safe='/-_.~')}"
        # Without this header urllib would send the content type of a form.
        kind = {"content-type": "application/octet-stream"} if method == "PUT" else {}
        answer = self._service.call(method, url, kind, body, attempts=self._attempts, timeout=self._timeout)
        if answer.status == 200:
            return answer
        code, message = (_tag(answer.body, name) for name in ("Code", "Message"))
        what = f"{self.url}/{key}"
        if code == "NoSuchKey":
            raise MissingError(f"{what}: there is no such object", code, answer.status)
        if code == "PermanentRedirect" or answer.status in (301, 307):
            there = answer.headers.get("x-amz-bucket-region", "another region")
            raise ServiceError(
                f"{what}: the bucket is in {there}, not in {self._region}", code, answer.status
            )
        said = explain(code or f"HTTP status {answer.status}", message)
        # Without the permission to list a bucket, a missing object is reported as AccessDenied too.
        unsure = ", or there is no such object" if code == "AccessDenied" and method == "GET" else ""
        raise ServiceError(f"{what}: {said}{unsure}", code, answer.status)

    def _base(self) -> str:
        if endpoint := override("S3"):
            return f"{endpoint.rstrip('/')}/{self._name}"
        host = f"s3.{self._region}.{domain(self._region)}"
        # The certificate does not cover a host name with further dots.
        return f"https://{host}/{self._name}" if "." in self._name else f"https://{self._name}.{host}"


def _tag(body: bytes, name: str) -> str:
    """Returns the text of a tag in S3's error document, which is small and flat."""
    found = re.search(f"<{name}>([^<]*)</{name}>", body.decode(errors="replace"))
    return found[1] if found else ""
