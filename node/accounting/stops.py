"""Accounts whose jobs do not start because their budgets are used up: GrpJobs=0 in Slurm, and a record of it.

With GrpJobs=0 Slurm starts no job of an account and of those below it, says so as each job's reason
(AssocGrpJobsLimit), lets jobs run that do, takes further jobs, and lets those of other accounts pass. The
record has the limits that the accounts had before. It is written before Slurm is told, and is in slurmctld's
folder: backups and a new head take it along, as they do the accounting, which has the limit itself.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from node.accounting.attributes import NO_LIMIT
from node.accounting.plan import Wanted
from node.accounting.sacctmgr import Sacctmgr
from node.design.sharing import STOPPED_ACCOUNTS
from node.system import files, foreign

FILE = STOPPED_ACCOUNTS
LIMIT = "grpjobs"
STOPPED = "0"

Stops = Mapping[str, str]
"""Account -> its own GrpJobs, which is empty if it has none."""


@dataclass(frozen=True, slots=True)
class KnownAccount:
    """An account as slurmdbd has it.

    Attributes:
        parent: The account above it; empty for root.
        limit: GrpJobs; empty if there is none.
    """

    parent: str
    limit: str


def accounts(sacctmgr: Sacctmgr) -> dict[str, KnownAccount]:
    """Return the cluster's accounts by name."""
    columns = ("account", "parentname", "user", LIMIT)
    # Without WOPLimits sacctmgr prints the limits of the parents as an account's own.
    rows = sacctmgr.read("association", columns, sacctmgr.here, "wopl")
    return {row[0]: KnownAccount(row[1], row[3]) for row in rows if len(row) == len(columns) and not row[2]}


def read(state: Path) -> dict[str, str]:
    """Return the record; empty if there is none.

    Args:
        state: Slurmctld's folder.

    Raises:
        OSError, ValueError: It cannot be read.
    """
    try:
        content = foreign.record(state / FILE)
    except FileNotFoundError:
        return {}
    if not isinstance(content, dict) or not all(isinstance(value, str) for value in content.values()):
        raise ValueError(f"{state / FILE} is no record of stopped accounts")
    return content


def write(state: Path, stops: Stops, user: str | None = None) -> None:
    """Write the record. An empty one is no file.

    Args:
        user: The owner of slurmctld's files, if the writer is another one.

    Raises:
        OSError: It cannot be written.
    """
    if not stops:
        (state / FILE).unlink(missing_ok=True)
        return
    content = json.dumps(dict(stops), sort_keys=True).encode()
    files.write(state / FILE, content, 0o600, user, durable=True)


def stopped(wanted: Wanted, stops: Stops, limits: Mapping[str, str]) -> tuple[Wanted, dict[str, str]]:
    """Return what a design wants while accounts are stopped, and the record with the design's limits.

    So an `up` starts no jobs of an account that has used its budget, and a limit that it changes holds once
    the account goes on. It leaves alone what Slurm has, for the daemon may let an account go just now.

    Args:
        limits: Account -> its present GrpJobs.
    """
    ours = {name: wanted.accounts[name] for name in stops if name in wanted.accounts and name in limits}
    kept = {name: {**values, LIMIT: limits[name]} for name, values in ours.items()}
    after = {**stops, **{name: values[LIMIT] for name, values in ours.items()}}
    return replace(wanted, accounts={**wanted.accounts, **kept}), after


@dataclass(frozen=True, slots=True)
class Change:
    """A limit that Slurm is told."""

    account: str
    limit: str

    def words(self, here: str) -> tuple[str, ...]:
        """Return sacctmgr's words.

        Args:
            here: The condition for this cluster.
        """
        told = f"{LIMIT}={self.limit or NO_LIMIT}"
        return ("modify", "account", "where", f"name={self.account}", here, "set", told)


def changes(
    used_up: Collection[str], known: Mapping[str, KnownAccount], stops: Stops
) -> tuple[dict[str, str], list[Change]]:
    """Return the record that is to be written first, and what Slurm is told then.

    A limit that somebody sets by hand while the account is stopped counts once it goes on. The record keeps
    what goes on until Slurm has been told so.

    Args:
        used_up: The accounts that have used their budgets.
        known: What slurmdbd has.
        stops: The record.
    """
    record = {name: limit for name, limit in stops.items() if name in known}
    told = []
    for name in sorted({*used_up, *record} & known.keys()):
        limit = known[name].limit
        if name in used_up:
            if limit != STOPPED or name not in record:
                record[name] = limit
            if limit != STOPPED:
                told.append(Change(name, STOPPED))
        elif limit == STOPPED and record[name] != STOPPED:
            told.append(Change(name, record[name]))
    return record, told
