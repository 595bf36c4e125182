"""The way to a cluster's machines by SSH: to a public address, or through Identity-Aware Proxy.

Who somebody is on the machines is OS Login's: the user name follows from the Google account, and a public key
of the user's is accepted on every machine of the project on which that account's roles let it log in.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from infra.clouds.cloud import PYTHON, Place
from infra.clouds.keys import own_key
from infra.errors import EXIT_REFUSED, UserError
from infra.gcp.account import Account, GoogleError

OPERATIONS = "-m infra.gcp.operations"
KEY_SECONDS = 12 * 3600.0
"""How long OS Login accepts a key that was brought: a working day. In its second half it is brought again."""


def proxy(place: Place, mode: str, python: str = PYTHON) -> str | None:
    """OpenSSH's ProxyCommand for a way in; %h is an instance's name.

    Args:
        mode: `access.mode`: ssh | iap.
        python: the command that starts this project's Python with this project in its path.
    """
    if mode != "iap":
        return None
    where = shlex.join(["--project", str(place.project), "--zone", str(place.zone)])
    return f"{python} {OPERATIONS} proxy {where} --instance %h --port %p"


def ask(place: Place, python: str = PYTHON) -> str:
    """The command that says whom `ssh` logs in as: never the name of who has made the cluster."""
    return f"{python} {OPERATIONS} user --project {shlex.quote(str(place.project))}"


def tunnel(project: str, zone: str, instance: str, port: str) -> list[str]:
    """gcloud's command that connects its standard input and output with a port of an instance."""
    line = ["gcloud", "compute", "start-iap-tunnel", instance, port, "--listen-on-stdin"]
    return [*line, "--project", project, "--zone", zone, "--verbosity=warning"]


def bring_key(account: Account, folder: Path, now: float | None = None) -> str:
    """Have OS Login accept one of the user's own keys, and say what it calls the user on machines.

    A key that is there for long enough, or for ever, is left as it is.

    Args:
        folder: `~/.ssh`.
        now: seconds since the epoch.

    Raises:
        UserError: there is no such key, OS Login takes none, or Google Cloud refuses.
    """
    now = time.time() if now is None else now
    key = own_key(folder)
    user = quote(account.email(), safe="@")
    profile = account.call("GET", "oslogin", f"users/{user}/loginProfile", projectId=account.project)
    there = _key(profile, key)
    until = str(round((now + KEY_SECONDS) * 1_000_000))
    if there is not None and not _lasts(there, now) and not _extend(account, user, there, until):
        there = None
    if there is None or _name(profile) is None:
        # Of a key that has no end, and a user without a name, the key stays without an end.
        ends = there is None or bool(there.get("expirationTimeUsec"))
        body = {"key": key, **({"expirationTimeUsec": until} if ends else {})}
        path = f"users/{user}:importSshPublicKey"
        profile = account.call("POST", "oslogin", path, body, projectId=account.project)["loginProfile"]
        there = _key(profile, key)
    name = _name(profile)
    if there is None or name is None:
        raise UserError(
            f"OS Login does not take a key for {account.email()}: your organisation may not let users add "
            "SSH keys (admin console, OS Login), or your account has no POSIX user name there",
            EXIT_REFUSED,
        )
    return name


def _extend(account: Account, user: str, key: Mapping[str, Any], until: str) -> bool:
    """Give a key that OS Login has a later end; whether it has it still.

    As gcloud does (`oslogin_utils`, `UpdateSshPublicKey`): nothing says that an import of a key that is there
    changes it.
    """
    path = f"users/{user}/sshPublicKeys/{quote(str(key['fingerprint']), safe='')}"
    try:
        account.call("PATCH", "oslogin", path, {"expirationTimeUsec": until}, updateMask="expirationTimeUsec")
    except GoogleError as error:
        if error.status == 404:  # what is over may be removed at any moment
            return False
        raise
    return True


def _lasts(key: Mapping[str, Any], now: float) -> bool:
    expires = key.get("expirationTimeUsec")
    return not expires or int(expires) / 1_000_000 > now + KEY_SECONDS / 2


def _key(profile: Mapping[str, Any], key: str) -> Mapping[str, Any] | None:
    """The key in a profile; what is written behind it, a name for people, does not matter."""
    mine = key.split()[:2]
    known = profile.get("sshPublicKeys", {})
    # The fingerprint is what they are listed by.
    each = ({"fingerprint": mark, **one} for mark, one in known.items())
    return next((one for one in each if str(one.get("key", "")).split()[:2] == mine), None)


def _name(profile: Mapping[str, Any]) -> str | None:
    """The user's name on machines: of several the one that is marked."""
    accounts = [one for one in profile.get("posixAccounts", []) if one.get("username")]
    accounts.sort(key=lambda one: not one.get("primary", False))
    return str(accounts[0]["username"]) if accounts else None
