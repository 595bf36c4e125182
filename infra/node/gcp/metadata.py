"""The metadata server: what a machine of Compute Engine knows of itself."""

from __future__ import annotations

import json
import os
import time
import urllib.parse
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from infra.node.cloud.call import ATTEMPTS, Answer, call
from infra.node.cloud.errors import MissingError, ServiceError
from infra.node.cloud.notice import Notice

HOST = "169.254.169.254"
"""The address and not `metadata.google.internal`: it is the same on every machine, and needs no DNS."""
HOST_VARIABLE = "GCE_METADATA_HOST"
FLAVOR = {"Metadata-Flavor": "Google"}
EARLY_SECONDS = 225.0
"""A token is renewed so long before it ends; the server gives the same one until four minutes before."""
TIMEOUT_SECONDS = 3.0
PREEMPTION_SECONDS = 30.0
"""Between the notice and the end of a machine that is preempted."""
MAINTENANCE_SECONDS = 60.0
"""Between the notice of host maintenance and the end of a machine that cannot move to another host."""
GPU_MAINTENANCE_SECONDS = 3600.0
"""The same of a machine with GPUs, by Google's page on the host maintenance of GPUs."""


class Metadata:
    """Args:
    endpoint: None for the environment's, or the one that every machine has.
    maintenance_seconds: how long ahead this machine is told of its host's maintenance.
    """

    def __init__(
        self, endpoint: str | None = None, *, maintenance_seconds: float = MAINTENANCE_SECONDS
    ) -> None:
        self._maintenance_seconds = maintenance_seconds
        self._endpoint = (endpoint or f"http://{os.environ.get(HOST_VARIABLE) or HOST}").rstrip("/")
        self._token: tuple[str, float] | None = None
        self._etag = "0"

    def get(self, path: str) -> str:
        """The text at a path like `instance/name`.

        Raises:
            MissingError: the machine has no such thing.
            UnreachableError: this is no machine of Compute Engine.
        """
        return self._get(path).body.decode()

    def find(self, path: str) -> str | None:
        """As `get`; None where there is no such thing."""
        try:
            return self.get(path)
        except MissingError:
            return None

    def name(self) -> str:
        """The instance's."""
        return self.get("instance/name")

    def zone(self) -> str:
        """Like `europe-west4-a`."""
        return self.get("instance/zone").rpartition("/")[2]

    def region(self) -> str:
        return self.zone().rpartition("-")[0]

    def project(self) -> str:
        """Its id."""
        return self.get("project/project-id")

    def token(self, *, fresh: bool = False) -> str:
        """An access token of the machine's service account, renewed in time.

        Args:
            fresh: the one known was refused.

        Raises:
            MissingError: the machine has no service account.
        """
        known = self._token
        if fresh or known is None or known[1] - EARLY_SECONDS < time.monotonic():
            try:
                said = json.loads(self.get("instance/service-accounts/default/token"))
                self._token = str(said["access_token"]), time.monotonic() + float(said["expires_in"])
            except MissingError:
                raise MissingError(
                    "this machine has no service account: it can ask Google Cloud for nothing"
                ) from None
            except ServiceError:
                # What is left of its time may be enough.
                if fresh or known is None or known[1] < time.monotonic():
                    raise
        assert self._token is not None
        return self._token[0]

    def notice(self) -> Notice | None:
        """Whether the machine will be taken, as the server has it now."""
        return self._notice(json.loads(self._get("instance/?recursive=true", attempts=1).body))

    def wait(self, seconds: float) -> Notice | None:
        """Whether the machine will be taken: answers when anything of the machine has changed.

        Args:
            seconds: it answers then at the latest.

        Raises:
            ServiceError: the server does not answer; the next call may find it again.
        """
        query = {
            "recursive": "true",
            "wait_for_change": "true",
            # What has changed since the last answer counts too.
            "last_etag": self._etag,
            "timeout_sec": f"{seconds:.0f}",
        }
        path = f"instance/?{urllib.parse.urlencode(query)}"
        answer = self._get(path, attempts=1, timeout=seconds + TIMEOUT_SECONDS)
        self._etag = answer.headers.get("etag", "0")
        return self._notice(json.loads(answer.body))

    def _get(self, path: str, *, attempts: int = ATTEMPTS, timeout: float = TIMEOUT_SECONDS) -> Answer:
        url = f"{self._endpoint}/computeMetadata/v1/{path}"
        # No proxy: the address is the machine's own.
        answer = call("GET", url, lambda: FLAVOR, attempts=attempts, timeout=timeout, proxies={})
        what = path.partition("?")[0]
        if answer.status == 404:
            raise MissingError(f"instance metadata: there is no {what}", status=404)
        if answer.headers.get("metadata-flavor") != "Google":
            raise ServiceError("instance metadata: another server answers there", status=answer.status)
        if answer.status != 200:
            said = f"instance metadata: {what}: HTTP status {answer.status}"
            raise ServiceError(said, status=answer.status)
        return answer

    def _notice(self, instance: Mapping[str, Any]) -> Notice | None:
        now = time.time()
        if instance.get("preempted") == "TRUE":
            return Notice("preempted", now + PREEMPTION_SECONDS)
        # A machine that can move on to another host notices hardly anything: MIGRATE_ON_HOST_MAINTENANCE.
        if not str(instance.get("maintenanceEvent", "")).startswith("TERMINATE"):
            return None
        # Of when the notice came the server says nothing: from a first look on it is right.
        at, window = now + self._maintenance_seconds, _window(instance)
        return Notice("maintenance", at if window is None else max(now, min(at, window)))


def _window(instance: Mapping[str, Any]) -> float | None:
    """When maintenance begins, in seconds since the epoch; None: the machine's kind is not told of it.

    Google's page on planning for host maintenance has the key with underscores, the server's own JSON of
    all keys as every other one of it. Where there is none it says `NONE`, nothing, or an error in words.
    """
    told = instance.get("upcomingMaintenance")
    if not isinstance(told, Mapping):
        return None
    stamp = told.get("windowStartTime") or told.get("window_start_time")
    try:
        return datetime.fromisoformat(str(stamp)).timestamp()
    except ValueError:
        return None
