"""Checks for every cloud: the credentials, the SSH client and the SSH keys."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from cli.findings import Finding, fine, from_error, stops, warns
from infra.errors import UserError
from infra.program import locations
from operations import pages
from operations.clouds import own_keys

# Compares the quotas of an account or a project with what a whole stack uses.

QUOTAS = "quotas"
"""The name of the check, and the group of its findings."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a cluster uses of one quota.

    Attributes:
        always: The number while the cluster is up.
        most: The number with every node up.
    """

    always: int = 0
    most: int = 0

    def __add__(self, other: Wanted) -> Wanted:
        return Wanted(self.always + other.always, self.most + other.most)

    def times(self, always: int, most: int) -> Wanted:
        """Return what nodes use together, given what one uses."""
        return Wanted(self.always * always, self.most * most)


@dataclass(frozen=True, slots=True)
class Quota:
    """A quota, and what the cluster and others use of it.

    Attributes:
        name: What is counted and where, for users: `vCPUs on demand of the family P in eu-west-1`.
        code: The cloud's name of the quota, if that is another.
        limit: The quota.
        used: What is used by everything but this cluster.
        increase: Gives the way to ask for a quota of this number.
    """

    name: str
    code: str
    limit: float
    used: float
    wanted: Wanted
    increase: Callable[[int], str]


def quota_findings(quotas: Iterable[Quota], enough: str) -> Iterator[Finding]:
    """Compare each quota with what the cluster uses.

    Args:
        enough: What is said if all are large enough.

    Yields:
        A finding that stops `up` where the cluster could not come up, and a warning where not all of its
        nodes can be up at the same time.
    """
    short = [finding for quota in quotas if (finding := _short(quota))]
    yield from short or [fine(QUOTAS, enough)]


def _short(quota: Quota) -> Finding | None:
    wanted, free = quota.wanted, quota.limit - quota.used
    if wanted.most <= free:
        return None
    code = f" ({quota.code})" if quota.code else ""
    found = f"{quota.name}: {quota.limit:g}{code}, {quota.used:g} of them used"
    more = quota.increase(wanted.most + round(quota.used))
    if wanted.always > free:
        found = f"{found}; the cluster has {wanted.always} all the time"
        return stops(QUOTAS, found, f"Ask for more: {more}; or make the cluster smaller.")
    return warns(
        QUOTAS,
        f"{found}; every node up needs {wanted.most}",
        f"Until you have more, jobs beyond it wait: {more}.",
    )


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
            found = f"{program}, {what}, is not on PATH"
            yield stops(f"ssh.{program}", found, f"Install it: {page}; or use access.mode: ssh.")
        else:
            yield fine(f"ssh.{program}", f"{program} is on PATH")


def login_key() -> Finding:
    """Whether `ssh` has a key to offer where the machine's key was chosen before: access.mode `ssh`."""
    if own_keys.any_key(locations.home() / ".ssh"):
        return fine("ssh.key", "there is an SSH key to log in with")
    found = "the SSH agent has no key, and there is none in ~/.ssh under a usual name"
    return stops("ssh.key", found, "Add the key that the login machine accepts to the agent: `ssh-add FILE`.")


def own_key() -> Finding:
    """Whether the user has a key that the cloud can make a machine accept."""
    return _key("ssh.key", lambda: own_keys.own_key(locations.home() / ".ssh"))


def _key(name: str, look: Callable[[], object]) -> Finding:
    try:
        look()
    except UserError as error:
        return from_error(name, error)
    return fine(name, "there is an SSH key to log in with")
