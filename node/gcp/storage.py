"""Reads and writes whole objects of the cluster's bucket in Cloud Storage, and checks digests."""

from __future__ import annotations

import os
import urllib.parse

from node.cloud import call as http
from node.cloud.objects import checked
from node.gcp.service import Token, request

SCHEME = "gs://"
ENDPOINT = "https://storage.googleapis.com"
ENDPOINT_VARIABLE = "STORAGE_EMULATOR_HOST"


class Bucket:
    """A client of one bucket.

    Args:
        url: `gs://name`.
        attempts: the number of attempts per call. The boot report has no time for many.
    """

    def __init__(
        self,
        url: str,
        token: Token,
        *,
        attempts: int = http.ATTEMPTS,
        timeout: float = http.TIMEOUT_SECONDS,
    ) -> None:
        self.url = url.rstrip("/")
        self._name = urllib.parse.quote(self.url.removeprefix(SCHEME), safe="")
        self._token = token
        self._attempts, self._timeout = attempts, timeout

    def get(self, key: str, sha256: str | None = None) -> bytes:
        """Returns an object's content.

        Args:
            sha256: the expected digest in hexadecimal. `None` means that any content is accepted.

        Raises:
            MissingError: The object does not exist.
            UnreachableError: Cloud Storage did not answer.
            ServiceError: Cloud Storage refused, or the digest is wrong.
        """
        name = urllib.parse.quote(key, safe="")
        answer = self._call("GET", f"storage/v1/b/{self._name}/o/{name}?alt=media", key)
        return checked(answer.body, sha256, f"{self.url}/{key}")

    def put(self, key: str, content: bytes) -> None:
        """Writes an object, which may exist already.

        Raises:
            UnreachableError: Cloud Storage did not answer.
            ServiceError: Cloud Storage refused. An object can be written once per second.
        """
        query = urllib.parse.urlencode({"uploadType": "media", "name": key})
        self._call("POST", f"upload/storage/v1/b/{self._name}/o?{query}", key, content)

    def _call(self, method: str, path: str, key: str, body: bytes | None = None) -> http.Answer:
        base = os.environ.get(ENDPOINT_VARIABLE) or ENDPOINT
        # Google's clients accept the variable with and without a scheme.
        base = base if "://" in base else f"http://{base}"
        headers = {} if body is None else {"content-type": "application/octet-stream"}
        return request(
            method, f"{base.rstrip('/')}/{path}", f"{self.url}/{key}", self._token, body, headers,
            attempts=self._attempts, timeout=self._timeout,
        )  # fmt: skip
