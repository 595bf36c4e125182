"""The differences of two designs in accounts, users and QOS, in a few lines however many there are. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from cli.changes.jobs import Job
from node.accounting.plan import some
from node.design.model import ClusterDesign

KEYS = {"accounts": "accounts", "users": "users", "qos": "QOS"}
"""The fields of the design -> what they are called."""
FIELDS = frozenset(f"cluster.{key}" for key in KEYS)
MOST_LINES = 5
"""How many changed accounts, users or QOS have a line of their own."""


@dataclass(frozen=True, slots=True)
class Owner:
    """To whom jobs are booked that something takes the right to run from; an empty field means any."""

    account: str = ""
    user: str = ""
    qos: str = ""

    def has(self, job: Job) -> bool:
        return self.account in ("", job.account) and self.user in ("", job.user) and self.qos in ("", job.qos)


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference.

    Attributes:
        key: accounts | users | qos
        text: The difference as a line.
        was: The names that there were.
        will: The names that there will be.
        removed: Whose jobs must have ended before; empty if nothing goes.
    """

    key: str
    text: str
    was: str
    will: str
    removed: frozenset[Owner] = frozenset()


def differences(old: ClusterDesign, new: ClusterDesign) -> Iterator[Difference]:
    """Yield what is new, what differs, and what goes."""
    for key, word in KEYS.items():
        before = {one.name: one for one in getattr(old, key)}
        after = {one.name: one for one in getattr(new, key)}
        if added := [name for name in after if name not in before]:
            yield Difference(key, f"{word} added: {some(added)}", "none", some(added))
        yield from _changed(key, word, before, after)
        if gone := [name for name in before if name not in after]:
            owners = frozenset(owner for name in gone for owner in _owners(key, name, before, old))
            yield Difference(key, f"{word} removed: {some(gone)}", some(gone), "none", owners)
    if lost := _lost_accounts(old, new):
        text = ", ".join(f"{one.user} from {one.account}" for one in lost[:MOST_LINES])
        more = f" and {len(lost) - MOST_LINES} more" if len(lost) > MOST_LINES else ""
        yield Difference("users", f"users removed: {text}{more}", text, "none", frozenset(lost))


def _changed(
    key: str, word: str, before: Mapping[str, Any], after: Mapping[str, Any]
) -> Iterator[Difference]:
    changed: dict[str, list[str]] = {}
    for name in after:
        if name in before and before[name] != after[name]:
            changed.setdefault("; ".join(_values("", before[name], after[name])), []).append(name)
    for text, names in list(changed.items())[:MOST_LINES]:
        yield Difference(key, f"{word} changed: {some(names)}: {text}", some(names), some(names))
    if rest := [name for names in list(changed.values())[MOST_LINES:] for name in names]:
        yield Difference(key, f"{word} changed: {some(rest)}", some(rest), some(rest))


def _values(prefix: str, was: Any, will: Any) -> Iterator[str]:
    """Yield the values that differ, with their keys in the stack file."""
    for field in fields(will):
        path = f"{prefix}{field.name}"
        old, new = getattr(was, field.name), getattr(will, field.name)
        if is_dataclass(new) and is_dataclass(old):
            yield from _values(f"{path}.", old, new)
        elif old != new:
            yield f"{path} {_text(old)} → {_text(new)}"


def _text(value: Any) -> str:
    if value in (None, (), {}, ""):
        return "none"
    if isinstance(value, dict):
        return ", ".join(f"{key}={count}" for key, count in value.items())
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _owners(key: str, name: str, before: Mapping[str, Any], old: ClusterDesign) -> Iterator[Owner]:
    if key == "accounts":
        yield Owner(account=name)
    elif key == "qos":
        yield Owner(qos=name)
    else:
        for account in before[name].all_accounts(old.slurm.default_account):
            # Everybody may stay in the default account.
            if account != old.slurm.default_account:
                yield Owner(account, name)


def _lost_accounts(old: ClusterDesign, new: ClusterDesign) -> list[Owner]:
    """Return the accounts that users lose who stay, unless the account itself goes."""
    after = {user.name: user.all_accounts(new.slurm.default_account) for user in new.users}
    left = {account.name for account in new.accounts} | {new.slurm.default_account}
    return [
        Owner(account, user.name)
        for user in old.users
        if user.name in after
        for account in user.all_accounts(old.slurm.default_account)
        if account in left and account not in after[user.name]
    ]
