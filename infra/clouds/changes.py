"""What becomes of a running cluster when its stack file changes: kinds of change, and a comparison. Pure.

Which key of the stack file does what is a table of each provider's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any

from infra.node.model import ClusterDesign, Mount


class Kind(StrEnum):
    """The value is what a person reads."""

    NOTHING = "changes nothing on this cloud"
    LIVE = "applied to the running cluster"
    NODES = "new nodes only: a node that is up keeps what it has until it goes back"
    RENEWED = "new nodes have it; a node that is up takes no further job, and goes when its jobs are over"
    PAUSE = "the machine stops and starts: jobs go on, and wait for it where they need it"
    ENDS = "ends the jobs on nodes that are taken away"
    HEAD = "needs a new head: its queue is lost, and jobs that run"
    DATA = "is made anew: what was in it is lost"
    NEVER = "is not possible"


JOBS = frozenset({Kind.ENDS, Kind.HEAD, Kind.DATA})
"""Refused while jobs run, unless asked."""
ALWAYS = frozenset({Kind.DATA})
"""Refused without jobs too, unless asked: nobody can run it again."""


@dataclass(frozen=True, slots=True)
class Row:
    """What follows when the value of a key of the stack file changes.

    Attributes:
        fields: of the design, by which the change is found (`<section>.<field>`); none: it leaves no mark of
            its own there.
        less: the kind where a number falls; None: the same.
    """

    kind: Kind
    fields: tuple[str, ...] = ()
    note: str = ""
    less: Kind | None = None


SECTIONS = ("access", "network", "image", "budget", "slurm")
"""Of the design. Others are cluster, controller, login, partitions, storage; fields: `<section>.<field>`."""
WITH_MACHINE = frozenset({"partitions.cpus", "partitions.memory_mib", "partitions.price_hour"})
"""What another machine brings along."""


@dataclass(frozen=True, slots=True)
class Change:
    """A difference.

    Attributes:
        key: of `TABLE`.
        part: what of the cluster it is about: `partition cpu`, `/home`; empty for the cluster.
        partition: whose jobs it is about; None: everybody's.
    field: of the design, where the key is a whole section.
    """

    key: str
    part: str
    kind: Kind
    was: str
    will: str
    note: str = ""
    partition: str | None = None
    field: str = ""

    def line(self) -> str:
        key = self.key.partition(".")[2].removeprefix("*.") if self.part else ""
        name = f"{f'{self.part}: ' if self.part else ''}{key or self.key}"
        detail = f".{self.field}" if self.field else ""
        note = f" ({self.note})" if self.note else ""
        return f"{name}{detail} {self.was} → {self.will}: {self.kind}{note}"


Rule = Callable[[ClusterDesign, ClusterDesign], Iterator[Change]]


@dataclass(frozen=True, slots=True)
class Rules:
    """What a provider makes of a difference.

    Attributes:
        table: key of the stack file, below `slurm-stacks:cluster` -> what a change does. `*` is home, apps,
            scratch.
        mount: the kind of a change of a file system that stays: of the old mount, the name of its field, and
            the kind that the table says.
        more: differences that no single field shows.
    """

    table: Mapping[str, Row]
    mount: Callable[[Mount, str, Kind], Kind] = lambda mount, name, kind: kind
    more: Sequence[Rule] = ()

    def keys(self) -> dict[str, str]:
        """Field of the design -> key of the table."""
        return {name: key for key, row in self.table.items() for name in row.fields}


def compare(old: ClusterDesign, new: ClusterDesign, rules: Rules) -> list[Change]:
    """What differs, in the order of the table.

    Args:
        old: as it was published: with the zones in which its nodes may start.
        new: from the stack file.
    """
    before, after = parts(old), parts(new)
    found: list[Change] = []
    for name in [*before, *(name for name in after if name not in before)]:
        section, part, was = before.get(name, ("", "", None))
        section, part, will = after.get(name, (section, part, None))
        if was is None or will is None:
            found.append(_whole(section, part, was is None))
        else:
            found += _fields(section, part, was, will, rules)
    for rule in rules.more:
        found += rule(old, new)
    order = list(rules.table)
    return sorted(found, key=lambda change: order.index(change.key))


def refusal(found: Sequence[Change], running: Sequence[str] | None, ended: Sequence[str]) -> str | None:
    """Why these changes are not made unless asked, or not at all; None: they may be.

    Args:
        running: partitions of the jobs that run, one for each; None: that is not known.
        ended: a line a job, for the message.
    """
    if never := [change for change in found if change.kind is Kind.NEVER]:
        return _because("this is not possible: put the old value back", never, [])
    lost = [change for change in found if change.kind in ALWAYS]
    if lost:
        return _because("this deletes files. Save them first; `up --replace` does it all the same", lost, [])
    costly = [change for change in found if change.kind in JOBS]
    if running is None:
        return (
            _because(
                "whether jobs run is not known, for the cluster does not answer, and this would end them. "
                "`up --replace` does it all the same",
                costly,
                [],
            )
            if costly
            else None
        )
    hit = [c for c in costly if (c.partition in running if c.partition else running)]
    if not hit:
        return None
    return _because("this would end jobs that run. Wait for them, or `up --replace`", hit, ended)


def costly(found: Sequence[Change]) -> bool:
    return any(change.kind in JOBS or change.kind is Kind.NEVER for change in found)


def _because(why: str, found: Sequence[Change], jobs: Sequence[str]) -> str:
    return "\n".join([f"{why}:", *(f"  {change.line()}" for change in found), *(f"  {job}" for job in jobs)])


def parts(design: ClusterDesign) -> dict[str, tuple[str, str, Any]]:
    """Name -> section, part, and the object whose fields are compared."""
    found: dict[str, tuple[str, str, Any]] = {"": ("cluster", "", design)}
    found |= {name: (name, "", getattr(design, name)) for name in SECTIONS}
    for host in design.hosts:
        section = "controller" if host.role == "controller" else "login"
        found[f"host {host.name}"] = (section, host.name, host)
    found |= {f"partition {p.name}": ("partitions", f"partition {p.name}", p) for p in design.partitions}
    found |= {f"mount {m.path}": ("storage", m.path, m) for m in design.mounts}
    return found


def _whole(section: str, part: str, added: bool) -> Change:
    """A part that there was not, or is no more."""
    words = ("none", "one") if added else ("one", "none")
    if section == "partitions":
        kind = Kind.LIVE if added else Kind.ENDS
        return Change("partitions.name", part, kind, *words, partition=part.removeprefix("partition "))
    if section == "login":
        return Change("login.count", part, Kind.LIVE, *words)
    if section == "storage":
        return Change("storage.*.path", part, Kind.NODES if added else Kind.DATA, *words)
    return Change("scheduler", part, Kind.DATA, *words)


def _fields(section: str, part: str, was: Any, will: Any, rules: Rules) -> Iterator[Change]:
    keys = rules.keys()
    machine = section == "partitions" and was.machine != will.machine
    for field in fields(was):
        path = f"{section}.{field.name}"
        old, new = getattr(was, field.name), getattr(will, field.name)
        if old == new or path not in keys or (machine and path in WITH_MACHINE):
            continue
        key, row = keys[path], rules.table[keys[path]]
        less = isinstance(old, int | float) and isinstance(new, int | float) and new < old
        kind, note = (row.less if less and row.less else row.kind), row.note
        if section == "storage":
            if "nvme" in (was.kind, will.kind):
                key, kind, note = "storage.local_scratch", Kind.NODES, ""
            elif was.kind != will.kind and field.name != "kind":
                continue  # another file system: that says it all
            else:
                kind = rules.mount(was, field.name, kind)
        partition = was.name if section == "partitions" else None
        detail = field.name if len(row.fields) > 1 else ""
        yield Change(key, part, kind, text(old), text(new), note, partition, detail)


def text(value: Any) -> str:
    """A value for a line."""
    if value is None or value == ():
        return "none"
    if isinstance(value, tuple):
        return ", ".join(
            item if isinstance(item, str) else str(getattr(item, "source", item)) for item in value
        )
    kind = getattr(value, "type", None)
    return f"{value.count} × {kind}" if kind else str(value)
