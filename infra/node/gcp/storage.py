"""Objects of the cluster's bucket in Cloud Storage: whole ones, with their digests, and lists of them."""

from __future__ import annotations

import datetime
import json
import os
import urllib.parse

from infra.node.cloud import call as http
from infra.node.cloud.objects import Entry, checked
from infra.node.gcp.service import Token, request

SCHEME = "gs://"
ENDPOINT = "https://storage.googleapis.com"
ENDPOINT_VARIABLE = "STORAGE_EMULATOR_HOST"
FIELDS = "items(name,updated,etag),nextPageToken"


class Bucket:
    """Args:
    url: `gs://name`.
    attempts: of each call; the boot report has no time for many.
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
        """An object's content.

        Args:
            sha256: the digest that it must have, in hexadecimal.

        Raises:
            MissingError: there is no such object.
            UnreachableError: nobody answered.
            ServiceError: Cloud Storage refused, or the digest is another.
        """
        name = urllib.parse.quote(key, safe="")
        answer = self._call("GET", f"storage/v1/b/{self._name}/o/{name}?alt=media", key)
        return checked(answer.body, sha256, f"{self.url}/{key}")

    def put(self, key: str, content: bytes) -> None:
        """Write an object, or write it again.

        Raises:
            UnreachableError: nobody answered.
            ServiceError: Cloud Storage refused; an object takes one write a second.
        """
        query = urllib.parse.urlencode({"uploadType": "media", "name": key})
        self._call("POST", f"upload/storage/v1/b/{self._name}/o?{query}", key, content)

    def list(self, prefix: str) -> dict[str, Entry]:
        """All objects whose names begin so, by name.

        Raises:
            UnreachableError: nobody answered.
            ServiceError: Cloud Storage refused.
        """
        found: dict[str, Entry] = {}
        query = {"prefix": prefix, "fields": FIELDS}
        while True:
            path = f"storage/v1/b/{self._name}/o?{urllib.parse.urlencode(query)}"
            page = json.loads(self._call("GET", path, prefix).body)
            for item in page.get("items", []):
                updated = datetime.datetime.fromisoformat(item["updated"]).timestamp()
                found[item["name"]] = Entry(updated, item["etag"])
            if not (after := page.get("nextPageToken")):
                return found
            query["pageToken"] = after

    def _call(self, method: str, path: str, key: str, body: bytes | None = None) -> http.Answer:
        base = os.environ.get(ENDPOINT_VARIABLE) or ENDPOINT
        # Clients take it with and without a scheme.
        base = base if "://" in base else f"http://{base}"
        headers = {} if body is None else {"content-type": "application/octet-stream"}
        return request(
            method, f"{base.rstrip('/')}/{path}", f"{self.url}/{key}", self._token, body, headers,
            attempts=self._attempts, timeout=self._timeout,
        )  # fmt: skip
