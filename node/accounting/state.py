"""What slurmdbd has of a cluster's accounts, users and QOS.

Rows and columns are told apart by lines and bars. slurmdbd's administrators alone choose the names and the
descriptions, and a row with another number of columns refuses the answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from node.accounting import attributes
from node.accounting.attributes import ASSOCIATION, QOS, Values
from node.accounting.sacctmgr import Sacctmgr


class AnswerError(Exception):
    """sacctmgr's answer cannot be used."""


@dataclass(frozen=True, slots=True)
class KnownUser:
    """A user whom slurmdbd knows.

    Attributes:
        account: The account of jobs that name none; empty if the user has none on this cluster.
        admin_level: none | operator | administrator
    """

    account: str
    admin_level: str = "none"


@dataclass(frozen=True, slots=True)
class State:
    """What slurmdbd has for a cluster. Attributes are spelled as in `node.accounting.attributes`.

    Attributes:
        accounts: Account -> attributes, with `description` and `parent`.
        associations: Account and user -> attributes.
        users: User -> default account and level.
        qos: QOS -> attributes.
        tres: The TRES that slurmdbd knows, and so can limit.
        partitioned: Account, user and partition of associations for one partition, which the design has not.
    """

    accounts: dict[str, Values] = field(default_factory=dict)
    associations: dict[tuple[str, str], Values] = field(default_factory=dict)
    users: dict[str, KnownUser] = field(default_factory=dict)
    qos: dict[str, Values] = field(default_factory=dict)
    tres: frozenset[str] = frozenset()
    partitioned: frozenset[tuple[str, str, str]] = frozenset()


def read(sacctmgr: Sacctmgr) -> State:
    """Return what slurmdbd has.

    Raises:
        AnswerError: An answer has another form.
    """
    descriptions = {row[0]: row[1] for row in _rows(sacctmgr, "account", ("account", "description"))}
    columns = ("account", "parentname", "user", "partition", *ASSOCIATION)
    state = State(
        users={
            name: KnownUser(account, level.lower() or "none")
            for name, account, level in _rows(
                sacctmgr, "user", ("user", "defaultaccount", "adminlevel"), sacctmgr.here
            )
        },
        qos={name: attributes.read(QOS, texts) for name, *texts in _rows(sacctmgr, "qos", ("name", *QOS))},
        tres=frozenset(
            f"{kind}/{name}" if name else kind for kind, name in _rows(sacctmgr, "tres", ("type", "name"))
        ),
    )
    partitioned = set()
    # Without WOPLimits sacctmgr prints the limits of the parents as an association's own.
    for row in _rows(sacctmgr, "association", columns, sacctmgr.here, "wopl"):
        account, parent, user, partition, *texts = row
        values = attributes.read(ASSOCIATION, texts)
        if partition:
            partitioned.add((account, user, partition))
        elif user:
            state.associations[account, user] = values
        else:
            words = attributes.words(descriptions.get(account, ""))
            state.accounts[account] = {"description": words, "parent": parent, **values}
    return State(
        state.accounts, state.associations, state.users, state.qos, state.tres, frozenset(partitioned)
    )


def _rows(sacctmgr: Sacctmgr, what: str, columns: Sequence[str], *where: str) -> Iterator[tuple[str, ...]]:
    for row in sacctmgr.read(what, columns, *where):
        if len(row) != len(columns):
            raise AnswerError(
                f"sacctmgr list {what}: {len(columns)} columns are expected: {'|'.join(row)[:200]}"
            )
        yield row
