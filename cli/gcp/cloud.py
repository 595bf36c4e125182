"""A cluster on Google Cloud behind the shared interface `Cloud`."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from cli.clouds.cloud import Machine
from cli.clouds.kept_storage import KeptStorage
from cli.gcp import account, leftovers, machines, ssh_keys
from cli.gcp.account import Account, GoogleError
from infra.clouds.commands import ClusterRef
from infra.errors import EXIT_USAGE, UserError
from infra.gcp.access import proxy
from infra.program import locations
from node.elastic.drivers.gce.names import value
from node.model import Access

AGAIN_SECONDS = 120.0
"""The seconds after which an unfinished deletion is requested again."""


@dataclass(slots=True)
class GcpCloud:
    """The `cli.clouds.cloud.Cloud` of a cluster in a project.

    Attributes:
        open: Gives the account for a project. It is called when credentials are needed for the first time.
    """

    place: ClusterRef
    open: Callable[[str], Account] = field(default_factory=lambda: account.of)
    _account: Account | None = None
    _user: str | None = None
    _asked: dict[str, float] = field(default_factory=dict)

    @property
    def label(self) -> str:
        return "Compute Engine"

    @property
    def account(self) -> Account:
        """The account of the cluster's project.

        Raises:
            UserError: There are no credentials (exit 3), or the stack file names no project (exit 2).
        """
        if self._account is None:
            if not self.place.project:
                raise UserError("gcp:project is missing in the stack file: name yours", EXIT_USAGE)
            self._account = self.open(self.place.project)
            self._account.region = self.place.region
        return self._account

    def label_of(self, text: str) -> str:
        return value(text)

    def machines(self, *states: str, **labels: str) -> list[Machine]:
        """The machines in every zone. Google Cloud does not list deleted ones in any state."""
        cluster = self.place.cluster
        there = [machines.machine(one, cluster) for one in machines.listed(self.account, cluster, **labels)]
        return [one for one in there if not states or one.state in states]

    def start(self, stopped: Sequence[Machine]) -> None:
        machines.start(self.account, stopped)

    def end(self, living: Sequence[Machine]) -> None:
        now = time.monotonic()
        due = [one for one in living if now - self._asked.get(one.id, -AGAIN_SECONDS) >= AGAIN_SECONDS]
        self._asked |= {one.id: now for one in due}
        machines.end(self.account, due)

    def remove_loose(self) -> None:
        machines.remove_loose(self.account, self.place.cluster)

    def end_images(self, say: Callable[[str], None]) -> None:
        machines.end_images(self.account, self.place.cluster, say)

    def leftovers(self) -> list[str]:
        return leftovers.leftovers(self.account, self.place.cluster)

    def kept(self, paths: Mapping[str, str]) -> list[KeptStorage]:
        from cli.gcp import kept_storage

        return list(kept_storage.kept(self.account, self.place.cluster, paths))

    def read(self, bucket: str, key: str) -> bytes | None:
        try:
            return self.account.object(bucket, key)
        except GoogleError as error:
            if error.status == 404:
                return None
            raise

    def changed(self, bucket: str, key: str) -> float:
        path = f"b/{bucket}/o/{account.escaped(key)}"
        return machines.seconds(str(self.account.call("GET", "storage", path)["updated"]))

    def user(self, access: Access) -> str:
        """The user's name at OS Login. This also gives OS Login one of the user's keys."""
        if self._user is None:
            self._user = ssh_keys.bring_key(self.account, locations.home() / ".ssh")
        return self._user

    def proxy(self, access: Access, python: str) -> str | None:
        return proxy(self.place, access.mode, python)

    def console_line(self, machine: Machine) -> str:
        return self._gcloud("get-serial-port-output", machine)

    def start_line(self, machine: Machine) -> str:
        return self._gcloud("start", machine)

    def _gcloud(self, verb: str, machine: Machine) -> str:
        zone = machine.zone or str(self.place.zone)
        words = ["gcloud", "compute", "instances", verb, machine.id]
        return shlex.join([*words, "--project", str(self.place.project), "--zone", zone])
