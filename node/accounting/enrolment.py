"""Gives everybody who may submit an account, so that AccountingStorageEnforce locks nobody out.

Slurm refuses the jobs of a user without an association. Here is what the controller's boot does: it makes the
default account, and adds to it whoever has no association yet. Who has one, in whichever account, is left
alone. Users who log in later are added by `node.bootstrap.vm.login_enrolment`.
"""

from __future__ import annotations

import os
import pwd
import sys
from collections.abc import Callable, Iterable

from node.accounting.plan import DEFAULT_DESCRIPTION
from node.accounting.sacctmgr import Sacctmgr, can_name
from node.bootstrap.command import CommandError
from node.bootstrap.context import Context
from node.bootstrap.vm.users import FIRST_USER, NOBODY
from node.system import plurals

HISTORY = "now-365days"
"""Who had a job since then was a user before accounts were enforced."""
HISTORY_SECONDS = 300.0
ATTEMPTS, PAUSE_SECONDS = 20, 0.5
"""The retries of sacctmgr while slurmdbd makes its tables."""


def sacctmgr_of(context: Context) -> Sacctmgr:
    """Return the sacctmgr of a controller during its boot."""

    def run(*words: str) -> str:
        return context.slurm("sacctmgr", *words, attempts=ATTEMPTS, pause=PAUSE_SECONDS)

    return Sacctmgr(run, context.settings.design.name)


def enrol(context: Context, *, is_new: bool) -> None:
    """Make the default account, and add all users to it who are known before slurmctld starts.

    Where the account is new and the cluster is not, accounts have not been enforced before. So whoever had a
    job is added, too: a directory need not list its users.

    Args:
        is_new: Whether slurmdbd has no records of this cluster.
    """
    sacctmgr, account = sacctmgr_of(context), context.settings.design.slurm.default_account
    known = sacctmgr.associations()
    names = _local_users(context)
    if account not in {one.account for one in known}:
        sacctmgr.add_account(account, DEFAULT_DESCRIPTION)
        names += [] if is_new else _users(context, lambda: _records(context))
    # `apply` adds whom the stack file gives another account.
    elsewhere = {user.name for user in context.settings.design.users if user.account is not None}
    _add(sacctmgr, account, {one.user for one in known} | elsewhere, names)


def enrol_queued(context: Context) -> None:
    """Add the users of queued jobs who have no association: slurmctld then starts their jobs as before."""
    names = _users(context, lambda: context.slurm("squeue", "--noheader", "--all", "--format=%u"))
    if names:
        sacctmgr = sacctmgr_of(context)
        enrolled = {one.user for one in sacctmgr.associations()}
        _add(sacctmgr, context.settings.design.slurm.default_account, enrolled, names)


def _records(context: Context) -> str:
    options = ("--noheader", "--parsable2", "--allusers", "--allocations", "--duplicates", "--format=User")
    return context.slurm("sacct", *options, f"--starttime={HISTORY}", timeout=HISTORY_SECONDS)


def _users(context: Context, ask: Callable[[], str]) -> list[str]:
    """Return the users that a program of Slurm's lists. If it fails, the boot goes on without."""
    try:
        names = {line.strip() for line in ask().splitlines()} - {""}
    except CommandError as error:
        print(f"users who had jobs are not known: {error}", file=sys.stderr, flush=True)
        return []
    return sorted(name for name in names if context.process or _is_known(name))


def _is_known(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


def _local_users(context: Context) -> list[str]:
    """Return SlurmUser, the stack file's users without an account of theirs, and this machine's users.

    On process machines only the cluster's owner submits.
    """
    site, design = context.settings.site, context.settings.design
    if context.process:
        return [pwd.getpwuid(os.getuid()).pw_name]
    ours = [user.name for user in design.users if user.account is None]
    others = [entry.pw_name for entry in pwd.getpwall() if FIRST_USER <= entry.pw_uid < NOBODY]
    return [site.user, *ours, *others]


def _add(sacctmgr: Sacctmgr, account: str, enrolled: set[str], names: Iterable[str]) -> None:
    missing = sorted(set(names) - enrolled)
    for name in (name for name in missing if not can_name(name)):
        print(f"{name!r} gets no account: sacctmgr cannot be told the name", file=sys.stderr, flush=True)
    if added := [name for name in missing if can_name(name)]:
        sacctmgr.add_users(account, added)
        print(f"{plurals.count(len(added), 'user')} added to account {account}", file=sys.stderr, flush=True)
