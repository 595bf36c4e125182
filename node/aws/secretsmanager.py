"""A secret in AWS Secrets Manager. Pulumi creates it without a value; the controller writes and reads it."""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Callable
from typing import Any

from node.aws.service import Service, domain, explain, override
from node.aws.sigv4 import Credentials
from node.cloud.errors import MissingError, ServiceError


class Secret:
    """A client of one secret.

    Args:
        name: the secret's name or ARN.
    """

    def __init__(self, name: str, region: str, credentials: Callable[[], Credentials]) -> None:
        self.name = name
        self._region = region
        self._service = Service("secretsmanager", region, credentials)

    def get(self) -> bytes | None:
        """Returns the current value. `None` means that the secret has no value yet.

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
        """Sets the value. A repeated attempt makes no second version.

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
            said: dict[str, Any] = json.loads(answer.body or b"{}")
        except ValueError:
            said = {}
        if answer.status == 200:
            return said
        code = str(said.get("__type", f"HTTP status {answer.status}")).rpartition("#")[2]
        message = str(said.get("message") or said.get("Message") or "")
        kind = MissingError if code == "ResourceNotFoundException" else ServiceError
        raise kind(f"secret {self.name}: {explain(code, message)}", code, answer.status)
