"""Checks for every cloud: the credentials, the SSH client and the SSH keys."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable

from cli.findings import Finding, fine, from_error, stops
from infra.errors import UserError
from infra.program import locations
from operations import pages
from operations.clouds import own_keys


def credentials(require: Callable[[], object], which: str | None) -> Iterable[Finding]:
    """Whether there are credentials. Only the cloud could tell whether they are valid.

    Args:
        require: Raises UserError if there are none.
        which: Where the credentials come from; `None` if nothing says it.
    """
    try:
        require()
    except UserError as error:
        yield from_error("credentials", error)
        return
    yield fine("credentials", f"there are some{f' ({which})' if which else ''}; not tried out")


def client() -> Iterable[Finding]:
    """Whether OpenSSH's client is installed; no finding if it is."""
    if shutil.which("ssh") is None:
        yield stops("ssh.client", "`ssh` is not on PATH", f"Install OpenSSH's client: {pages.OPENSSH}.")


def installed(*programs: tuple[str, str, str]) -> Iterable[Finding]:
    """Whether the programs are installed that an access mode other than `ssh` needs.

    Args:
        programs: The name, a description and the installation page of each.
    """
    for program, what, page in programs:
        if shutil.which(program) is None:
            problem = f"{program}, {what}, is not on PATH"
            yield stops(f"ssh.{program}", problem, f"Install it: {page}; or use access.mode: ssh.")
        else:
            yield fine(f"ssh.{program}", f"{program} is on PATH")


def login_key() -> Finding:
    """Whether `ssh` has a key to offer where the machine's key was chosen before: access.mode `ssh`."""
    if own_keys.any_key(locations.home() / ".ssh"):
        return fine("ssh.key", "there is an SSH key to log in with")
    problem = "the SSH agent has no key, and there is none in ~/.ssh under a usual name"
    return stops(
        "ssh.key", problem, "Add the key that the login machine accepts to the agent: `ssh-add FILE`."
    )


def own_key() -> Finding:
    """Whether the user has a key that the cloud can make a machine accept."""
    return _key("ssh.key", lambda: own_keys.own_key(locations.home() / ".ssh"))


def _key(name: str, look: Callable[[], object]) -> Finding:
    try:
        look()
    except UserError as error:
        return from_error(name, error)
    return fine(name, "there is an SSH key to log in with")
