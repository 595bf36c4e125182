"""The two services of AWS that machines call, S3 and Secrets Manager, by signed HTTP requests.

The client library of AWS is not installed on every machine, and its import would delay a boot.
"""

from __future__ import annotations

import base64
import json
import re
import uuid
from collections.abc import Callable
from html import unescape
from typing import Any
from urllib.parse import quote, urlencode

from node.aws.api import Service, domain, explain, override
from node.aws.signatures import Credentials
from node.system import http_client as http
from node.system.cloud_api import MissingError, ServiceError, checked

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
        keys: list[str] = []
        more = ""
        while True:
            query = {"list-type": "2", "max-keys": str(PAGE), "prefix": prefix}
            query |= {"continuation-token": more} if more else {}
            body = self._call("GET", "", query=urlencode(query, quote_via=quote)).body
            keys += [unescape(key) for key in re.findall("<Key>([^<]*)</Key>", body.decode())]
            more = unescape(_tag(body, "NextContinuationToken"))
            if not more:
                return keys

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
    match = re.search(f"<{name}>([^<]*)</{name}>", body.decode(errors="replace"))
    return match[1] if match else ""


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
