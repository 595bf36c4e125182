"""What would keep a cluster on any cloud from coming up: credentials, and the keys for the way in."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable

from infra import pages
from infra.clouds import keys
from infra.doctor.finding import Finding, Severity, fine, said, stops
from infra.errors import UserError
from infra.runner import locations
from infra.ssh import agent


def credentials(require: Callable[[], object], which: str | None) -> Iterable[Finding]:
    """Whether there are some; only the cloud could say whether they are good.

    Args:
        require: raises UserError where there are none.
        which: where they come from, if that is said anywhere.
    """
    try:
        require()
    except UserError as error:
        yield said("credentials", Severity.STOPS, str(error))
        return
    yield fine("credentials", f"there are some{f' ({which})' if which else ''}; not tried out")


def client() -> Iterable[Finding]:
    """OpenSSH's; nothing where it is there."""
    if shutil.which("ssh") is None:
        yield stops("ssh.client", "`ssh` is not on PATH", f"Install OpenSSH's client: {pages.OPENSSH}.")


def agents_key() -> Finding:
    """A key of the agent's, as access.mode ssh needs one."""
    return _key("ssh.agent", agent.require)


def own_key() -> Finding:
    """A key of the user's, which the cloud has the machine accept."""
    return _key("ssh.key", lambda: keys.own_key(locations.home() / ".ssh"))


def _key(name: str, look: Callable[[], object]) -> Finding:
    try:
        look()
    except UserError as error:
        return said(name, Severity.STOPS, str(error))
    return fine(name, "there is an SSH key to log in with")
