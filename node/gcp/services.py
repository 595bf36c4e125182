"""The two services of Google Cloud that machines call, Cloud Storage and Secret Manager."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import urllib.parse
from collections.abc import Iterator
from typing import Any

from node.gcp.api import Token, request
from node.system import http_client as http
from node.system.cloud_api import MissingError, ServiceError, checked
from node.system.waiting import pauses_for, retry

# Reads and writes whole objects of the cluster's bucket in Cloud Storage, and checks digests.

SCHEME = "gs://"
STORAGE_ENDPOINT = "https://storage.googleapis.com"
STORAGE_ENDPOINT_VARIABLE = "STORAGE_EMULATOR_HOST"


class Bucket:
    """A client of one bucket.

    Args:
        url: `gs://name`.
        attempts: The number of attempts per call. The boot report has no time for many.
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
        """Return an object's content.

        Args:
            sha256: The expected digest in hexadecimal. `None` means that any content is accepted.

        Raises:
            MissingError: The object does not exist.
            UnreachableError: Cloud Storage did not answer.
            ServiceError: Cloud Storage refused, or the digest is wrong.
        """
        name = urllib.parse.quote(key, safe="")
        answer = self._call("GET", f"storage/v1/b/{self._name}/o/{name}?alt=media", key)
        return checked(answer.body, sha256, f"{self.url}/{key}")

    def put(self, key: str, content: bytes) -> None:
        """Write an object, which may exist already.

        Raises:
            UnreachableError: Cloud Storage did not answer.
            ServiceError: Cloud Storage refused. An object can be written once per second.
        """
        query = urllib.parse.urlencode({"uploadType": "media", "name": key})
        self._call("POST", f"upload/storage/v1/b/{self._name}/o?{query}", key, content)

    def names(self, prefix: str) -> list[str]:
        """Return the names of objects that begin with a prefix.

        Raises:
            UnreachableError: Cloud Storage did not answer.
            ServiceError: Cloud Storage refused.
        """
        listed: list[str] = []
        more = ""
        while True:
            wanted = {"prefix": prefix, "fields": "items(name),nextPageToken"}
            query = urllib.parse.urlencode({**wanted, **({"pageToken": more} if more else {})})
            page = json.loads(self._call("GET", f"storage/v1/b/{self._name}/o?{query}", prefix).body)
            listed += [str(item["name"]) for item in page.get("items", [])]
            if not (more := str(page.get("nextPageToken", ""))):
                return listed

    def delete(self, key: str) -> None:
        """Delete an object. There may be none.

        Raises:
            UnreachableError: Cloud Storage did not answer.
            ServiceError: Cloud Storage refused.
        """
        name = urllib.parse.quote(key, safe="")
        with contextlib.suppress(MissingError):
            self._call("DELETE", f"storage/v1/b/{self._name}/o/{name}", key)

    def _call(self, method: str, path: str, key: str, body: bytes | None = None) -> http.Answer:
        base = os.environ.get(STORAGE_ENDPOINT_VARIABLE) or STORAGE_ENDPOINT
        # Google's clients accept the variable with and without a scheme.
        base = base if "://" in base else f"http://{base}"
        headers = {} if body is None else {"content-type": "application/octet-stream"}
        return request(
            method, f"{base.rstrip('/')}/{path}", f"{self.url}/{key}", self._token, body, headers,
            attempts=self._attempts, timeout=self._timeout,
        )  # fmt: skip


SECRETS_ENDPOINT = "https://secretmanager.googleapis.com"
SECRETS_ENDPOINT_VARIABLE = "CLOUDSDK_API_ENDPOINT_OVERRIDES_SECRETMANAGER"
DENIED_SECONDS = 600.0
"""How long a refusal may mean that a new permission is not active yet. That takes two minutes as a rule, and
sometimes seven or more (https://cloud.google.com/iam/docs/access-change-propagation)."""
PAUSE_SECONDS = 5.0


class Secret:
    """A client of one secret.

    Args:
        name: `projects/<project>/secrets/<name>`.
    """

    def __init__(self, name: str, token: Token) -> None:
        self.name = name
        self._token = token
        self._pauses: Iterator[float] | None = None

    def get(self) -> bytes | None:
        """Return the newest value. `None` means that the secret has no value yet, or does not exist.

        Google's response is the same in both cases.

        Raises:
            UnreachableError: The service did not answer.
            ServiceError: The service refused.
        """
        try:
            answer = self._call("GET", f"{self.name}/versions/latest:access")
        except MissingError:
            return None
        return base64.b64decode(answer["payload"]["data"])

    def put(self, content: bytes) -> None:
        """Set the value. A repeated attempt may make a second version with the same value.

        Raises:
            MissingError: The secret does not exist.
            UnreachableError: The service did not answer.
            ServiceError: The service refused.
        """
        payload = {"payload": {"data": base64.b64encode(content).decode()}}
        self._call("POST", f"{self.name}:addVersion", json.dumps(payload).encode())

    def _call(self, method: str, path: str, body: bytes | None = None) -> dict[str, Any]:
        base = os.environ.get(SECRETS_ENDPOINT_VARIABLE) or SECRETS_ENDPOINT
        headers = {} if body is None else {"content-type": "application/json"}
        url, what = f"{base.rstrip('/')}/v1/{path}", f"secret {self.name}"
        # All calls share one deadline, because the permissions to read and to write are given together.
        if self._pauses is None:
            self._pauses = pauses_for(DENIED_SECONDS, PAUSE_SECONDS)
        answer = retry(
            lambda: request(method, url, what, self._token, body, headers),
            ServiceError,
            self._pauses,
            lambda error: error.status == 403,
        )
        content: dict[str, Any] = json.loads(answer.body)
        return content
