"""SSH access to machines on Google Cloud: the user's name and key at OS Login, and the tunnel through IAP.

OS Login manages the users on the machines. The user name follows from the Google account, and a public key
of the user is accepted on every machine of the project on which the roles of that account allow a login.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from infra.errors import EXIT_REFUSED, UserError
from operations.clouds.own_keys import own_key
from operations.gcp.account import Account, GoogleError

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
