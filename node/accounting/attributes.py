"""The attributes of accounts, users and QOS, in one spelling. Pure.

A value is text, and empty if there is none. So the design and sacctmgr's answers are compared as texts,
whatever sacctmgr makes of a value: it prints `mem=1024` as `mem=1G`, 90 minutes as 01:30:00, and descriptions
of accounts in small letters.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from node.design.sharing import Account, Limits, Qos, User

Values = Mapping[str, str]
"""Attribute (sacctmgr's option) -> value."""
UNIT = {"": 1, "K": 1 / 1024, "M": 1, "G": 1024, "T": 1024**2, "P": 1024**3}
"""The suffix of an amount of memory -> MiB."""
NO_LIMIT = "-1"
"""sacctmgr's word for a limit that is to be none."""
UNLIMITED_TIME = ("INFINITE", "UNLIMITED")


def number(text: str) -> str:
    """Return a number as it is written here: 0.250000 is 0.25."""
    try:
        return f"{float(text):g}" if "." in text else text
    except ValueError:
        return text


def names(text: str) -> str:
    """Return a list of names in the order of the alphabet."""
    return ",".join(sorted(name for name in text.split(",") if name))


def seconds(text: str) -> str:
    """Return a time in Slurm's notation as seconds; no time if it is none or has no limit."""
    if text.upper() in (*UNLIMITED_TIME, ""):
        return ""
    days, dash, rest = text.rpartition("-")
    parts = rest.split(":")
    if not all(part.isdigit() for part in (*parts, days or "0")) or len(parts) > 3:
        return text
    whole = [int(part) for part in parts]
    if dash:
        hours, minutes, secs = (*whole, 0, 0)[:3]
    elif len(whole) == 3:
        hours, minutes, secs = whole
    else:
        hours, minutes, secs = 0, *(*whole, 0)[:2]
    return str(int(days or 0) * 86400 + hours * 3600 + minutes * 60 + secs)


def minutes(text: str) -> str:
    """Return a time in Slurm's notation as minutes, rounded up; no time if it is none or has no limit."""
    found = seconds(text)
    return str(-(-int(found) // 60)) if found.isdigit() else found


def tres(text: str) -> str:
    """Return TRES with whole counts (memory in MiB), in the order of the alphabet."""
    pairs = (item.partition("=") for item in text.split(",") if item)
    return ",".join(f"{name}={_count(count)}" for name, _, count in sorted(pairs))


def _count(text: str) -> str:
    match = re.fullmatch(r"([0-9.]+)([KMGTP]?)", text)
    return text if match is None else f"{float(match[1]) * UNIT[match[2]]:.0f}"


def words(text: str) -> str:
    """Return a description as slurmdbd may keep it: without quotes, and of accounts in small letters."""
    return re.sub("[\"']", "`", text).lower()


def tres_names(value: str) -> list[str]:
    return [item.partition("=")[0] for item in value.split(",") if item]


@dataclass(frozen=True, slots=True)
class Attribute:
    """An attribute.

    Attributes:
        read: Turns what sacctmgr prints into a value.
        none: What sacctmgr is told where there is no value.
        initial: The value of what has just been added.
        is_tres: Whether the value is TRES, each of which is told apart.
    """

    read: Callable[[str], str] = str
    none: str = NO_LIMIT
    initial: str = ""
    is_tres: bool = False

    def words(self, key: str, value: str, before: str) -> str:
        """Return sacctmgr's words that make a value of the one before."""
        if self.is_tres:
            gone = [name for name in tres_names(before) if name not in tres_names(value)]
            value = ",".join([*([value] if value else []), *(f"{name}={NO_LIMIT}" for name in gone)])
        return f"{key}={value or self.none}"


_LIMIT, _TRES, _NAMES = Attribute(), Attribute(tres, is_tres=True), Attribute(names, none="")
_OF_ALL = {
    "grptres": _TRES,
    "grpjobs": _LIMIT,
    "grpsubmitjobs": _LIMIT,
    "maxtres": _TRES,
    "maxwall": Attribute(minutes),
}
ASSOCIATION: Mapping[str, Attribute] = {
    "fairshare": Attribute(initial="1", none="1"),
    "qos": _NAMES,
    "defaultqos": _LIMIT,
    **_OF_ALL,
    "maxjobs": _LIMIT,
    "maxsubmitjobs": _LIMIT,
}
"""What accounts have, and users in each account. sacctmgr's columns have the names of its options."""
ACCOUNT: Mapping[str, Attribute] = {
    "description": Attribute(words),
    "parent": Attribute(initial="root", none="root"),
    **ASSOCIATION,
}
"""What an account has."""
QOS: Mapping[str, Attribute] = {
    "description": Attribute(words),
    "priority": Attribute(initial="0", none="0"),
    "preempt": _NAMES,
    "preemptmode": Attribute(str.lower, initial="cluster", none="cluster"),
    "gracetime": Attribute(seconds, initial="0", none="0"),
    "usagefactor": Attribute(number, initial="1", none="1"),
    **_OF_ALL,
    "maxtresperuser": _TRES,
    "maxtresperaccount": _TRES,
    "maxjobsperuser": _LIMIT,
    "maxsubmitjobsperuser": _LIMIT,
}


def read(table: Mapping[str, Attribute], texts: Iterable[str]) -> dict[str, str]:
    """Return the values of sacctmgr's columns, which are in the order of the table."""
    return {
        key: attribute.read(text) or attribute.initial
        for (key, attribute), text in zip(table.items(), texts, strict=True)
    }


def of_account(account: Account) -> dict[str, str]:
    """Return what an account has by the design."""
    return {
        "description": words(account.description or account.name),
        "parent": account.parent or "root",
        **_of_association(account),
    }


def of_user(user: User) -> dict[str, str]:
    """Return what a user has by the design in each of their accounts."""
    return _of_association(user)


def _of_association(given: Account | User) -> dict[str, str]:
    return {
        "fairshare": str(given.shares),
        "qos": ",".join(sorted(given.qos)),
        "defaultqos": given.default_qos or "",
        **_of_limits(given.limits),
        "maxjobs": _text(given.limits.max_jobs),
        "maxsubmitjobs": _text(given.limits.max_submit),
    }


def of_qos(qos: Qos) -> dict[str, str]:
    """Return what a QOS has by the design."""
    limits = qos.limits
    return {
        "description": words(qos.description or qos.name),
        "priority": str(qos.priority),
        "preempt": ",".join(sorted(qos.preempts)),
        "preemptmode": qos.preempt_mode or "cluster",
        "gracetime": str(qos.grace_seconds),
        "usagefactor": f"{qos.usage_factor:g}",
        **_of_limits(limits),
        "maxtresperuser": _tres(limits.max_tres_per_user),
        "maxtresperaccount": _tres(limits.max_tres_per_account),
        "maxjobsperuser": _text(limits.max_jobs_per_user),
        "maxsubmitjobsperuser": _text(limits.max_submit_per_user),
    }


def _of_limits(limits: Limits) -> dict[str, str]:
    return {
        "grptres": _tres(limits.grp_tres),
        "grpjobs": _text(limits.grp_jobs),
        "grpsubmitjobs": _text(limits.grp_submit),
        "maxtres": _tres(limits.max_tres_per_job),
        "maxwall": minutes(limits.max_wall or ""),
    }


def _text(count: int | None) -> str:
    return "" if count is None else str(count)


def _tres(counts: Mapping[str, int]) -> str:
    return ",".join(f"{name}={count}" for name, count in sorted(counts.items()))
