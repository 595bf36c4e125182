"""One secret of Secret Manager: Pulumi makes it empty, the controller fills it, the others read it."""

from __future__ import annotations

import base64
import json
import os
import time
from typing import Any

from infra.node.cloud.errors import MissingError, ServiceError
from infra.node.gcp.service import Token, request

ENDPOINT = "https://secretmanager.googleapis.com"
ENDPOINT_VARIABLE = "CLOUDSDK_API_ENDPOINT_OVERRIDES_SECRETMANAGER"
DENIED_SECONDS = 600.0
"""How long a refusal may mean that a permission was given a moment ago: two minutes as a rule, and seven or
more at times (https://cloud.google.com/iam/docs/access-change-propagation)."""
PAUSE_SECONDS = 5.0


class Secret:
    """Args:
    name: `projects/<project>/secrets/<name>`.
    """

    def __init__(self, name: str, token: Token) -> None:
        self.name = name
        self._token = token
        self._deadline: float | None = None

    def get(self) -> bytes | None:
        """Its newest value; None where it was given none yet.

        Google says the same of a secret that does not exist.

        Raises:
            UnreachableError: nobody answered.
            ServiceError: it was refused.
        """
        try:
            said = self._call("GET", f"{self.name}/versions/latest:access")
        except MissingError:
            return None
        return base64.b64decode(said["payload"]["data"])

    def put(self, content: bytes) -> None:
        """Give it a value. A repeated attempt may leave a second version with the same value.

        Raises:
            MissingError: there is no such secret.
            UnreachableError: nobody answered.
            ServiceError: it was refused.
        """
        payload = {"payload": {"data": base64.b64encode(content).decode()}}
        self._call("POST", f"{self.name}:addVersion", json.dumps(payload).encode())

    def _call(self, method: str, path: str, body: bytes | None = None) -> dict[str, Any]:
        base = os.environ.get(ENDPOINT_VARIABLE) or ENDPOINT
        headers = {} if body is None else {"content-type": "application/json"}
        url, what = f"{base.rstrip('/')}/v1/{path}", f"secret {self.name}"
        # For all calls together: the rights to read and to write were given at the same time.
        if self._deadline is None:
            self._deadline = time.monotonic() + DENIED_SECONDS
        while True:
            try:
                answer = request(method, url, what, self._token, body, headers)
            except ServiceError as error:
                if error.status != 403 or time.monotonic() > self._deadline:
                    raise
                time.sleep(PAUSE_SECONDS)
            else:
                said: dict[str, Any] = json.loads(answer.body)
                return said
