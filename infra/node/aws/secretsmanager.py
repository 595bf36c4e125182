"""One secret of AWS Secrets Manager: Pulumi makes it empty, the controller fills it, the others read it."""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Callable
from typing import Any

from infra.node.aws.signed import Service, domain, override, words
from infra.node.aws.sigv4 import Credentials
from infra.node.cloud.errors import MissingError, ServiceError


class Secret:
    """Args:
    name: or its ARN.
    """

    def __init__(self, name: str, region: str, credentials: Callable[[], Credentials]) -> None:
        self.name = name
        self._region = region
        self._service = Service("secretsmanager", region, credentials)

    def get(self) -> bytes | None:
        """Its current value; None where it was given none yet.

        Raises:
            MissingError: there is no such secret.
            UnreachableError: nobody answered.
            ServiceError: it was refused.
        """
        try:
            value = self._call("GetSecretValue", SecretId=self.name)
        except MissingError as error:
            # The same code for a secret without a value as for none at all: the sentence tells them apart.
            if "staging label" in str(error):
                return None
            raise
        if "SecretBinary" in value:
            return base64.b64decode(value["SecretBinary"])
        return str(value["SecretString"]).encode()

    def put(self, content: bytes) -> None:
        """Give it a value. A repeated attempt makes no second version.

        Raises:
            ServiceError: as `get`.
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
        raise kind(f"secret {self.name}: {words(code, message)}", code, answer.status)
