"""The budgets of accounts: what each has spent, and which accounts start no more jobs.

A bill costs a second of a core or more, so it is made seldom: at least every FRESH_SECONDS, and before that
only once the whole cluster has spent as much since as the account with the least has left. No account can
have used its budget earlier. A process of its own makes the bill: its memory goes with it, and nothing that
waits for the daemon waits for it.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from node.accounting import stops
from node.accounting.sacctmgr import Sacctmgr
from node.accounting.stops import KnownAccount
from node.billing import spending
from node.billing.bill import SACCT_SECONDS
from node.billing.spending import Amounts, Ask, ByAccount, Spent
from node.design.folders import Folders
from node.design.model import ClusterDesign, Settings
from node.design.sharing import AccountBudget
from node.elastic.budget import amount
from node.elastic.budget_enforcer import cancel
from node.elastic.failures import ErrorClass, Failure
from node.elastic.ledger import Account, Ledger
from node.elastic.pending_jobs import STOPPED
from node.elastic.steps import NOT_TRIED, NotTried, Step
from node.elastic.view import log
from node.slurm.control import Slurm, SlurmError
from node.slurm.states import JobState
from node.system import subprocesses

FRESH_SECONDS = 600.0
"""How old an answer may become."""
SHARE, SHARE_OF_ERRORS = 50, 4
"""For each second that a look takes, this many pass until the next one; of one that failed."""
PERIODS = {"life": "", "month": " in %Y-%m"}
"""A budget's period -> how it is told, in the form of `strftime`."""


@dataclass(frozen=True, slots=True)
class Use:
    """What an account has used of its budget.

    Attributes:
        spent: With the accounts below it, in the budget's period.
        at: Of when this is, in seconds since the epoch.
    """

    account: str
    budget: AccountBudget
    spent: Amounts
    at: float

    def limits(self) -> Iterator[tuple[str, str, float, float]]:
        """Yield the key of each limit in the stack file, its unit, the limit, and what was spent."""
        if self.budget.max_usd is not None:
            yield "max_usd", "USD", self.budget.max_usd, self.spent.usd
        if self.budget.max_hours is not None:
            yield "max_hours", "node-hours", self.budget.max_hours, self.spent.hours

    def failure(self, stack: str) -> Failure | None:
        """Return why the account's jobs may not start; `None` while something is left."""
        when = time.strftime(PERIODS[self.budget.period], time.gmtime(self.at))
        for key, unit, maximum, spent in self.limits():
            if spent >= maximum:
                message = f"{amount(spent)} of {amount(maximum)} {unit} are spent by {self.account}{when}"
                code = f"accounts.{self.account}.budget.{key} in Pulumi.{stack}.yaml"
                return Failure((), ErrorClass.BUDGET, code, message)
        return None

    def left(self, key: str) -> float:
        """Return what is left of a limit; without one infinitely much."""
        return next((most - spent for name, _, most, spent in self.limits() if name == key), math.inf)

    def summary(self) -> dict[str, Any]:
        """Return it in the form of the status contract."""
        left = {key: round(max(0.0, most - spent), 4) for key, _, most, spent in self.limits()}
        return {
            "account": self.account,
            "period": self.budget.period,
            "max_usd": self.budget.max_usd,
            "max_hours": self.budget.max_hours,
            "left_usd": left.get("max_usd"),
            "left_hours": left.get("max_hours"),
            "used": round(max(spent / most for _, _, most, spent in self.limits()), 4),
            "running_jobs": self.budget.running_jobs,
            "at": round(self.at, 3),
        }


@dataclass(frozen=True, slots=True)
class Look:
    """What the last look has found.

    Attributes:
        at: When, in seconds since the epoch.
        total: What the cluster had spent by then.
        used_up: Account -> why its jobs, and those of accounts below it, may not start.
        parents: Account -> the one above it.
    """

    at: float
    total: Account
    uses: tuple[Use, ...] = ()
    used_up: Mapping[str, Failure] = field(default_factory=dict)
    parents: Mapping[str, str] = field(default_factory=dict)

    def cause(self, account: str) -> Failure | None:
        """Return why the jobs of an account may not start; `None` if they may."""
        return next((f for name in way_up(account, self.parents) if (f := self.used_up.get(name))), None)

    def is_over(self, now: float, total: Account) -> bool:
        """Return whether it says too little by now.

        Args:
            now: Seconds since the epoch.
            total: What the cluster has spent.
        """
        if not 0 <= now - self.at < FRESH_SECONDS or spending.month_of(now) != spending.month_of(self.at):
            return True
        going = [use for use in self.uses if use.account not in self.used_up]
        usd, hours = total.usd - self.total.usd, total.node_hours - self.total.node_hours
        return any(use.left("max_usd") <= usd or use.left("max_hours") <= hours for use in going)


def way_up(account: str, parents: Mapping[str, str]) -> Iterator[str]:
    """Yield an account, the one above it, and so on."""
    seen: set[str] = set()
    while account and account not in seen:
        seen.add(account)
        yield account
        account = parents.get(account, "")


def uses(design: ClusterDesign, spent: Spent, parents: Mapping[str, str], at: float) -> Iterator[Use]:
    """Yield what each account with a budget has used of it. An account's use is also that of all above it."""
    sums = {
        period: _with_children(accounts, parents)
        for period, accounts in (("life", spent.life), ("month", spent.month))
    }
    for account in design.accounts:
        if account.budget.is_limited:
            of = sums[account.budget.period].get(account.name, Amounts())
            yield Use(account.name, account.budget, of, at)


def _with_children(spent: ByAccount, parents: Mapping[str, str]) -> dict[str, Amounts]:
    sums: dict[str, Amounts] = {}
    for account, amounts in spent.items():
        for name in way_up(account, parents):
            sums[name] = sums.get(name, Amounts()) + amounts
    return sums


class AccountBudgets:
    """The budgets of a running cluster's accounts.

    Args:
        settings: The design, and what is known of this machine.
        control: Slurm's commands.
        ledger: What the cluster has spent.
        ask: Makes bills; by default a process of its own does.

    Attributes:
        step: One pass, with its last error.
    """

    def __init__(self, settings: Settings, control: Slurm, ledger: Ledger, ask: Ask | None = None) -> None:
        folders = Folders(settings)
        self._design = settings.design
        self._control = control
        self._ledger = ledger
        self._ask = ask or _Asker(str(folders.code / "bin" / "slurm-stacks"))
        self._elastic = Path(str(folders.elastic))
        self._state = Path(str(folders.state))
        self._sacctmgr = Sacctmgr(lambda *words: control.run("sacctmgr", *words), settings.design.name)
        self._look: Look | None = None
        does = "counts what accounts spend, and stops those that have used their budgets"
        self.step = Step("account-budgets", does, self.once)

    def run(self) -> None:
        """Run forever."""
        while True:
            begun = time.monotonic()
            self.step.run()
            took = time.monotonic() - begun
            # What has failed, such as before slurmdbd answers, is tried again soon.
            share = SHARE if self.step.error is None else SHARE_OF_ERRORS
            time.sleep(max(self._design.slurm.reconcile_interval, share * took))

    def once(self) -> NotTried | None:
        """Look, if it is time.

        Raises:
            SlurmError: The accounting does not answer, or not to the bill. All stays as it is.
            OSError, ValueError: The record of stopped accounts cannot be read or written.
        """
        now = time.time()
        total = self._ledger.account(now)
        if self._look is not None and not self._look.is_over(now, total):
            return NOT_TRIED
        # slurmdbd tells slurmctld each change once. One that comes while slurmctld starts is lost to it
        # until its next start: seen with 22.05.
        if not self._control.ping():
            return NOT_TRIED
        known = stops.accounts(self._sacctmgr)
        parents = {name: account.parent for name, account in known.items()}
        limited = any(account.budget.is_limited for account in self._design.accounts)
        spent = spending.spent(self._elastic, self._ask, now) if limited else Spent()
        found = tuple(uses(self._design, spent, parents, now))
        causes = {use.account: failure for use in found if (failure := use.failure(self._design.stack))}
        look = Look(now, total, found, causes, parents)
        self._stop(causes, known)
        for use in found:
            if use.account in causes and use.budget.running_jobs == "cancel":
                self._end_jobs(use.account, look, causes[use.account])
        self._look = look
        return None

    def causes(self, jobs: Iterable[JobState]) -> Mapping[int, Failure] | None:
        """Return why waiting jobs may not start, by job id. `None` means that nothing is known yet."""
        look = self._look
        if look is None:
            return None
        waiting = [job.id for job in jobs if job.is_pending and job.reason == STOPPED]
        if not waiting or not look.used_up:
            return {}
        owners = self._control.owners()
        accounts = {number: owners[number]["account"] for number in waiting if number in owners}
        return {number: failure for number, name in accounts.items() if (failure := look.cause(name))}

    def summaries(self) -> list[dict[str, Any]]:
        """Return the budgets in the form of the status contract."""
        return [] if self._look is None else [use.summary() for use in self._look.uses]

    def _stop(self, causes: Mapping[str, Failure], known: Mapping[str, KnownAccount]) -> None:
        before = stops.read(self._state)
        record, changes = stops.changes(causes, known, before)
        if record != before:
            stops.write(self._state, record)
        for change in changes:
            cause = causes.get(change.account)
            what = f"starts no jobs: {cause.sentence()}" if cause else "starts jobs again"
            log(f"account {change.account} {what}")
            self._sacctmgr.write(*change.words(self._sacctmgr.here))
        if (left := {name: limit for name, limit in record.items() if name in causes}) != record:
            stops.write(self._state, left)

    def _end_jobs(self, account: str, look: Look, failure: Failure) -> None:
        """Cancel the running jobs of an account and of those below it; those that have not begun wait."""
        owners = self._control.owners()
        ours = [
            job
            for job in self._control.jobs().values()
            if job.id in owners and account in way_up(owners[job.id]["account"], look.parents)
        ]
        for job in ours:
            if job.is_starting:
                try:
                    self._control.requeue(job.spelling)
                except SlurmError as error:  # one that cannot be queued again is cancelled once it runs
                    log(f"job {job.id}: {error}")
        cancel(self._control, [job for job in ours if job.is_running], failure.sentence())


class _Asker:
    """Makes bills by the cluster's own command.

    Args:
        program: Its path.
    """

    def __init__(self, program: str) -> None:
        self._program = program

    def __call__(self, since: float | None, until: float) -> ByAccount:
        """Return a bill.

        Raises:
            SlurmError: It cannot be made; the text says why.
        """
        period = [f"--until={until!r}", *([] if since is None else [f"--since={since!r}"])]
        command = [self._program, "cost", "--by=account", *period]
        try:
            ended = subprocesses.run(command, os.environ, SACCT_SECONDS)
        except OSError as error:
            raise SlurmError(command, None, str(error)) from error
        if ended.status != 0:
            raise SlurmError(command, ended.status, ended.errors)
        return spending.of_bill(json.loads(ended.output))
