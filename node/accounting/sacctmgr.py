"""All reading and writing of Slurm's accounts by sacctmgr.

A `Sacctmgr` is for one cluster, and is the only one that starts the program. Reading returns tuples of what
slurmdbd has at this moment. Writing is for the caller to do by difference: sacctmgr fails where nothing is
new. Names in one call are many, because each call takes tens of milliseconds and a transaction of slurmdbd.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

Run = Callable[..., str]
"""Runs sacctmgr with these arguments, and returns what it prints. It raises an error if sacctmgr fails."""
BATCH = 500
"""Names in one call."""
SEPARATORS = frozenset(",=|'\"")
"""What sacctmgr reads as its own in a name, or writes between names."""


class Association(NamedTuple):
    """An account's own association, or a user's in an account.

    Attributes:
        user: Empty for the account's own.
    """

    account: str
    user: str


def of_cluster(name: str) -> str:
    """Return the condition of what belongs to a cluster. Slurm keeps its name in small letters."""
    return f"cluster={name.lower()}"


def can_name(name: str) -> bool:
    """Return whether sacctmgr can be told the name of a user."""
    return name.isprintable() and not SEPARATORS & set(name) and not name.startswith("-")


class Sacctmgr:
    """sacctmgr for one cluster.

    Args:
        run: Such as `lambda *words: context.slurm("sacctmgr", *words)`.
        cluster: ClusterName in slurm.conf.
    """

    def __init__(self, run: Run, cluster: str) -> None:
        self._run = run
        self.here = of_cluster(cluster)

    def read(self, what: str, columns: Sequence[str], *where: str) -> list[tuple[str, ...]]:
        """Return the rows of `sacctmgr list`, each with a text for each column.

        Args:
            what: account | association | qos | user, …
            where: Conditions, such as `cluster=name`.
        """
        text = self._run("--noheader", "--parsable2", "list", what, f"format={','.join(columns)}", *where)
        return [tuple(line.split("|")) for line in text.splitlines() if line]

    def write(self, *words: str) -> None:
        """Add, modify or delete something, without a question."""
        self._run("--immediate", *words)

    def associations(self) -> list[Association]:
        """Return the cluster's associations. One that is for a partition appears as if for all."""
        rows = self.read("association", ("account", "user"), self.here)
        return [Association(account, user) for account, user in rows]

    def add_account(self, name: str, description: str) -> None:
        """Add an account below root."""
        self.write("add", "account", name, self.here, f"description={description}", f"organization={name}")

    def add_users(self, account: str, users: Sequence[str]) -> None:
        """Add users to an account, which is the default account of those who have had none."""
        for start in range(0, len(users), BATCH):
            names = ",".join(users[start : start + BATCH])
            self.write("add", "user", names, self.here, f"account={account}")
