"""Which changes by sacctmgr make slurmdbd's accounts, users and QOS those of the design. Pure.

What is there already is not written again, so the plan of what has been carried out is empty. What people
have added with sacctmgr stays, unless the design is exclusive. What an earlier design has added goes with it
(`Record`), but never while it has jobs, and no account that still has users of others.

The order lets nobody be locked out at any moment: what is new comes first, then what changes, and what goes
is last. A QOS leaves the list of an account only when no user has it as the default any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from node.accounting import attributes
from node.accounting.attributes import ACCOUNT, ASSOCIATION, QOS, Attribute, Values
from node.accounting.sacctmgr import BATCH, of_cluster
from node.accounting.state import KnownUser, State
from node.design.model import ClusterDesign
from node.design.sharing import NORMAL, ROOT, Account, Qos

NORMAL_DESCRIPTION = "Normal QOS default"
DEFAULT_DESCRIPTION = "users without an account of their own"

Words = tuple[str, ...]
"""sacctmgr's words for one change."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the design says, in sacctmgr's spelling (`node.accounting.attributes`).

    Attributes:
        associations: Account and user -> attributes; of each user the default account is first.
        users: User -> default account and level.
        default_account: The account of those whom the design does not name.
        exclusive: Whether what people have added goes.
        kept_users: Slurm's own users, of whom only what a design has given them goes.
    """

    accounts: Mapping[str, Values]
    associations: Mapping[tuple[str, str], Values]
    users: Mapping[str, KnownUser]
    qos: Mapping[str, Values]
    default_account: str
    exclusive: bool = False
    kept_users: frozenset[str] = frozenset({ROOT})


@dataclass(frozen=True, slots=True)
class Record:
    """What designs have added to slurmdbd.

    Attributes:
        associations: Account and user, joined by a space, which neither has.
        default_accounts: The present default account, and former ones.
    """

    accounts: tuple[str, ...] = ()
    associations: tuple[str, ...] = ()
    qos: tuple[str, ...] = ()
    default_accounts: tuple[str, ...] = ()

    def with_design(self, wanted: Wanted) -> Record:
        """Return the record once the design has been added, too."""
        pairs = (f"{account} {user}" for account, user in wanted.associations)
        return Record(
            _joined(self.accounts, wanted.accounts),
            _joined(self.associations, pairs),
            _joined(self.qos, wanted.qos),
            _joined(self.default_accounts, (wanted.default_account,)),
        )

    def without(self, gone: Sequence[Removal]) -> Record:
        """Return the record without what is there no more."""
        names = {(one.kind, one.name) for one in gone}
        return Record(
            tuple(name for name in self.accounts if ("account", name) not in names),
            tuple(pair for pair in self.associations if ("user", pair) not in names),
            tuple(name for name in self.qos if ("qos", name) not in names),
            tuple(name for name in self.default_accounts if ("account", name) not in names),
        )


def _joined(one: Iterable[str], other: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted({*one, *other}))


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """A job that has not ended, with what would be taken from it."""

    id: str
    user: str
    account: str
    qos: str


@dataclass(frozen=True, slots=True)
class Removal:
    """Something that goes.

    Attributes:
        kind: account | user | qos
        name: Its name; of a user's association the account and the user.
    """

    kind: str
    name: str
    words: Words

    def concerns(self, job: QueuedJob) -> bool:
        if self.kind == "user":
            return f"{job.account} {job.user}" == self.name
        return self.name == (job.account if self.kind == "account" else job.qos)

    def text(self) -> str:
        if self.kind == "user":
            account, _, user = self.name.partition(" ")
            return f"user {user} in account {account}"
        return f"{'QOS' if self.kind == 'qos' else self.kind} {self.name}"


@dataclass(frozen=True, slots=True)
class Plan:
    """The changes.

    Attributes:
        changes: Sacctmgr's words, in their order.
        said: A line for people about each of the kinds of changes.
        removals: What goes, in its order, after all changes.
        staying: A line for each thing that goes when its jobs are over, or its users are gone.
        by_hand: What people have added, and stays.
        later: The TRES with limits that slurmdbd does not know yet: slurmctld tells it when it starts.
    """

    changes: tuple[Words, ...] = ()
    said: tuple[str, ...] = ()
    removals: tuple[Removal, ...] = ()
    staying: tuple[str, ...] = ()
    by_hand: tuple[str, ...] = ()
    later: tuple[str, ...] = ()


def wanted(design: ClusterDesign, owner: str) -> Wanted:
    """Return what a design says.

    Args:
        owner: SlurmUser, who is always left alone.
    """
    default = design.slurm.default_account
    accounts = {account.name: attributes.of_account(account) for account in design.accounts}
    accounts.setdefault(default, attributes.of_account(Account(default, DEFAULT_DESCRIPTION)))
    associations, users = {}, {}
    for user in design.users:
        own = dict.fromkeys(user.all_accounts(default))
        users[user.name] = KnownUser(next(iter(own)), user.admin_level)
        for account in own:
            associations[account, user.name] = attributes.of_user(user)
    qos = {level.name: attributes.of_qos(level) for level in design.qos}
    exclusive = design.slurm.exclusive_accounts
    return Wanted(accounts, associations, users, qos, default, exclusive, frozenset({ROOT, owner}))


def plan(
    wanted: Wanted, state: State, record: Record, jobs: Sequence[QueuedJob] | None, cluster: str
) -> Plan:
    """Return the changes that are left to do.

    Args:
        jobs: The jobs that have not ended; `None` if they are not known, and then nothing goes.
        cluster: The cluster's name, to which associations belong.
    """
    if NORMAL in record.qos and NORMAL not in wanted.qos:
        # slurmdbd's own level cannot go.
        own = attributes.of_qos(Qos(NORMAL, NORMAL_DESCRIPTION))
        wanted = replace(wanted, qos={**wanted.qos, NORMAL: own})
    later = _unknown_tres(wanted, state.tres)
    wanted = _without_tres(wanted, later)
    here = of_cluster(cluster)
    changes: list[Words] = []
    said: list[str] = []
    for words, line in (
        _qos(wanted, state),
        _accounts(wanted, state, here),
        _users(wanted, state, here, record),
        _narrowed(wanted, state, here),
    ):
        changes += words
        said += line
    going = list(_going(wanted, state, record, here))
    removals, staying = _possible(going, jobs, wanted, state)
    return Plan(
        tuple(changes), tuple(said), removals, staying, tuple(_by_hand(wanted, state, record)), tuple(later)
    )


# TRES


def _unknown_tres(wanted: Wanted, known: frozenset[str]) -> list[str]:
    every = (*wanted.accounts.values(), *wanted.associations.values(), *wanted.qos.values())
    names = {
        name
        for values in every
        for key, attribute in _TRES.items()
        if attribute.is_tres
        for name in attributes.tres_names(values.get(key, ""))
    }
    return sorted(names - known)


def _without_tres(wanted: Wanted, unknown: Iterable[str]) -> Wanted:
    gone = frozenset(unknown)
    if not gone:
        return wanted

    def known(values: Values) -> Values:
        return {
            key: ",".join(
                item for item in value.split(",") if item.partition("=")[0] not in gone
            ) if key in _TRES and _TRES[key].is_tres else value
            for key, value in values.items()
        }  # fmt: skip

    return replace(
        wanted,
        accounts={name: known(values) for name, values in wanted.accounts.items()},
        associations={pair: known(values) for pair, values in wanted.associations.items()},
        qos={name: known(values) for name, values in wanted.qos.items()},
    )


_TRES: Mapping[str, Attribute] = {**ASSOCIATION, **QOS}

# What is new, and what changes

Step = tuple[list[Words], list[str]]
"""Changes, and lines about them."""


def _words(table: Mapping[str, Attribute], will: Values, was: Values) -> Words:
    """Return sacctmgr's words that make the values; none if they are there."""
    return tuple(
        table[key].words(key, value, was.get(key, table[key].initial))
        for key, value in will.items()
        if value != was.get(key, table[key].initial)
    )


def _initial(table: Mapping[str, Attribute]) -> dict[str, str]:
    return {key: attribute.initial for key, attribute in table.items()}


def _alike(told: Mapping[str, Words]) -> Iterator[tuple[str, Words]]:
    """Yield names, joined by commas, that are told the same."""
    groups: dict[Words, list[str]] = {}
    for name, words in told.items():
        if words:
            groups.setdefault(words, []).append(name)
    for words, names in groups.items():
        for start in range(0, len(names), BATCH):
            yield ",".join(names[start : start + BATCH]), words


def _modify(what: str, told: Mapping[str, Words], *where: str) -> list[Words]:
    return [
        ("modify", what, "where", f"name={names}", *where, "set", *words) for names, words in _alike(told)
    ]


def _lines(what: str, new: Sequence[str], changed: Mapping[str, Words]) -> list[str]:
    told = {name: words for name, words in changed.items() if words and name not in new}
    lines = [f"{what} added: {some(new)}"] if new else []
    for names, words in list(_alike(told))[:MOST_LINES]:
        lines.append(f"{what} changed: {some(names.split(','))}: {' '.join(words)}")
    return lines


MOST_LINES = 5
"""How many different changes of a kind are told."""
MOST_NAMES = 8


def some(names: Sequence[str]) -> str:
    """Return names for people: the first few, and how many more."""
    more = len(names) - MOST_NAMES
    return ", ".join(names[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def _qos(wanted: Wanted, state: State) -> Step:
    new = [name for name in wanted.qos if name not in state.qos]
    # sacctmgr names the level as its description.
    before = {
        name: state.qos.get(name, {**_initial(QOS), "description": name.lower()}) for name in wanted.qos
    }
    told = {name: _words(QOS, values, before[name]) for name, values in wanted.qos.items()}
    # Slurm refuses circles of preemption at any moment, so what is not preempted any more comes first.
    fewer = {
        name: (f"preempt={','.join(left)}",)
        for name, values in wanted.qos.items()
        if (left := _both(values["preempt"], before[name]["preempt"])) != _list(before[name]["preempt"])
    }
    changes: list[Words] = [("add", "qos", ",".join(new))] if new else []
    return [*changes, *_modify("qos", fewer), *_modify("qos", told)], _lines("QOS", new, told)


def _list(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def _both(one: str, other: str) -> list[str]:
    return [name for name in _list(other) if name in _list(one)]


def _widened(values: Values, was: Values) -> Values:
    """Return an account's values with the QOS that it has and loses: its users may still have them."""
    if not (lost := set(_list(was["qos"])) - set(_list(values["qos"]))) or not values["qos"]:
        return values
    return {**values, "qos": ",".join(sorted({*_list(values["qos"]), *lost}))}


def _accounts(wanted: Wanted, state: State, here: str) -> Step:
    new = [name for name in _from_the_top(wanted.accounts) if name not in state.accounts]
    told: dict[str, Words] = {}
    changes: list[Words] = []
    for name in new:
        values = wanted.accounts[name]
        words = _words(ACCOUNT, values, {**_initial(ACCOUNT), "parent": "", "description": ""})
        changes.append(("add", "account", name, here, *words))
    for name in _from_the_top(wanted.accounts):
        if (was := state.accounts.get(name)) is not None:
            told[name] = _words(ACCOUNT, _widened(wanted.accounts[name], was), was)
    described = {n: tuple(w for w in words if w.startswith("description=")) for n, words in told.items()}
    moved = {n: tuple(w for w in words if w.startswith("parent=")) for n, words in told.items()}
    rest = {n: tuple(w for w in told[n] if w not in (*described[n], *moved[n])) for n in told}
    changes += _modify("account", described)
    # One by one, from the top: an account cannot move below its own child.
    changes += [c for name, words in moved.items() for c in _modify("account", {name: words}, here)]
    changes += _modify("account", rest, here)
    return changes, _lines("accounts", new, told)


def _from_the_top(accounts: Mapping[str, Values]) -> list[str]:
    """Return accounts so that each comes after its parent."""
    order: dict[str, None] = {}

    def visit(name: str, below: tuple[str, ...]) -> None:
        if name in accounts and name not in order and name not in below:
            visit(accounts[name]["parent"], (*below, name))
            order[name] = None

    for name in accounts:
        visit(name, ())
    return list(order)


def _users(wanted: Wanted, state: State, here: str, record: Record) -> Step:
    associations, defaults = _with_moved(wanted, state, record)
    new = {pair: values for pair, values in associations.items() if pair not in state.associations}
    changes = _added(new, defaults, here)
    told: dict[str, dict[str, Words]] = {}
    for (account, user), values in associations.items():
        if (was := state.associations.get((account, user))) is not None:
            told.setdefault(account, {})[user] = _words(ASSOCIATION, values, was)
    for account, by_user in told.items():
        changes += _modify("user", by_user, f"account={account}", here)
    moved = {
        user: (f"defaultaccount={account}",)
        for user, account in defaults.items()
        if user in state.users and state.users[user].account != account
    }
    levels = {
        user: (f"adminlevel={known.admin_level}",)
        for user, known in wanted.users.items()
        if known.admin_level != state.users.get(user, KnownUser("")).admin_level and user != ROOT
    }
    changes += [*_modify("user", moved, here), *_modify("user", levels)]
    added = list(dict.fromkeys(user for _, user in new if user not in state.users))
    joined = [f"{user} in {account}" for account, user in new if user in state.users]
    lines = _lines("users", [*added, *joined], {})
    for account, by_user in told.items():
        lines += _lines(f"users in {account}", [], by_user)
    return changes, [
        *lines,
        *_lines("users", [], moved),
        *_lines("users", [], {u: w for u, w in levels.items() if u not in added}),
    ]


def _added(new: Mapping[tuple[str, str], Values], defaults: Mapping[str, str], here: str) -> list[Words]:
    """Return the changes that add users to accounts, as many in one as are alike.

    The account to which a new user is added first becomes the default account.
    """
    groups: dict[tuple[bool, str, Words], list[str]] = {}
    for (account, user), values in new.items():
        words = _words(ASSOCIATION, values, _initial(ASSOCIATION))
        groups.setdefault((defaults.get(user) != account, account, words), []).append(user)
    return [
        ("add", "user", ",".join(users[start : start + BATCH]), here, f"account={account}", *words)
        for (_, account, words), users in sorted(groups.items(), key=lambda group: group[0][0])
        for start in range(0, len(users), BATCH)
    ]


def _with_moved(
    wanted: Wanted, state: State, record: Record
) -> tuple[dict[tuple[str, str], Values], dict[str, str]]:
    """Return the associations and default accounts, with those of users whom the design does not name.

    They were added to the default account, and follow when it is another one.
    """
    associations = dict(wanted.associations)
    defaults = {user: known.account for user, known in wanted.users.items()}
    former = set(record.default_accounts) - {wanted.default_account}
    for user, known in state.users.items():
        if user not in wanted.users and known.account in former and known.account not in wanted.accounts:
            associations[wanted.default_account, user] = _initial(ASSOCIATION)
            defaults[user] = wanted.default_account
    return associations, defaults


def _narrowed(wanted: Wanted, state: State, here: str) -> Step:
    """Return the changes that take QOS from accounts, whose users have others by now."""
    told = {
        name: (f"qos={wanted.accounts[name]['qos']}",)
        for name, was in state.accounts.items()
        if name in wanted.accounts
        and _widened(wanted.accounts[name], was)["qos"] != wanted.accounts[name]["qos"]
    }
    return _modify("account", told, here), _lines("accounts", [], told)


# What goes, and what stays


def _going(wanted: Wanted, state: State, record: Record, here: str) -> Iterator[Removal]:
    """Yield what goes, the users of an account before it, and accounts before their parents."""
    for account, user in state.associations:
        if (account, user) not in wanted.associations and _goes(account, user, wanted, record):
            words = ("delete", "user", "where", f"name={user}", f"account={account}", here)
            yield Removal("user", f"{account} {user}", words)
    for account, user, partition in sorted(state.partitioned):
        if wanted.exclusive and user not in wanted.kept_users:
            words = ("delete", "user", "where", f"name={user}", f"account={account}", here)
            yield Removal("user", f"{account} {user}", (*words, f"partition={partition}"))
    for name in reversed(_from_the_top(state.accounts)):
        if name not in wanted.accounts and name != ROOT and (wanted.exclusive or name in record.accounts):
            yield Removal("account", name, ("delete", "account", "where", f"name={name}", here))
    for name in state.qos:
        if name not in wanted.qos and name != NORMAL and (wanted.exclusive or name in record.qos):
            yield Removal("qos", name, ("delete", "qos", "where", f"name={name}"))


def _goes(account: str, user: str, wanted: Wanted, record: Record) -> bool:
    named, recorded = user in wanted.users, f"{account} {user}" in record.associations
    if user in wanted.kept_users:
        return named and recorded
    if account == wanted.default_account and not named:
        return False
    if account in record.default_accounts and (named or account not in wanted.accounts):
        return True
    return wanted.exclusive or recorded


def _possible(
    going: Sequence[Removal], jobs: Sequence[QueuedJob] | None, wanted: Wanted, state: State
) -> tuple[tuple[Removal, ...], tuple[str, ...]]:
    """Return what can go now, and lines about what stays for the time being."""
    if jobs is None:
        return (), ()
    removals: list[Removal] = []
    staying: list[str] = []
    gone: set[str] = set()
    for one in going:
        if mine := [job.id for job in jobs if one.concerns(job)]:
            staying.append(f"{one.text()} stays while it has jobs: {some(mine)}")
        elif one.kind == "account" and (left := _left_in(one.name, state, gone)):
            staying.append(f"account {one.name} stays while it has {some(left)}")
        elif one.kind == "user" and (why := _without_account(one.name, wanted, state, gone)):
            staying.append(f"{one.text()} stays: {why}")
        else:
            removals.append(one)
            gone.add(f"{one.kind} {one.name}")
    return tuple(removals), tuple(staying)


def _left_in(account: str, state: State, gone: set[str]) -> list[str]:
    users = [f"user {u}" for a, u in state.associations if a == account and f"user {a} {u}" not in gone]
    others = [f"user {u}" for a, u, _ in state.partitioned if a == account and f"user {a} {u}" not in gone]
    below = [
        f"account {name}"
        for name, values in state.accounts.items()
        if values["parent"] == account and f"account {name}" not in gone
    ]
    return [*users, *others, *below]


def _without_account(pair: str, wanted: Wanted, state: State, gone: set[str]) -> str:
    """Return why a user would lose the default account; empty if not."""
    account, _, user = pair.partition(" ")
    others = [a for a, u in state.associations if u == user and a != account and f"user {a} {u}" not in gone]
    is_default = user in state.users and state.users[user].account == account
    return "it is the user's default account, and there are others" if is_default and others else ""


def _by_hand(wanted: Wanted, state: State, record: Record) -> Iterator[str]:
    """Yield what people have added, and stays."""
    if wanted.exclusive:
        return
    for name in state.accounts:
        if name not in wanted.accounts and name not in record.accounts and name != ROOT:
            yield f"account {name}"
    for account, user in state.associations:
        known = (account, user) in wanted.associations or f"{account} {user}" in record.associations
        if not (known or user in wanted.kept_users or account in record.default_accounts):
            yield f"user {user} in account {account}"
    for account, user, partition in sorted(state.partitioned):
        yield f"user {user} in account {account} for partition {partition}"
    for name in state.qos:
        if name not in wanted.qos and name not in record.qos and name != NORMAL:
            yield f"QOS {name}"
