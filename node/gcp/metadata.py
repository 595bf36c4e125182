"""A client of Compute Engine's metadata server."""

from __future__ import annotations

import json
import os
import time
import urllib.parse
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from node.system.cloud_api import MissingError, Notice, ServiceError
from node.system.http_client import ATTEMPTS, Answer, call

HOST = "169.254.169.254"
"""The server's address. Unlike `metadata.google.internal` it needs no DNS. It is equal on all machines."""
HOST_VARIABLE = "GCE_METADATA_HOST"
FLAVOR = {"Metadata-Flavor": "Google"}
EARLY_SECONDS = 225.0
"""How long before its end a token is renewed. The server gives the same token until four minutes before."""
TIMEOUT_SECONDS = 3.0
PREEMPTION_SECONDS = 30.0
"""Seconds between the notice and the end of a preempted machine."""
MAINTENANCE_SECONDS = 60.0
"""Seconds between the notice of host maintenance and the end of a machine that cannot be migrated."""
GPU_MAINTENANCE_SECONDS = 3600.0
"""The same for a machine with GPUs, by Google's page on the host maintenance of GPUs."""


class Metadata:
    """A client of the metadata server.

    Args:
        endpoint: The server's URL. `None` means the environment's, or the one that every machine has.
        maintenance_seconds: How long before the maintenance of its host this machine gets the notice.
    """

    def __init__(
        self, endpoint: str | None = None, *, maintenance_seconds: float = MAINTENANCE_SECONDS
    ) -> None:
        self._maintenance_seconds = maintenance_seconds
        self._endpoint = (endpoint or f"http://{os.environ.get(HOST_VARIABLE) or HOST}").rstrip("/")
        self._token: tuple[str, float] | None = None
        self._etag = "0"

    def get(self, path: str) -> str:
        """Return the text at a path such as `instance/name`.

        Raises:
            MissingError: The machine has nothing at this path.
            UnreachableError: This is not a machine of Compute Engine.
        """
        return self._get(path).body.decode()

    def find(self, path: str) -> str | None:
        """Return the text as `get` does. `None` means that the machine has nothing at this path."""
        try:
            return self.get(path)
        except MissingError:
            return None

    def name(self) -> str:
        """Return the instance's name."""
        return self.get("instance/name")

    def zone(self) -> str:
        """Return the zone, such as `europe-west4-a`."""
        return self.get("instance/zone").rpartition("/")[2]

    def region(self) -> str:
        return self.zone().rpartition("-")[0]

    def project(self) -> str:
        """Return the project's id."""
        return self.get("project/project-id")

    def token(self, *, fresh: bool = False) -> str:
        """Return an access token of the machine's service account, renewed in time.

        Args:
            fresh: Whether a new token is needed, because the last one was refused.

        Raises:
            MissingError: The machine has no service account.
        """
        known = self._token
        if fresh or known is None or known[1] - EARLY_SECONDS < time.monotonic():
            try:
                token = json.loads(self.get("instance/service-accounts/default/token"))
                self._token = str(token["access_token"]), time.monotonic() + float(token["expires_in"])
            except MissingError:
                raise MissingError(
                    "this machine has no service account: it can ask Google Cloud for nothing", status=404
                ) from None
            except ServiceError:
                # The present token may be valid for a while.
                if fresh or known is None or known[1] < time.monotonic():
                    raise
        assert self._token is not None
        return self._token[0]

    def notice(self) -> Notice | None:
        """Return the present notice. `None` means that the machine will not be taken."""
        return self._notice(json.loads(self._get("instance/?recursive=true", attempts=1).body))

    def wait(self, seconds: float) -> Notice | None:
        """Wait until any of the machine's metadata has changed, and returns the notice, if there is one.

        Args:
            seconds: The longest wait.

        Raises:
            ServiceError: The server does not answer. The next call may work.
        """
        query = {
            "recursive": "true",
            "wait_for_change": "true",
            # With this the server also reports changes since its last answer.
            "last_etag": self._etag,
            "timeout_sec": f"{seconds:.0f}",
        }
        path = f"instance/?{urllib.parse.urlencode(query)}"
        answer = self._get(path, attempts=1, timeout=seconds + TIMEOUT_SECONDS)
        self._etag = answer.headers.get("etag", "0")
        return self._notice(json.loads(answer.body))

    def _get(self, path: str, *, attempts: int = ATTEMPTS, timeout: float = TIMEOUT_SECONDS) -> Answer:
        url = f"{self._endpoint}/computeMetadata/v1/{path}"
        # No proxy is used, because the address is local to the machine.
        answer = call("GET", url, lambda: FLAVOR, attempts=attempts, timeout=timeout, proxies={})
        what = path.partition("?")[0]
        if answer.status == 404:
            raise MissingError(f"instance metadata: there is no {what}", status=404)
        if answer.headers.get("metadata-flavor") != "Google":
            raise ServiceError("instance metadata: another server answers there", status=answer.status)
        if answer.status != 200:
            problem = f"instance metadata: {what}: HTTP status {answer.status}"
            raise ServiceError(problem, status=answer.status)
        return answer

    def _notice(self, instance: Mapping[str, Any]) -> Notice | None:
        now = time.time()
        if instance.get("preempted") == "TRUE":
            return Notice("preempted", now + PREEMPTION_SECONDS)
        # A machine with MIGRATE_ON_HOST_MAINTENANCE is moved to another host and hardly notices.
        if not str(instance.get("maintenanceEvent", "")).startswith("TERMINATE"):
            return None
        # The server does not say when the notice came. The time is right if this is the first look at it.
        at, window = now + self._maintenance_seconds, _window(instance)
        return Notice("maintenance", at if window is None else max(now, min(at, window)))


def _window(instance: Mapping[str, Any]) -> float | None:
    """Return the begin of the maintenance, in seconds since the epoch.

    `None` means that Google does not announce it for this machine type. Google's page on planning for host
    maintenance writes the key with underscores; in the server's JSON all other keys are in camel case.
    Without maintenance the value is `NONE`, missing, or an error text.
    """
    upcoming = instance.get("upcomingMaintenance")
    if not isinstance(upcoming, Mapping):
        return None
    stamp = upcoming.get("windowStartTime") or upcoming.get("window_start_time")
    try:
        return datetime.fromisoformat(str(stamp)).timestamp()
    except ValueError:
        return None
