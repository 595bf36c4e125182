"""A cluster on Google Cloud behind the shared interface `Cloud`."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from infra.clouds.commands import ClusterRef
from infra.config.provider_settings import shell_options
from infra.errors import EXIT_USAGE, UserError
from infra.gcp.access import proxy
from infra.program import locations
from infra.program.launcher import Run
from node.design.model import Access
from node.elastic.drivers.gce.names import value
from operations.clouds.cloud import Machine
from operations.clouds.kept import KeptStorage
from operations.gcp import account, leftovers, machines
from operations.gcp.account import Account, GoogleError
from operations.gcp.os_login import bring_key

AGAIN_SECONDS = 120.0
"""The seconds after which an unfinished deletion is requested again."""


@dataclass(slots=True)
class GcpCloud:
    """The `operations.clouds.cloud.Cloud` of a cluster in a project.

    Attributes:
        open: Gives the account for a cluster. It is called when credentials are needed for the first time.
    """

    place: ClusterRef
    open: Callable[[ClusterRef], Account] = field(default_factory=lambda: account.of)
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
                raise UserError(
                    "gcp:project is missing in the stack file: name yours", EXIT_USAGE, code="gcp.no-project"
                )
            self._account = self.open(self.place)
            self._account.region = self.place.region
        return self._account

    def label_of(self, text: str) -> str:
        return value(text)

    def machines(self, *states: str, **labels: str) -> list[Machine]:
        """Return the machines in every zone. Google Cloud does not list deleted ones in any state."""
        cluster = self.place.cluster
        present = [
            machines.machine(instance, cluster)
            for instance in machines.listed(self.account, cluster, **labels)
        ]
        return [machine for machine in present if not states or machine.state in states]

    def start(self, stopped: Sequence[Machine]) -> None:
        machines.start(self.account, stopped)

    def end(self, living: Sequence[Machine]) -> None:
        now = time.monotonic()
        due = [
            machine
            for machine in living
            if now - self._asked.get(machine.id, -AGAIN_SECONDS) >= AGAIN_SECONDS
        ]
        self._asked |= {machine.id: now for machine in due}
        machines.end(self.account, due)

    def remove_loose(self) -> None:
        machines.remove_loose(self.account, self.place.cluster)

    def end_images(self, say: Callable[[str], None]) -> None:
        machines.end_images(self.account, self.place.cluster, say)

    def leftovers(self) -> list[str]:
        return leftovers.leftovers(self.account, self.place.cluster)

    def kept(self, paths: Mapping[str, str]) -> list[KeptStorage]:
        from operations.gcp import kept

        return list(kept.kept(self.account, self.place.cluster, paths))

    def failure(self, machine: Machine) -> str | None:
        return machines.failure(self.account, machine)

    def keeps_root_disk(self, host: str) -> bool:
        return machines.has_disk(self.account, str(self.place.zone), f"{self.place.cluster}-{host}")

    def image_slurm(self, image: str) -> str | None:
        return machines.image_slurm(self.account, image)

    def bucket(self) -> str | None:
        return leftovers.bucket(self.account, self.place.cluster)

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
        """Return the user's name at OS Login. This also gives OS Login one of the user's keys."""
        if self._user is None:
            self._user = bring_key(self.account, locations.home() / ".ssh")
        return self._user

    def proxy(self, access: Access, run: Run) -> str | None:
        return proxy(self.place, access.mode, run)

    def console_line(self, machine: Machine) -> str:
        return self._gcloud("get-serial-port-output", machine)

    def stop_line(self, machine: Machine) -> str:
        return self._gcloud("stop", machine)

    def _gcloud(self, verb: str, machine: Machine) -> str:
        zone = machine.zone or str(self.place.zone)
        words = ["gcloud", "compute", "instances", verb, machine.id]
        line = shlex.join([*words, "--project", str(self.place.project), "--zone", zone])
        return line + shell_options(self.place.provider_settings)
