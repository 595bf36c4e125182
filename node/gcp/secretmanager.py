"""A secret in Secret Manager. Pulumi creates it without a value; only the controller writes and reads it."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator
from typing import Any

from node.cloud.errors import MissingError, ServiceError
from node.gcp.service import Token, request
from node.waiting import pauses_for, retry

ENDPOINT = "https://secretmanager.googleapis.com"
ENDPOINT_VARIABLE = "CLOUDSDK_API_ENDPOINT_OVERRIDES_SECRETMANAGER"
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
        """Returns the newest value. `None` means that the secret has no value yet, or does not exist.

        Google's response is the same in both cases.

        Raises:
            UnreachableError: The service did not answer.
            ServiceError: The service refused.
        """
        try:
            said = self._call("GET", f"{self.name}/versions/latest:access")
        except MissingError:
            return None
        return base64.b64decode(said["payload"]["data"])

    def put(self, content: bytes) -> None:
        """Sets the value. A repeated attempt may make a second version with the same value.

        Raises:
            MissingError: The secret does not exist.
            UnreachableError: The service did not answer.
            ServiceError: The service refused.
        """
        payload = {"payload": {"data": base64.b64encode(content).decode()}}
        self._call("POST", f"{self.name}:addVersion", json.dumps(payload).encode())

    def _call(self, method: str, path: str, body: bytes | None = None) -> dict[str, Any]:
        base = os.environ.get(ENDPOINT_VARIABLE) or ENDPOINT
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
