"""What becomes of a running cluster when its stack file changes: kinds of change, and a comparison. Pure.

Which key of the stack file does what is a table of each provider's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any

from infra.changes.jobs import Job, listed
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
"""Refused while there are jobs that it would cost, unless asked."""
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


SECTIONS = ("access", "network", "image", "budget", "slurm", "local")
"""Of the design. Others are cluster, controller, login, partitions, storage; fields: `<section>.<field>`."""
WHOLE = ("one", "none")
"""What was and will be of a part that is taken away."""
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
        nodes: those that are taken away from a partition that stays.
    """

    key: str
    part: str
    kind: Kind
    was: str
    will: str
    note: str = ""
    partition: str | None = None
    field: str = ""
    nodes: frozenset[str] = frozenset()

    def costs(self, job: Job) -> bool:
        """Whether the job would not survive it, whether it runs or waits."""
        if self.kind not in JOBS or job.over:
            return False
        if self.nodes:
            return job.touches(self.nodes)
        return self.partition is None or self.partition in job.partitions

    def concerns(self, job: Job) -> str | None:
        """What becomes of a job, in words; None: nothing that it would notice."""
        if self.costs(job):
            return "is lost" if job.pending else "ends"
        holds = not job.pending and not job.over and self.partition in job.partitions
        if self.kind is Kind.RENEWED and holds:
            return "goes on; its nodes go when it is over"
        return None

    def consequence(self) -> str:
        return f"{self.kind}{f' ({self.note})' if self.note else ''}"

    def line(self) -> str:
        if (self.was, self.will) == WHOLE:
            lost = "what was in it is lost" if self.kind is Kind.DATA else self.consequence()
            return f"{self.part} is taken away: {lost}"
        if (self.will, self.was) == WHOLE:
            return f"{self.part} is new: {self.consequence()}"
        key = self.key.partition(".")[2].removeprefix("*.") if self.part else ""
        name = f"{f'{self.part}: ' if self.part else ''}{key or self.key}"
        detail = f".{self.field}" if self.field else ""
        return f"{name}{detail} {self.was} → {self.will}: {self.consequence()}"


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


def refusal(found: Sequence[Change], jobs: Sequence[Job] | None) -> str | None:
    """Why these changes are not made unless asked, or not at all; None: they may be.

    Args:
        jobs: those that have not ended; None: that is not known.
    """
    if never := [change for change in found if change.kind is Kind.NEVER]:
        return _because("this is not possible: put the old value back", never)
    if lost := [change for change in found if change.kind in ALWAYS]:
        return _because(
            "this deletes files. Save them first; `up --replace` does it all the same",
            lost,
            [job for job in jobs or () if any(change.costs(job) for change in lost)],
        )
    costly = [change for change in found if change.kind in JOBS]
    if jobs is None:
        unknown = (
            "whether there are jobs is not known, for the cluster does not answer, and this would end them. "
            "`up --replace` does it all the same"
        )
        return _because(unknown, costly) if costly else None
    hit = [change for change in costly if any(change.costs(job) for job in jobs)]
    if not hit:
        return None
    return _because(
        "this would end jobs that run or wait. Let them end first, or `up --replace`",
        hit,
        [job for job in jobs if any(change.costs(job) for change in hit)],
    )


def costly(found: Sequence[Change]) -> bool:
    return any(change.kind in JOBS or change.kind is Kind.NEVER for change in found)


def may_run_again(found: Sequence[Change], job: Job) -> bool:
    """Whether a job that these changes end can run once more: its partition stays, other nodes will do."""
    hit = [change for change in found if change.costs(job)]
    return all(change.nodes and not job.insists(change.nodes) for change in hit)


def holds(found: Sequence[Change]) -> tuple[str, frozenset[str] | None]:
    """What must not begin while it is decided whether these changes may be made.

    Returns:
        The state for partitions (INACTIVE where waiting jobs would be lost too, else DOWN), and which
        partitions; None for all of them.
    """
    hit = [change for change in found if change.kind in JOBS]
    state = "DOWN" if all(change.nodes for change in hit) else "INACTIVE"
    names = frozenset(change.partition for change in hit if change.partition is not None)
    return state, None if any(change.partition is None for change in hit) else names


def described(found: Sequence[Change], jobs: Sequence[Job] | None) -> list[dict[str, Any]]:
    """Changes with what becomes of each job, as `./cluster plan --json` has them.

    Args:
        jobs: those that have not ended; None, which each change then has too: that is not known.
    """
    return [
        {
            "key": change.key,
            "part": change.part,
            "was": change.was,
            "will": change.will,
            "kind": change.kind.name.lower(),
            "consequence": change.consequence(),
            "line": change.line(),
            "jobs": None
            if jobs is None
            else [
                {
                    "id": job.id, "name": job.name, "user": job.user, "partition": job.partition,
                    "state": job.state, "nodes": job.nodes, "consequence": concern,
                }
                for job in jobs
                if (concern := change.concerns(job)) is not None
            ],
        }
        for change in found
    ]  # fmt: skip


def _because(why: str, found: Sequence[Change], jobs: Sequence[Job] = ()) -> str:
    return "\n".join([f"{why}:", *(f"  {change.line()}" for change in found), *listed(jobs)])


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
    words = WHOLE[::-1] if added else WHOLE
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
        gone = frozenset(was.nodes()) - frozenset(will.nodes()) if path == "partitions.max" else frozenset()
        yield Change(key, part, kind, text(old), text(new), note, partition, detail, gone)


def text(value: Any) -> str:
    """A value for a line."""
    if value is None or value == ():
        return "none"
    if isinstance(value, bool):
        return str(value).lower()  # as a stack file has it
    if isinstance(value, tuple):
        return ", ".join(
            item if isinstance(item, str) else str(getattr(item, "source", item)) for item in value
        )
    kind = getattr(value, "type", None)
    return f"{value.count} × {kind}" if kind else str(value)
