"""Compares the quotas of an account or a project with what a whole stack uses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from cli.findings import Finding, fine, stops, warns

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
    problem = f"{quota.name}: {quota.limit:g}{code}, {quota.used:g} of them used"
    more = quota.increase(wanted.most + round(quota.used))
    if wanted.always > free:
        problem = f"{problem}; the cluster has {wanted.always} all the time"
        return stops(QUOTAS, problem, f"Ask for more: {more}; or make the cluster smaller.")
    return warns(
        QUOTAS,
        f"{problem}; every node up needs {wanted.most}",
        f"Until you have more, jobs beyond it wait: {more}.",
    )
