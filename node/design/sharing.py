"""What a team shares, in the design: accounts, users, quality-of-service levels, and priorities of jobs.

Names are Slurm's (sacctmgr(1), slurm.conf(5)).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field

DEFAULT_ACCOUNT = "users"
ROOT, NORMAL = "root", "normal"
"""The account with its user, and the QOS, that slurmdbd has from the beginning."""
STOPPED_ACCOUNTS = "slurm-stacks-stopped-accounts.json"
"""The record of accounts that have used their budgets, in slurmctld's folder (`node.accounting.stops`)."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of an account, a user or a QOS; `None` and empty mean no limit.

    Attributes:
        grp_tres: TRES -> count, of all running jobs together; memory in MiB.
        max_wall: The longest time limit, in Slurm's notation.
        max_jobs: Running jobs of each user; of accounts and users.
        max_tres_per_user: Of a QOS, as are all that follow.
    """

    grp_tres: dict[str, int] = field(default_factory=dict)
    grp_jobs: int | None = None
    grp_submit: int | None = None
    max_tres_per_job: dict[str, int] = field(default_factory=dict)
    max_wall: str | None = None
    max_jobs: int | None = None
    max_submit: int | None = None
    max_tres_per_user: dict[str, int] = field(default_factory=dict)
    max_tres_per_account: dict[str, int] = field(default_factory=dict)
    max_jobs_per_user: int | None = None
    max_submit_per_user: int | None = None


@dataclass(frozen=True, slots=True)
class AccountBudget:
    """What an account's jobs may spend on nodes, with those of the accounts below it; `None` means no limit.

    Attributes:
        max_hours: The limit in node-hours.
        running_jobs: What happens to running jobs when the budget is used up: keep | cancel.
        period: life (of the cluster) | month (of the calendar, in UTC).
    """

    max_usd: float | None = None
    max_hours: float | None = None
    running_jobs: str = "keep"
    period: str = "life"

    @property
    def is_limited(self) -> bool:
        return self.max_usd is not None or self.max_hours is not None


@dataclass(frozen=True, slots=True)
class Account:
    """An account of Slurm.

    Attributes:
        parent: The account it belongs to; `None` means root.
        shares: Its share beside its siblings (fairshare).
    """

    name: str
    description: str | None = None
    parent: str | None = None
    shares: int = 1
    qos: tuple[str, ...] = ()
    default_qos: str | None = None
    limits: Limits = field(default_factory=Limits)
    budget: AccountBudget = field(default_factory=AccountBudget)


@dataclass(frozen=True, slots=True)
class User:
    """A user of the cluster.

    Attributes:
        account: The account of jobs that name none; `None` means the cluster's default account.
        admin_level: none | operator | administrator
        id: The number of the user and of their own group; `None` where the stack does not make the user.
        groups: Further groups: NAME of one that is there, or NAME:ID of one that the stack makes.
    """

    name: str
    account: str | None = None
    accounts: tuple[str, ...] = ()
    shares: int = 1
    qos: tuple[str, ...] = ()
    default_qos: str | None = None
    limits: Limits = field(default_factory=Limits)
    admin_level: str = "none"
    id: int | None = None
    groups: tuple[str, ...] = ()
    ssh_keys: tuple[str, ...] = ()
    sudo: bool = False

    def all_accounts(self, default_account: str) -> tuple[str, ...]:
        """Return the accounts of the user; that of jobs which name none is the first.

        Args:
            default_account: The cluster's.
        """
        return (self.account or default_account, *self.accounts)


def of_machines(users: Iterable[User]) -> list[User]:
    """Return the users whom the stack makes on its machines."""
    return [user for user in users if user.id is not None]


def digest_of_machines(users: Iterable[User]) -> str:
    """Return a short text that changes when the machines' users do."""
    facts = [[u.name, u.id, sorted(u.groups), u.ssh_keys, u.sudo] for u in of_machines(users)]
    return hashlib.sha256(json.dumps(sorted(facts)).encode()).hexdigest()[:16]


def users_line(users: Iterable[User]) -> str:
    """Return the line of slurm.conf from which a node knows the list of users that it should have."""
    return f"# users: {digest_of_machines(users)}"


@dataclass(frozen=True, slots=True)
class Qos:
    """A quality of service.

    Attributes:
        preempts: QOS whose jobs make way for its jobs.
        preempt_mode: requeue | cancel; `None` means the cluster's, requeue.
    """

    name: str
    description: str | None = None
    priority: int = 0
    preempts: tuple[str, ...] = ()
    preempt_mode: str | None = None
    grace_seconds: int = 0
    usage_factor: float = 1.0
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True, slots=True)
class Priority:
    """The weights of priority/multifactor, and its times in Slurm's notation."""

    decay_half_life: str = "7-00:00:00"
    calc_period: str = "00:05:00"
    fairshare: int = 100000
    qos: int = 1000000
    age: int = 10000
    max_age: str = "7-00:00:00"
    job_size: int = 0
    partition: int = 0
