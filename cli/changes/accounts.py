"""Waiting jobs that would never start once Slurm enforces accounts.

A cluster that is up may not enforce them yet: it has no accounting, or was made by an earlier release. There
a job keeps any account and QOS that its user has named. The boot that enforces them gives each user the
default account, but none that somebody has invented.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from cli.changes import jobs
from cli.hints import hint
from infra.errors import EXIT_REFUSED, UserError
from node.accounting.sacctmgr import can_name
from node.design.model import ClusterDesign
from node.design.sharing import NORMAL, ROOT
from node.logs.text import printable
from node.slurm.fields import ACCOUNTED

_FREE = "accounts-are-free"
_ASSOCIATION = "association="
_BEFORE = "accounts-of-before"
"""slurmctld has known accounts. Where there is no accounting now, nobody can ask which."""
_NONE = ("", "(null)")
Held = dict[tuple[str, str], frozenset[str]]
"""(account, user) -> the QOS that the association has; the user of an account's own association is empty."""


class Waiting(NamedTuple):
    """A job that waits. Its account and its QOS are empty if it has none."""

    id: str
    user: str
    account: str
    qos: str


def question(cluster: str, state: str, prefix: str) -> str:
    """Return a shell line that says who has which account, and who waits; nothing where Slurm enforces it.

    Args:
        state: slurmctld's folder.
        prefix: What gives the rights to look into it.
    """
    return (
        "scontrol show config | grep -q '^AccountingStorageEnforce *= none' || exit 0; "
        f"echo {_FREE}; sacctmgr --noheader --parsable2 list association cluster={cluster} "
        f"format=account,user,qos 2>/dev/null | sed 's/^/{_ASSOCIATION}/'; "
        f"{prefix}test ! -e {shlex.quote(f'{state}/assoc_mgr_state')} || echo {_BEFORE}; "
        f"{jobs.listing(ACCOUNTED)}"
    )


def locked_out(text: str, design: ClusterDesign) -> list[str]:
    """Return a line for each job that would not start, from the answer to `question`.

    Args:
        design: The cluster as the stack file has it.

    Raises:
        UnsureError: The answer is not whole.
    """
    before = jobs.before_listing(text).splitlines()
    if _FREE not in before:
        return []
    held: Held = {}
    for line in (line.removeprefix(_ASSOCIATION) for line in before if line.startswith(_ASSOCIATION)):
        account, user, qos = (*line.split("|"), "", "")[:3]
        held[account, user] = frozenset(qos.split(","))
    if not held and _BEFORE in before:
        return []
    waiting = [job for record in jobs.records(text, ACCOUNTED) if (job := _waiting(record)) is not None]
    return [f"  job {job.id} ({job.user}): {why}" for job in waiting if (why := _missing(job, held, design))]


def _waiting(record: Sequence[str]) -> Waiting | None:
    """Return the job of a record; `None` if it has nodes, and so has been taken as it is."""
    fields = dict(
        zip(ACCOUNTED, ("" if value in _NONE else printable(value) for value in record), strict=True)
    )
    if fields["%N"]:
        return None
    return Waiting(fields["%i"], fields["%u"], fields["%a"], fields["%q"])


def _missing(job: Waiting, held: Held, design: ClusterDesign) -> str | None:
    """Return what the job names and its user will not have."""
    if not can_name(job.user):
        return "Slurm's accounting cannot hold this name of a user"
    default = design.slurm.default_account
    given = {account: qos for (account, user), qos in held.items() if user == job.user}
    if job.user == ROOT:
        given.setdefault(ROOT, frozenset())
    for account, qos in _of_stack(job.user, design):
        given[account] = given.get(account, frozenset()) | qos | held.get((account, ""), frozenset())
    if not given:
        given[default] = _of_account(default, design) | held.get((default, ""), frozenset())
    if job.account and job.account not in given:
        return f"the user has no account {job.account}"
    every = [given[job.account]] if job.account else given.values()
    if job.qos and job.qos != NORMAL and not any(job.qos in qos for qos in every):
        return f"the user has no QOS {job.qos}"
    return None


def _of_stack(name: str, design: ClusterDesign) -> Iterable[tuple[str, frozenset[str]]]:
    """Yield the accounts, and their QOS, that the stack file gives a user."""
    for user in (user for user in design.users if user.name == name):
        for account in user.all_accounts(design.slurm.default_account):
            yield account, frozenset(user.qos) | _of_account(account, design)


def _of_account(name: str | None, design: ClusterDesign) -> frozenset[str]:
    """Return the QOS that the stack file gives an account: its own, or those of the next account above it."""
    accounts = {account.name: account for account in design.accounts}
    while name is not None and name in accounts:
        if accounts[name].qos:
            return frozenset(accounts[name].qos)
        name = accounts[name].parent
    return frozenset()


def refusal(lines: Sequence[str], design: ClusterDesign) -> UserError:
    """Return the error of `up` for these jobs."""
    more = [f"  and {len(lines) - jobs.MOST_LISTED} more"] if len(lines) > jobs.MOST_LISTED else []
    listed = "\n".join([*lines[: jobs.MOST_LISTED], *more])
    return UserError(
        "nothing was changed: from now on Slurm takes only accounts and QOS that exist, and these jobs would "
        f"wait for ever:\n{listed}\nGive the users what they name, by `accounts`, `users` and `qos` of the "
        f"stack file or with `{hint('exec', design.stack, '-- sacctmgr')}` (add account NAME; add user USER "
        "account=NAME), or cancel the jobs, and run `up` again",
        EXIT_REFUSED,
        code="jobs.locked-out",
    )
