"""A cluster on Google Cloud behind the shared interface `Cloud`."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from infra.clouds.commands import ClusterRef
from infra.config.provider_settings import shell_options
from infra.errors import EXIT_REFUSED, EXIT_USAGE, UserError
from infra.gcp.access import proxy
from infra.program import locations
from infra.program.launcher import Run
from node.design.model import Access
from node.elastic.drivers.gce.names import value
from operations.clouds.cloud import KeptStorage, Machine
from operations.clouds.ssh_access import own_key
from operations.gcp import account, leftovers, machines
from operations.gcp.account import Account, GoogleError

# SSH access to machines on Google Cloud: the user's name and key at OS Login, and the tunnel through IAP.
#
# OS Login manages the users on the machines. The user name follows from the Google account, and a public key
# of the user is accepted on every machine of the project on which the roles of that account allow a login.

KEY_SECONDS = 12 * 3600.0
"""How long OS Login accepts a key, in seconds: a working day. In the second half of it the key is renewed."""


def tunnel(project: str, zone: str, instance: str, port: str) -> list[str]:
    """Return the gcloud command that connects its standard input and output with a port of an instance."""
    line = ["gcloud", "compute", "start-iap-tunnel", instance, port, "--listen-on-stdin"]
    return [*line, "--project", project, "--zone", zone, "--verbosity=warning"]


def bring_key(account: Account, folder: Path, now: float | None = None) -> str:
    """Make OS Login accept one of the user's own keys.

    A key that OS Login accepts for long enough, or for ever, is left as it is.

    Args:
        folder: The folder `~/.ssh`.
        now: The time in seconds since the epoch.

    Returns:
        The user's name on machines.

    Raises:
        UserError: The user has no such key, OS Login takes none, or Google Cloud refuses.
    """
    now = time.time() if now is None else now
    key = own_key(folder)
    user = quote(account.email(), safe="@")
    profile = account.call("GET", "oslogin", f"users/{user}/loginProfile", projectId=account.project)
    entry = _registered_key(profile, key)
    until = str(round((now + KEY_SECONDS) * 1_000_000))
    if entry is not None and not _lasts(entry, now) and not _extend(account, user, entry, until):
        entry = None
    if entry is None or _user_name(profile) is None:
        # A key without an end keeps none, even if it is imported again because the user has no name.
        ends = entry is None or bool(entry.get("expirationTimeUsec"))
        body = {"key": key, **({"expirationTimeUsec": until} if ends else {})}
        path = f"users/{user}:importSshPublicKey"
        profile = account.call("POST", "oslogin", path, body, projectId=account.project)["loginProfile"]
        entry = _registered_key(profile, key)
    name = _user_name(profile)
    if entry is None or name is None:
        raise UserError(
            f"OS Login does not take a key for {account.email()}: your organisation may not let users add "
            "SSH keys (admin console, OS Login), or your account has no POSIX user name there",
            EXIT_REFUSED,
            code="gcp.os-login",
        )
    return name


def _extend(account: Account, user: str, key: Mapping[str, Any], until: str) -> bool:
    """Give a key in OS Login a later end.

    This is what gcloud does (`oslogin_utils`, `UpdateSshPublicKey`): it is not documented that the import of
    an existing key changes it.

    Returns:
        False if OS Login no longer has the key.
    """
    path = f"users/{user}/sshPublicKeys/{quote(str(key['fingerprint']), safe='')}"
    try:
        account.call("PATCH", "oslogin", path, {"expirationTimeUsec": until}, updateMask="expirationTimeUsec")
    except GoogleError as error:
        if error.status == 404:  # an expired key may be removed at any moment
            return False
        raise
    return True


def _lasts(key: Mapping[str, Any], now: float) -> bool:
    expires = key.get("expirationTimeUsec")
    return not expires or int(expires) / 1_000_000 > now + KEY_SECONDS / 2


def _registered_key(profile: Mapping[str, Any], key: str) -> Mapping[str, Any] | None:
    """Return the key in a profile, compared without the comment at its end."""
    kind_and_body = key.split()[:2]
    known = profile.get("sshPublicKeys", {})
    # The keys are listed by their fingerprint.
    each = ({"fingerprint": mark, **value} for mark, value in known.items())
    return next((value for value in each if str(value.get("key", "")).split()[:2] == kind_and_body), None)


def _user_name(profile: Mapping[str, Any]) -> str | None:
    """Return the user's name on machines; of several names the one that is marked as primary."""
    accounts = [account for account in profile.get("posixAccounts", []) if account.get("username")]
    accounts.sort(key=lambda account: not account.get("primary", False))
    return str(accounts[0]["username"]) if accounts else None


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
        from operations.gcp import leftovers

        return list(leftovers.kept(self.account, self.place.cluster, paths))

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
