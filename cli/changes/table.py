"""What happens to a running cluster when its stack file changes: the kinds of change, and a comparison. Pure.

Each provider has a table that says what a change of each key does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Any

from cli.changes import files
from cli.changes.jobs import Job, listed
from node.model import BUCKETS, ClusterDesign, Mount


class Kind(StrEnum):
    """The effect of a change; the value is the text for users."""

    NOTHING = "changes nothing on this cloud"
    LIVE = "applied to the running cluster"
    NODES = "new nodes only: a node that is up keeps what it has until it is removed"
    RENEWED = (
        "new nodes have it; a node that is up takes no further job, and is removed when its jobs are over"
    )
    PAUSE = "the machine stops and starts: jobs go on, and wait for it where they need it"
    ENDS = "ends the jobs on nodes that are removed"
    HEAD = "needs a new head: its queue and running jobs are lost"
    DATA = "is recreated: its contents are lost"
    NEVER = "is not possible"


JOBS = frozenset({Kind.ENDS, Kind.HEAD, Kind.DATA})
"""The kinds that are refused without `--replace` while there are jobs that they would end."""
ALWAYS = frozenset({Kind.DATA})
"""The kinds that are refused without `--replace` even without jobs: lost files cannot be made again."""


@dataclass(frozen=True, slots=True)
class Row:
    """What happens when the value of a key of the stack file changes.

    Attributes:
        fields: The fields of the design that show the change (`<section>.<field>`); empty if no field does.
        note: A remark for the user's text.
        less: The kind if a number decreases; `None` means `kind`.
    """

    kind: Kind
    fields: tuple[str, ...] = ()
    note: str = ""
    less: Kind | None = None


SECTIONS = ("access", "network", "image", "budget", "slurm", "local")
"""The sections of the design that are compared as a whole. The others are cluster, controller, login,
partitions and storage. A field is named `<section>.<field>`."""
WHOLE = ("one", "none")
"""The old and the new value of a part that is removed."""
SPELLING = {"cluster.trains": "enabled"}
"""Fields of the design that have another name in the stack file, where a key stands for several fields."""
WITH_INSTANCE_TYPE = frozenset({"partitions.cpus", "partitions.memory_mib", "partitions.price_hour"})
"""Fields that change together with a partition's instance type."""


@dataclass(frozen=True, slots=True)
class Change:
    """One difference between two designs.

    Attributes:
        key: The key in the provider's table.
        part: The part of the cluster, such as `partition cpu` or `/home`; empty for the whole cluster.
        was: The old value.
        will: The new value.
        partition: The partition whose jobs are affected; `None` means the jobs of every partition.
        field: The field of the design, if the key stands for several.
        nodes: The nodes that are removed from a partition that stays.
        lost: A line for each directory or other store whose contents are lost, with the way that keeps them.
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
    lost: tuple[str, ...] = ()

    @property
    def deletes(self) -> bool:
        """Whether the change is refused without `--replace` even without jobs."""
        return self.kind in ALWAYS or bool(self.lost)

    def costs(self, job: Job) -> bool:
        """Whether the job, running or pending, would be lost."""
        if self.kind not in JOBS or job.over:
            return False
        if self.nodes:
            return job.touches(self.nodes)
        return self.partition is None or self.partition in job.partitions

    def concerns(self, job: Job) -> str | None:
        """The consequence for a job, as text; `None` if the job is not affected."""
        if self.costs(job):
            return "is lost" if job.pending else "ends"
        holds = not job.pending and not job.over and self.partition in job.partitions
        if self.kind is Kind.RENEWED and holds:
            return "goes on; its nodes are removed when it is over"
        return None

    def consequence(self) -> str:
        return f"{self.kind}{f' ({self.note})' if self.note else ''}"

    def line(self) -> str:
        if (self.was, self.will) == WHOLE:
            lost = "its contents are lost" if self.kind is Kind.DATA else self.consequence()
            return f"{self.part} is removed: {lost}"
        if (self.will, self.was) == WHOLE:
            return f"{self.part} is new: {self.consequence()}"
        own = self.part and not self.key.startswith("network.")
        key = self.key.partition(".")[2].removeprefix("*.") if own else ""
        name = f"{f'{self.part}: ' if self.part else ''}{key or self.key}"
        detail = f".{self.field}" if self.field else ""
        return f"{name}{detail} {self.was} → {self.will}: {self.consequence()}"


Rule = Callable[[ClusterDesign, ClusterDesign], Iterator[Change]]


@dataclass(frozen=True, slots=True)
class Rules:
    """A provider's rules for differences.

    Attributes:
        table: What a change does, by key of the stack file below `slurm-stacks:cluster`. `*` stands for home,
            apps and scratch.
        mount: Gives the kind of a change of a file system that stays, from the old mount, the name of the
            changed field, and the kind in the table.
        more: Find differences that no single field shows.
        spared: Says of a directory of the cluster's own that a change of this key, which recreates more than
            one part of the cluster, leaves its files as they are.
        head: A line for each store on the controller's own disk that a change of this kind deletes.
    """

    table: Mapping[str, Row]
    mount: Callable[[Mount, str, Kind], Kind] = lambda mount, name, kind: kind
    more: Sequence[Rule] = ()
    spared: Callable[[Mount, str], bool] = lambda mount, key: False
    head: Callable[[ClusterDesign, Kind], tuple[str, ...]] = lambda design, kind: ()

    def keys(self) -> dict[str, str]:
        """The key in the table for each field of the design."""
        return {name: key for key, row in self.table.items() for name in row.fields}


def compare(old: ClusterDesign, new: ClusterDesign, rules: Rules) -> list[Change]:
    """The differences, in the order of the table; only those that make another cluster if there are such.

    Args:
        old: The published design, which has the zones in which nodes may start.
        new: The design from the stack file.
    """
    before, after = parts(old), parts(new)
    found: list[Change] = []
    for name in [*before, *(name for name in after if name not in before)]:
        section, part, was = before.get(name, ("", "", None))
        section, part, will = after.get(name, (section, part, None))
        if was is None or will is None:
            found.append(_whole(section, part, was is None, will or was))
        else:
            found += _fields(section, part, was, will, rules)
    for rule in rules.more:
        found += rule(old, new)
    if anew := [change for change in found if change.kind is Kind.DATA and not change.part]:
        # Another cluster takes the place of this one, so what else differs has no effect on this one's jobs.
        found = anew
    order = list(rules.table)
    with_losses = [replace(change, lost=_lost(change, old, rules)) for change in found]
    return sorted(with_losses, key=lambda change: order.index(change.key))


def _lost(change: Change, old: ClusterDesign, rules: Rules) -> tuple[str, ...]:
    """The lines about what a change deletes of the cluster that is up."""
    if change.kind is Kind.HEAD:
        return rules.head(old, change.kind)
    if change.kind is not Kind.DATA:
        return ()
    for mount in old.mounts:
        if mount.path == change.part:
            return (files.of_mount(mount),) if files.is_own(mount) else ()
    left = tuple(mount for mount in old.mounts if not rules.spared(mount, change.key))
    return (*files.of_cluster(replace(old, mounts=left)), *rules.head(old, change.kind))


def refusal(found: Sequence[Change], jobs: Sequence[Job] | None, command: str = "up --replace") -> str | None:
    """Why these changes are refused; `None` if they are allowed.

    Args:
        jobs: The jobs that have not ended; `None` if they are not known.
        command: The command that makes them all the same, for the message.
    """
    if never := [change for change in found if change.kind is Kind.NEVER]:
        return _because("this is not possible: put the old value back", never)
    if lost := [change for change in found if change.deletes]:
        why = _because(f"this deletes files. Save them first. `{command}` makes the change anyway", lost)
        ended = [job for job in jobs or () if any(change.costs(job) for change in lost)]
        return "\n".join([why, *losses(lost), *listed(ended)])
    costly = [change for change in found if change.kind in JOBS]
    if jobs is None:
        unknown = (
            "this would end jobs, and whether there are any is not known, because the cluster does not "
            f"answer. `{command}` makes the change anyway"
        )
        return _because(unknown, costly) if costly else None
    hit = [change for change in costly if any(change.costs(job) for job in jobs)]
    if not hit:
        return None
    return _because(
        f"this would end jobs that run or wait. Let them end first, or use `{command}`",
        hit,
        [job for job in jobs if any(change.costs(job) for change in hit)],
    )


def losses(found: Sequence[Change]) -> list[str]:
    """What these changes delete, and the way that keeps it: lines below one heading, each of them once."""
    lines = dict.fromkeys(line for change in found for line in change.lost)
    return ["what is lost, and how to keep it:", *(f"  {line}" for line in lines)] if lines else []


def costly(found: Sequence[Change]) -> bool:
    return any(change.kind in JOBS or change.kind is Kind.NEVER for change in found)


def may_run_again(found: Sequence[Change], job: Job) -> bool:
    """Whether a job that these changes end can run again, because it requires nothing that is removed."""
    hit = [change for change in found if change.costs(job)]
    return all(change.nodes and not job.requires(change.nodes) for change in hit)


def holds(found: Sequence[Change]) -> tuple[str, frozenset[str] | None]:
    """What must not start while these changes are checked.

    Returns:
        The state for partitions (INACTIVE if pending jobs would be lost too, else DOWN), and the partitions;
        `None` means all of them.
    """
    hit = [change for change in found if change.kind in JOBS]
    state = "DOWN" if all(change.nodes for change in hit) else "INACTIVE"
    names = frozenset(change.partition for change in hit if change.partition is not None)
    return state, None if any(change.partition is None for change in hit) else names


def described(found: Sequence[Change], jobs: Sequence[Job] | None) -> list[dict[str, Any]]:
    """The changes with the consequence for each job, in the form of `./cluster plan --json`.

    Args:
        jobs: The jobs that have not ended; `None`, if they are not known, becomes each change's jobs.
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
            "lost": list(change.lost),
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
    """Name that both designs share -> section, part for messages, and the object that is compared."""
    found: dict[str, tuple[str, str, Any]] = {"": ("cluster", "", design)}
    found |= {name: (name, "", getattr(design, name)) for name in SECTIONS}
    for host in design.hosts:
        section = "controller" if host.role == "controller" else "login"
        found[f"host {host.name}"] = (section, host.name, host)
    found |= {f"partition {p.name}": ("partitions", f"partition {p.name}", p) for p in design.partitions}
    found |= {f"mount {m.path}": ("storage", m.path, m) for m in design.mounts}
    return found


def _whole(section: str, part: str, added: bool, which: Any) -> Change:
    """The change for a part that is added or removed.

    Args:
        which: The part itself.
    """
    words = WHOLE[::-1] if added else WHOLE
    if section == "partitions":
        kind = Kind.LIVE if added else Kind.ENDS
        return Change("partitions.name", part, kind, *words, partition=part.removeprefix("partition "))
    if section == "login":
        return Change("login.count", part, Kind.LIVE, *words)
    if section == "storage":
        if which.kind in BUCKETS:
            return Change("storage.buckets", part, Kind.NODES, *words)
        # What is there already stays.
        kind = Kind.NODES if added or which.existing is not None else Kind.DATA
        return Change("storage.*.path", part, kind, *words)
    return Change("scheduler", part, Kind.DATA, *words)


def _fields(section: str, part: str, was: Any, will: Any, rules: Rules) -> Iterator[Change]:
    keys = rules.keys()
    retyped = section == "partitions" and was.instance_type != will.instance_type
    for field in fields(was):
        path = f"{section}.{field.name}"
        old, new = getattr(was, field.name), getattr(will, field.name)
        if old == new or path not in keys or (retyped and path in WITH_INSTANCE_TYPE):
            continue
        key, row = keys[path], rules.table[keys[path]]
        less = isinstance(old, int | float) and isinstance(new, int | float) and new < old
        kind, note = (row.less if less and row.less else row.kind), row.note
        if section == "storage":
            if {was.kind, will.kind} & set(BUCKETS):
                key, kind, note = "storage.buckets", Kind.NODES, ""
            elif "nvme" in (was.kind, will.kind):
                key, kind, note = "storage.local_scratch", Kind.NODES, ""
            elif was.kind != will.kind and field.name != "kind":
                continue  # the change of the kind says it already
            else:
                kind = rules.mount(was, field.name, kind)
        partition = was.name if section == "partitions" else None
        detail = SPELLING.get(path, field.name) if len(row.fields) > 1 else ""
        gone = frozenset(was.nodes()) - frozenset(will.nodes()) if path == "partitions.max" else frozenset()
        yield Change(key, part, kind, text(old), text(new), note, partition, detail, gone)


def text(value: Any) -> str:
    """A value as text for users."""
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
