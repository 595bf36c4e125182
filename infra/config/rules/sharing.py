"""Rules for accounts, users, QOS and priorities: what is named exists, and no circle is closed."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence

from infra.config import accounting
from infra.config.fields import time_limit_seconds
from infra.config.mistakes import Location
from infra.config.rules.context import CLUSTER, Context
from infra.config.sharing import AccountConfig, QosConfig, UserConfig
from infra.instance_types.catalog import GRES, NEURON_CORES
from node.design.sharing import NORMAL, ROOT

LISTS = ("accounts", "qos")
PARTITION_KEYS = ("allow_accounts", "allow_qos", "qos")
WITH_ACCOUNTING = "nothing without accounting, which keeps accounts, users and QOS"


def check_sharing(c: Context) -> None:
    """Check accounts, users, QOS, priorities, and what partitions say of them."""
    if not _check_accounting(c):
        return
    cluster = c.cluster
    accounts = [account.name for account in cluster.accounts]
    levels = [NORMAL, *(level.name for level in cluster.qos)]
    known = [*accounts, cluster.slurm.default_account]
    for key, names in (("accounts", accounts), ("qos", levels[1:])):
        _twice(c, key, names)
    for index, account in enumerate(cluster.accounts):
        _account(c, account, (*CLUSTER, "accounts", index), known)
    for index, user in enumerate(cluster.users):
        _user(c, user, (*CLUSTER, "users", index), known)
    for index, level in enumerate(cluster.qos):
        _level(c, level, (*CLUSTER, "qos", index), levels)
    parents = {account.name: [account.parent] if account.parent else [] for account in cluster.accounts}
    for index, circle in _circles(accounts, parents):
        where = (*CLUSTER, "accounts", index, "parent")
        c.add("account.circle", where, circle, "no circle", "remove one parent of them")
    for index, circle in _circles(levels[1:], {level.name: level.preempts for level in cluster.qos}):
        where = (*CLUSTER, "qos", index, "preempts")
        c.add("qos.circle", where, circle, "no circle", "remove one of these from preempts")
    _tres(c)
    _defaults(c, levels)
    _partitions(c, known, levels)
    _priority(c)


def _check_accounting(c: Context) -> bool:
    """Report what needs accounting, if that is off; return whether it is on."""
    if c.cluster.scheduler != "batch" and accounting.is_on(c.cluster, c.facts):
        return True
    advice = "write slurm: {accounting: true}"
    if c.cluster.scheduler == "batch":
        advice = "remove it: AWS Batch has no Slurm"
    given: list[Location] = [(key,) for key in LISTS if getattr(c.cluster, key)]
    if c.cluster.slurm.priority is not None:
        given.append(("slurm", "priority"))
    given += [
        ("users", index, key) for index, user in enumerate(c.cluster.users) for key in user.of_accounting()
    ]
    given += [
        ("partitions", index, key)
        for index, partition in enumerate(c.cluster.partitions)
        for key in PARTITION_KEYS
        if getattr(partition, key)
    ]
    for where in given:
        c.add("sharing.no-accounting", (*CLUSTER, *where), "a value", WITH_ACCOUNTING, advice)
    return False


def _twice(c: Context, key: str, names: Sequence[str]) -> None:
    for index, name in enumerate(names):
        if name in names[:index]:
            other = names.index(name)
            allowed = f"another name than {key}[{other}] has"
            c.add(
                "sharing.name-twice", (*CLUSTER, key, index, "name"), name, allowed, "each name stands once"
            )


def _no_account(c: Context, where: Location, name: str, known: Sequence[str]) -> None:
    """Report an account that nobody has."""
    if name not in known:
        c.add("sharing.unknown-account", where, name, *_instead(name, known, "accounts"))


def _no_qos(c: Context, where: Location, name: str, known: Sequence[str]) -> None:
    """Report a QOS that nobody has."""
    if name not in known:
        c.add("sharing.unknown-qos", where, name, *_instead(name, known, "qos"))


def _instead(name: str, known: Sequence[str], key: str) -> tuple[str, str]:
    """Return what is allowed, and what to do."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    advice = f"did you mean {near[0]}? Otherwise " if near else ""
    allowed = f"one of {', '.join(sorted(dict.fromkeys(known))[:MOST_NAMES])}"
    return allowed, f"{advice}add it to {key}, or correct the name"


MOST_NAMES = 12


def _account(c: Context, account: AccountConfig, at: Location, known: Sequence[str]) -> None:
    if account.name == ROOT:
        advice = "it is Slurm's own, which everybody's accounts belong to"
        c.add("account.root", (*at, "name"), ROOT, "another name than root", advice)
    if account.parent is not None and account.parent != ROOT:
        _no_account(c, (*at, "parent"), account.parent, known)
    _qos_names(c, account, at)


def _user(c: Context, user: UserConfig, at: Location, known: Sequence[str]) -> None:
    if user.account is not None:
        _no_account(c, (*at, "account"), user.account, known)
    for index, name in enumerate(user.accounts):
        where = (*at, "accounts", index)
        _no_account(c, where, name, known)
        if name in (user.account or c.cluster.slurm.default_account, *user.accounts[:index]):
            c.add("user.account-twice", where, name, "accounts that the user has not already", "remove it")
    _qos_names(c, user, at)


def _qos_names(c: Context, given: AccountConfig | UserConfig, at: Location) -> None:
    levels = [NORMAL, *(level.name for level in c.cluster.qos)]
    for index, name in enumerate(given.qos):
        _no_qos(c, (*at, "qos", index), name, levels)
    if given.default_qos is not None:
        _no_qos(c, (*at, "default_qos"), given.default_qos, levels)


def _level(c: Context, level: QosConfig, at: Location, levels: Sequence[str]) -> None:
    for index, name in enumerate(level.preempts):
        _no_qos(c, (*at, "preempts", index), name, levels)
    if level.grace_seconds and level.preempt_mode != "cancel":
        c.add(
            "qos.grace-with-requeue",
            (*at, "grace_seconds"),
            level.grace_seconds,
            "0 unless preempt_mode is cancel",
            "a requeued job has 30 s between SIGTERM and SIGKILL anyway (KillWait); one that ends in a grace "
            "time is over, and is not queued again",
        )


def _circles(names: Sequence[str], links: Mapping[str, Sequence[str]]) -> Iterator[tuple[int, str]]:
    """Yield each circle once, as text, with the place of the first of its members."""
    seen: set[str] = set()
    for index, name in enumerate(names):
        if name not in seen and (circle := _circle(name, links)):
            seen.update(circle)
            yield index, " → ".join([*circle, name])


def _circle(start: str, links: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the names on a way from a name back to itself; empty if there is none."""
    ways = [[start]]
    visited: set[str] = set()
    while ways:
        way = ways.pop()
        for name in links.get(way[-1], ()):
            if name == start:
                return way
            if name not in visited:
                visited.add(name)
                ways.append([*way, name])
    return []


def _defaults(c: Context, levels: Sequence[str]) -> None:
    """Report a default QOS that its account or user may not have: Slurm would refuse every job."""
    accounts = {account.name: account for account in c.cluster.accounts}
    for index, account in enumerate(c.cluster.accounts):
        allowed = allowed_qos(account.name, accounts)
        _default(c, account, (*CLUSTER, "accounts", index), allowed, levels)
    for index, user in enumerate(c.cluster.users):
        first = user.account or c.cluster.slurm.default_account
        for name in dict.fromkeys((first, *user.accounts)):
            _default(c, user, (*CLUSTER, "users", index), user.qos or allowed_qos(name, accounts), levels)


def _default(
    c: Context,
    given: AccountConfig | UserConfig,
    at: Location,
    allowed: Sequence[str],
    levels: Sequence[str],
) -> None:
    if given.default_qos in levels and given.default_qos not in allowed:
        said = f"one of {', '.join(allowed)}: the QOS that its jobs may have"
        c.add("sharing.default-qos", (*at, "default_qos"), given.default_qos, said, "add it to qos")


def allowed_qos(name: str, accounts: Mapping[str, AccountConfig]) -> Sequence[str]:
    """Return the QOS that jobs of an account may have: its own, or those of the next account above it."""
    for one in _way_up(name, accounts):
        if one.qos:
            return one.qos
    return (NORMAL,)


def _way_up(name: str | None, accounts: Mapping[str, AccountConfig]) -> Iterator[AccountConfig]:
    seen: set[str] = set()
    while name is not None and name in accounts and name not in seen:
        seen.add(name)
        yield accounts[name]
        name = accounts[name].parent


def _partitions(c: Context, known: Sequence[str], levels: Sequence[str]) -> None:
    for index, partition in enumerate(c.cluster.partitions):
        at = (*CLUSTER, "partitions", index)
        for number, name in enumerate(partition.allow_accounts):
            where = (*at, "allow_accounts", number)
            _no_account(c, where, name, [*known, ROOT])
        for number, name in enumerate(partition.allow_qos):
            _no_qos(c, (*at, "allow_qos", number), name, levels)
        if partition.qos is not None:
            _no_qos(c, (*at, "qos"), partition.qos, levels)


def _priority(c: Context) -> None:
    """Report times with which priorities would never be computed, or would not decay as they say."""
    if (priority := c.cluster.slurm.priority) is None:
        return
    at = (*CLUSTER, "slurm", "priority")
    if not all(c.sound((*at, key)) for key in ("calc_period", "decay_half_life", "max_age")):
        return
    period = time_limit_seconds(priority.calc_period)
    half_life = time_limit_seconds(priority.decay_half_life)
    if period is None or period < 60:
        allowed = "00:01:00 or more"
        c.add("priority.calc-period", (*at, "calc_period"), priority.calc_period, allowed)
    elif half_life is not None and half_life < period:
        allowed = f"calc_period ({priority.calc_period}) or more, or INFINITE"
        c.add("priority.half-life", (*at, "decay_half_life"), priority.decay_half_life, allowed)
    if time_limit_seconds(priority.max_age) is None:
        c.add("priority.max-age", (*at, "max_age"), priority.max_age, "a time, like 7-00:00:00")


def _tres(c: Context) -> None:
    """Report limits on what the accounting does not count: sacctmgr would refuse them at the boot."""
    counted = _counted(c)
    for key in ("accounts", "users", "qos"):
        for index, item in enumerate(getattr(c.cluster, key)):
            for name, given in item.limits.model_dump().items():
                for tres in given if "tres" in name else ():
                    kind = tres.partition("/")[0]
                    where = (*CLUSTER, key, index, "limits", name, tres)
                    if kind == "license":
                        allowed = "what the accounting counts: cpu, mem, node, billing, gres/…"
                        c.add(
                            "limits.license", where, given[tres], allowed, "it counts no licenses: remove it"
                        )
                    elif kind == "gres" and counted is not None and tres.partition("/")[2] not in counted:
                        allowed = (
                            f"a resource of the partitions' nodes: {', '.join(counted) or 'they have none'}"
                        )
                        c.add("limits.unknown-gres", where, given[tres], allowed, _other_gres(tres, counted))


def _other_gres(tres: str, counted: Sequence[str]) -> str:
    near = difflib.get_close_matches(tres.partition("/")[2], counted, 1)
    return f"did you mean gres/{near[0]}?" if near else "remove it, or add a partition that has it"


def _counted(c: Context) -> list[str] | None:
    """Return the names of generic resources that limits can have; `None` if a machine is not known."""
    names: set[str] = set()
    for _, group in c.groups():
        machine = c.instance_type(group.instance_type)
        if machine is None:
            return None
        chosen = group.accelerator or machine.accelerator
        if chosen is not None:
            cores = group.aws is not None and group.aws.neuron_cores and chosen.type in NEURON_CORES
            resource = "neuroncore" if cores else GRES.get(chosen.type, "gpu")
            names |= {resource, f"{resource}:{chosen.type}"}
    return sorted(names)
