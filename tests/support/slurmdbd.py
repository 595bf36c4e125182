"""A slurmdbd that has accounts, users and QOS, and obeys sacctmgr's words as the real one does.

`tests/cluster/test_sharing_cluster.py` holds the plan to the real one. What this one refuses, that one has
refused: an unknown name, a QOS that is not there, a circle, an account of users.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from node.accounting.attributes import ACCOUNT, ASSOCIATION, QOS, Attribute, tres_names
from node.accounting.plan import Words
from node.accounting.state import KnownUser, State

BASE = frozenset({"cpu", "mem", "node", "billing", "energy"})


class RefusedError(Exception):
    """sacctmgr ends with status 1."""


def initial(table: dict[str, Attribute] | Any) -> dict[str, str]:
    return {key: attribute.initial for key, attribute in table.items()}


class Slurmdbd:
    """The database.

    Args:
        watch: Is called after each change.
    """

    def __init__(self, tres: frozenset[str] = BASE, watch: Callable[[State], None] = lambda _: None) -> None:
        root = {**initial(ACCOUNT), "parent": "", "qos": "normal"}
        self.state = State(
            {"root": root},
            {("root", "root"): initial(ASSOCIATION)},
            {"root": KnownUser("root", "administrator")},
            {"normal": {**initial(QOS), "description": "normal qos default"}},
            tres,
        )
        self._watch = watch

    def obey(self, words: Words) -> None:
        verb, what, *rest = words
        getattr(self, f"_{verb}_{what}")(*rest)
        self._watch(self.state)

    def _add_qos(self, names: str) -> None:
        for name in names.split(","):
            self._need(name not in self.state.qos)
            self.state.qos[name] = {**initial(QOS), "description": name}

    def _add_account(self, name: str, _here: str, *values: str) -> None:
        self._need(name not in self.state.accounts)
        self.state.accounts[name] = self._set(
            {**initial(ACCOUNT), "description": "account name"}, values, ACCOUNT
        )

    def _add_user(self, names: str, _here: str, account: str, *values: str) -> None:
        account = account.removeprefix("account=")
        self._need(account in self.state.accounts)
        for name in names.split(","):
            self._need((account, name) not in self.state.associations)
            self.state.associations[account, name] = self._set(initial(ASSOCIATION), values, ASSOCIATION)
            self.state.users.setdefault(name, KnownUser(account))

    def _modify_qos(self, _where: str, names: str, _set: str, *values: str) -> None:
        for name in self._names(names):
            self._need(name in self.state.qos)
            self.state.qos[name] = self._set(self.state.qos[name], values, QOS)
            self._need(not self._preempts(name, name, set()))

    def _preempts(self, one: str, other: str, seen: set[str]) -> bool:
        below = [name for name in self.state.qos[one]["preempt"].split(",") if name and name not in seen]
        return other in below or any(self._preempts(name, other, seen | set(below)) for name in below)

    def _modify_account(self, _where: str, names: str, *rest: str) -> None:
        values = rest[rest.index("set") + 1 :]
        for name in self._names(names):
            self._need(name in self.state.accounts)
            self.state.accounts[name] = self._set(self.state.accounts[name], values, ACCOUNT)
            above, parent = {name}, self.state.accounts[name]["parent"]
            while parent:
                self._need(parent in self.state.accounts and parent not in above)
                above.add(parent)
                parent = self.state.accounts[parent]["parent"]

    def _modify_user(self, _where: str, names: str, *rest: str) -> None:
        where, values = rest[: rest.index("set")], rest[rest.index("set") + 1 :]
        account = next((word.partition("=")[2] for word in where if word.startswith("account=")), "")
        for name in self._names(names):
            self._need(name in self.state.users)
            known = self.state.users[name]
            for word in values:
                key, _, value = word.partition("=")
                if key == "defaultaccount":
                    self._need((value, name) in self.state.associations)
                    known = KnownUser(value, known.admin_level)
                elif key == "adminlevel":
                    known = KnownUser(known.account, value)
                else:
                    pair = account, name
                    self.state.associations[pair] = self._set(
                        self.state.associations[pair], [word], ASSOCIATION
                    )
            self.state.users[name] = known

    def _delete_user(self, _where: str, names: str, account: str, *_rest: str) -> None:
        account = account.removeprefix("account=")
        for name in self._names(names):
            others = [a for a, user in self.state.associations if user == name and a != account]
            # Releases from 23.02 on refuse it.
            self._need(not (others and self.state.users[name].account == account))
            del self.state.associations[account, name]
            if not others:
                del self.state.users[name]

    def _delete_account(self, _where: str, names: str, *_rest: str) -> None:
        for name in self._names(names):
            self._need(all(account != name for account, _ in self.state.associations))
            self._need(all(values["parent"] != name for values in self.state.accounts.values()))
            del self.state.accounts[name]

    def _delete_qos(self, _where: str, names: str) -> None:
        for name in self._names(names):
            del self.state.qos[name]

    def _set(self, before: Any, words: Any, table: Any) -> dict[str, str]:
        values = dict(before)
        for word in words:
            key, _, value = word.partition("=")
            attribute = table[key]
            if attribute.is_tres:
                self._need(set(tres_names(value)) <= self.state.tres)
                items = dict(item.split("=") for item in values[key].split(",") if item)
                items |= dict(item.split("=") for item in value.split(",") if item)
                values[key] = ",".join(f"{k}={v}" for k, v in sorted(items.items()) if v != "-1")
            else:
                values[key] = attribute.initial if value == attribute.none else attribute.read(value)
            if key in ("qos", "preempt", "defaultqos"):
                self._need({name for name in values[key].split(",") if name} <= self.state.qos.keys())
        if "defaultqos" in values and values["defaultqos"] and values["qos"]:
            self._need(values["defaultqos"] in values["qos"].split(","))
        return values

    @staticmethod
    def _names(words: str) -> list[str]:
        return words.removeprefix("name=").split(",")

    @staticmethod
    def _need(holds: bool) -> None:
        if not holds:
            raise RefusedError
