"""A client of EC2's instance metadata service, version 2."""

from __future__ import annotations

import calendar
import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass

from node.aws.signatures import Credentials
from node.system.cloud_api import MissingError, Notice, ServiceError
from node.system.http_client import Answer, call
from node.system.waiting import wait_at_most

ENDPOINT = "http://169.254.169.254"
ENDPOINT_VARIABLE = "AWS_EC2_METADATA_SERVICE_ENDPOINT"
TOKEN_SECONDS = 21600
EARLY_SECONDS = 600.0
"""How long before their end credentials are renewed. EC2 has new ones at least five minutes before."""
TIMEOUT_SECONDS = 3.0
ROLE_SECONDS = 60.0
"""How long to wait for the role's credentials, which an instance may lack in its first seconds."""
POLL_SECONDS = 5.0
"""Seconds between two polls for a notice, as EC2's guide recommends. EC2 has no blocking call for it."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of this instance.

    Attributes:
        address: The private IPv4 address.
    """

    instance: str
    region: str
    zone: str
    machine: str
    account: str
    image: str
    address: str


class Metadata:
    """A client of the metadata service.

    Args:
        endpoint: The service's URL. `None` means the environment's, or the one that every instance has.
    """

    def __init__(self, endpoint: str | None = None) -> None:
        self._endpoint = (endpoint or os.environ.get(ENDPOINT_VARIABLE) or ENDPOINT).rstrip("/")
        self._token: tuple[str, float] | None = None
        self._credentials: Credentials | None = None

    def get(self, path: str) -> str:
        """Return the text at a path such as `meta-data/ami-launch-index`.

        Raises:
            MissingError: The instance has nothing at this path.
            UnreachableError: This is not an EC2 instance, or its metadata service is switched off.
        """
        answer = self._get(path)
        if answer.status == 401:  # the token ended early, because the instance was stopped meanwhile
            self._token = None
            answer = self._get(path)
        if answer.status == 404:
            raise MissingError(f"instance metadata: there is no {path}", status=404)
        if answer.status != 200:
            raise ServiceError(
                f"instance metadata: {path}: HTTP status {answer.status}", status=answer.status
            )
        return answer.body.decode()

    def find(self, path: str) -> str | None:
        """Return the text as `get` does. `None` means that the instance has nothing at this path."""
        try:
            return self.get(path)
        except MissingError:
            return None

    def _get(self, path: str) -> Answer:
        token = {"X-aws-ec2-metadata-token": self._session()}
        return self._call("GET", path, token)

    def _session(self) -> str:
        if self._token is None or self._token[1] < time.monotonic():
            life = {"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_SECONDS)}
            answer = self._call("PUT", "api/token", life)
            if answer.status != 200:
                raise ServiceError(f"instance metadata gave no token: HTTP status {answer.status}")
            self._token = answer.body.decode(), time.monotonic() + TOKEN_SECONDS - 60
        return self._token[0]

    def _call(self, method: str, path: str, headers: Mapping[str, str]) -> Answer:
        # No proxy is used, because the address is local to the instance.
        return call(
            method, f"{self._endpoint}/latest/{path}", lambda: headers, timeout=TIMEOUT_SECONDS, proxies={}
        )

    def identity(self) -> Identity:
        document = json.loads(self.get("dynamic/instance-identity/document"))
        return Identity(
            instance=document["instanceId"],
            region=document["region"],
            zone=document["availabilityZone"],
            machine=document["instanceType"],
            account=document["accountId"],
            image=document["imageId"],
            address=document["privateIp"],
        )

    def region(self) -> str:
        return self.get("meta-data/placement/region")

    def launch_index(self) -> int:
        """Return the instance's number in its launch, from 0."""
        return int(self.get("meta-data/ami-launch-index"))

    def tag(self, name: str) -> str | None:
        """Return a tag's value. `None` means that there is no such tag, or no tags in the metadata."""
        return self.find(f"meta-data/tags/instance/{name}")

    def credentials(self) -> Credentials:
        """Return the credentials of the instance's role, renewed in time.

        Raises:
            MissingError: The instance has no role.
        """
        known = self._credentials
        if known is None or known.expires - EARLY_SECONDS < time.time():
            try:
                self._credentials = self._role_credentials()
            except ServiceError:
                # The present credentials may be valid for a while.
                if known is None or known.expires < time.time():
                    raise
        assert self._credentials is not None
        return self._credentials

    def _role_credentials(self) -> Credentials:
        folder = "meta-data/iam/security-credentials/"
        role = (wait_at_most(lambda: self.find(folder), ROLE_SECONDS, 1.0) or "").strip()
        if not role:
            raise MissingError("this instance has no role (instance profile): it can ask AWS for nothing")
        credentials = json.loads(self.get(folder + role.splitlines()[0]))
        if credentials.get("Code", "Success") != "Success":
            raise ServiceError(
                f"the instance's role {role} gives no credentials: {credentials['Code']}", credentials["Code"]
            )
        return Credentials(
            credentials["AccessKeyId"],
            credentials["SecretAccessKey"],
            credentials["Token"],
            seconds(credentials["Expiration"]),
        )

    def notice(self) -> Notice | None:
        """Return EC2's notice for a spot instance: an interruption in two minutes, or a possible one.

        The cause of an interruption is terminate | stop | hibernate. The cause of a possible one is
        `rebalance recommendation`.
        """
        if text := self.find("meta-data/spot/instance-action"):
            action = json.loads(text)
            return Notice(action["action"], seconds(action["time"]))
        if self.find("meta-data/events/recommendations/rebalance"):
            return Notice("rebalance recommendation", None)
        return None

    def wait(self, seconds: float) -> Notice | None:
        """Wait at most so many seconds and returns what `notice` does."""
        time.sleep(min(seconds, POLL_SECONDS))
        return self.notice()


def seconds(text: str) -> float:
    """Convert `2026-11-21T18:00:00Z` to seconds since the epoch."""
    return float(calendar.timegm(time.strptime(text, "%Y-%m-%dT%H:%M:%SZ")))
