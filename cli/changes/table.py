"""What happens to a running cluster when its stack file changes. Pure.

The comparison of two designs by a provider's table (`infra.config.changes`), and the files that a change
deletes, with the way that keeps them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from cli.changes import sharing
from cli.changes.jobs import Job, listed
from cli.changes.sharing import Owner
from infra.config.changes import Row
from infra.effects import Kind
from node.design.model import ClusterDesign, Partition
from node.design.storage import BUCKETS, Mount

JOBS = frozenset({Kind.ENDS, Kind.MOVED, Kind.HEAD, Kind.DATA})
"""The kinds that are refused without `--replace` while there are jobs that they would end."""
NEW_HEAD = frozenset({Kind.TAKEOVER, Kind.MOVED})
"""The kinds that keep Slurm's state, and so need a disk for it."""
ALWAYS = frozenset({Kind.DATA})
"""The kinds that are refused without `--replace` even without jobs: lost files cannot be made again."""


SECTIONS = ("access", "network", "image", "budget", "slurm", "aws", "local")
"""The sections of the design that are compared as a whole. The others are cluster, controller, login,
partitions and storage. A field is named `<section>.<field>`."""
JOBS_END = "applied to the running cluster, once they have no jobs"
"""What becomes of accounts, users and QOS that are removed."""
WHOLE = ("one", "none")
"""The old and the new value of a part that is removed."""
NESTED = ("partitions.aws", "partitions.gcp")
"""The sections within a part of the design, whose fields are compared one by one."""
SPELLING = {"cluster.trains": "enabled"}
"""Fields of the design that have another name in the stack file, where a key stands for several fields."""
WITH_INSTANCE_TYPE = frozenset(
    {"partitions.cpus", "partitions.memory_mib", "partitions.price_hour", "partitions.sockets"}
)
"""Fields that change together with a partition's instance type, or its threads."""


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
        gone: The nodes of a partition that is removed. Jobs of other partitions may be on them, too.
        owners: Whose jobs are affected, if not those of partitions or nodes.
        said: The change as text, if it is not one value that was another.
        sharing: The partitions that have the nodes of `partition`, too.
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
    gone: frozenset[str] = frozenset()
    owners: frozenset[Owner] = frozenset()
    said: str = ""
    sharing: frozenset[str] = frozenset()

    @property
    def deletes(self) -> bool:
        """Whether the change is refused without `--replace` even without jobs."""
        return self.kind in ALWAYS or bool(self.lost)

    def costs(self, job: Job) -> bool:
        """Return whether the job, running or pending, would be ended."""
        if self.kind not in JOBS or job.over or (self.kind is Kind.MOVED and job.pending):
            return False
        if self.owners:
            return any(owner.has(job) for owner in self.owners)
        if self.nodes:
            return job.touches(self.nodes)
        return self.partition is None or self.partition in job.partitions or job.touches(self.gone)

    def concerns(self, job: Job) -> str | None:
        """Return the consequence for a job, as text; `None` if the job is not affected."""
        if self.costs(job):
            if self.kind is Kind.MOVED:
                return "is queued again, unless it was submitted with --no-requeue"
            return "is lost" if job.pending else "ends"
        holds = not job.pending and not job.over and not job.partitions.isdisjoint(self.of_nodes())
        if self.kind is Kind.RENEWED and holds:
            return "goes on; its nodes are removed when it is over"
        return None

    def of_nodes(self) -> frozenset[str]:
        """Return the partitions with the nodes of the part that changes."""
        return self.sharing | {self.partition} if self.partition is not None else frozenset()

    def consequence(self) -> str:
        if self.owners:
            return JOBS_END if self.kind is Kind.ENDS else str(self.kind)
        return f"{self.kind}{f' ({self.note})' if self.note else ''}"

    def line(self) -> str:
        if self.said:
            return f"{self.said}: {self.consequence()}"
        if (self.was, self.will) == WHOLE:
            lost = "its contents are lost" if self.kind is Kind.DATA else self.consequence()
            return f"{self.part} is removed: {lost}"
        if (self.will, self.was) == WHOLE:
            return f"{self.part} is new: {self.consequence()}"
        part_of_cluster = self.part and not self.key.startswith("network.")
        key = self.key.partition(".")[2].removeprefix("*.") if part_of_cluster else ""
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
        """Return the key in the table for each field of the design."""
        return {name: key for key, row in self.table.items() for name in row.fields}


def compare(old: ClusterDesign, new: ClusterDesign, rules: Rules) -> list[Change]:
    """Return the differences, in the order of the table; if some make another cluster, only those.

    Args:
        old: The published design, which has the zones in which nodes may start.
        new: The design from the stack file.
    """
    before, after = parts(old), parts(new)
    changes: list[Change] = []
    for name in [*before, *(name for name in after if name not in before)]:
        section, part, was = before.get(name, ("", "", None))
        section, part, will = after.get(name, (section, part, None))
        if was is None or will is None:
            changes.append(_whole(section, part, was is None, will or was, new))
        else:
            changes += _fields(section, part, was, will, rules)
    changes += _renumbered(old, new)
    for rule in rules.more:
        changes += rule(old, new)
    changes += _shared(old, new)
    if old.state() is None or new.state() is None:
        changes = [
            replace(change, kind=Kind.HEAD) if change.kind in NEW_HEAD else change for change in changes
        ]
    if anew := [change for change in changes if change.kind is Kind.DATA and not change.part]:
        # Another cluster takes the place of this one, so what else differs has no effect on this one's jobs.
        changes = anew
    order = list(rules.table)
    complete = [
        replace(change, lost=_lost(change, old, rules), sharing=_sharing(change, old)) for change in changes
    ]
    return sorted(complete, key=lambda change: order.index(change.key))


def _renumbered(old: ClusterDesign, new: ClusterDesign) -> Iterator[Change]:
    """Yield a change for each user who would get another number: their files belong to the former one."""
    before = {user.name: user.id for user in old.users if user.id is not None}
    for user in new.users:
        if user.id is not None and (was := before.get(user.name, user.id)) != user.id:
            note = f"the files of {user.name} belong to {was}"
            yield Change("users", f"user {user.name}", Kind.NEVER, str(was), str(user.id), note, field="id")


def _lost(change: Change, old: ClusterDesign, rules: Rules) -> tuple[str, ...]:
    """Return the lines about what a change deletes of the cluster that is up."""
    if change.kind is Kind.HEAD:
        return rules.head(old, change.kind)
    if change.kind is not Kind.DATA:
        return ()
    for mount in old.mounts:
        if mount.path == change.part:
            return (files_of_mount(mount),) if is_own_disk(mount) else ()
    left = tuple(mount for mount in old.mounts if not rules.spared(mount, change.key))
    return (*files_of_cluster(replace(old, mounts=left)), *rules.head(old, change.kind))


def _sharing(change: Change, old: ClusterDesign) -> frozenset[str]:
    return frozenset(p.name for p in old.shared_partitions if p.nodes_of == change.partition)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why changes are refused.

    Attributes:
        code: The code of the error that says it.
        text: The changes with their costs, and what to do.
    """

    code: str
    text: str

    def __str__(self) -> str:
        return self.text


def refusal(
    found: Sequence[Change], jobs: Sequence[Job] | None, command: str = "up --replace"
) -> Refusal | None:
    """Return why these changes are refused; `None` if they are allowed.

    Args:
        jobs: The jobs that have not ended; `None` if they are not known.
        command: The command that makes them all the same, for the message.
    """
    if never := [change for change in found if change.kind is Kind.NEVER]:
        return Refusal("change.impossible", _because("this is not possible: put the old value back", never))
    if lost := [change for change in found if change.deletes]:
        why = _because(f"this deletes files. Save them first. `{command}` makes the change anyway", lost)
        ended = [job for job in jobs or () if any(change.costs(job) for change in lost)]
        return Refusal("change.deletes-files", "\n".join([why, *losses(lost), *listed(ended)]))
    costly = [change for change in found if change.kind in JOBS]
    if jobs is None:
        unknown = (
            "this would end jobs, and whether there are any is not known, because the cluster does not "
            f"answer. `{command}` makes the change anyway"
        )
        return Refusal("change.jobs-unknown", _because(unknown, costly)) if costly else None
    hit = [change for change in costly if any(change.costs(job) for job in jobs)]
    if not hit:
        return None
    why = f"this would end jobs that run or wait. Let them end first, or use `{command}`"
    ended = [job for job in jobs if any(change.costs(job) for change in hit)]
    return Refusal("change.ends-jobs", _because(why, hit, ended))


def losses(found: Sequence[Change]) -> list[str]:
    """Return what these changes delete, and the way that keeps it: lines below one heading, each once."""
    lines = dict.fromkeys(line for change in found for line in change.lost)
    return ["what is lost, and how to keep it:", *(f"  {line}" for line in lines)] if lines else []


def costly(found: Sequence[Change]) -> bool:
    return any(change.kind in JOBS or change.kind is Kind.NEVER for change in found)


def added_partitions(found: Sequence[Change]) -> frozenset[str]:
    return frozenset(
        change.partition
        for change in found
        if change.key == "partitions.name" and (change.will, change.was) == WHOLE and change.partition
    )


def removed_nodes(found: Sequence[Change]) -> frozenset[str]:
    return frozenset(node for change in found for node in (*change.nodes, *change.gone))


def removed_partition(name: str) -> Change:
    """Return the change for a partition that is not the stack file's, and loses all of its nodes."""
    return Change("partitions.name", f"partition {name}", Kind.ENDS, *WHOLE, partition=name)


def may_run_again(found: Sequence[Change], job: Job) -> bool:
    """Return whether a job that these changes end can run again: it requires nothing that is removed."""
    hit = [change for change in found if change.costs(job)]
    return all(
        change.kind is Kind.MOVED or (change.nodes and not job.requires(change.nodes)) for change in hit
    )


def holds(found: Sequence[Change]) -> tuple[str, frozenset[str] | None]:
    """Return what must not start while these changes are checked.

    Returns:
        The state for partitions (INACTIVE if pending jobs would be lost too, else DOWN), and the partitions;
        `None` means all of them.
    """
    hit = [change for change in found if change.kind in JOBS]
    stay = all(change.nodes or change.kind is Kind.MOVED for change in hit)
    state = "DOWN" if stay else "INACTIVE"
    names = frozenset(name for change in hit for name in change.of_nodes())
    return state, None if any(change.partition is None for change in hit) else names


def described(found: Sequence[Change], jobs: Sequence[Job] | None) -> list[dict[str, Any]]:
    """Return the changes with the consequence for each job, in the form of `./cluster plan --json`.

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
    by_name: dict[str, tuple[str, str, Any]] = {"": ("cluster", "", design)}
    by_name |= {name: (name, "", getattr(design, name)) for name in SECTIONS}
    for host in design.hosts:
        section = "controller" if host.role == "controller" else "login"
        by_name[f"host {host.name}"] = (section, host.name, host)
    for p in design.partitions:
        name = f"partition {p.name}" if p.pool is None else f"pool {p.name}"
        by_name[name] = ("partitions", name, p)
    for shared in design.shared_partitions:
        by_name[f"shared partition {shared.name}"] = ("partitions", f"partition {shared.name}", shared)
    by_name |= {f"mount {m.path}": ("storage", m.path, m) for m in design.mounts}
    return by_name


def _whole(section: str, part: str, added: bool, which: Any, new: ClusterDesign) -> Change:
    """Return the change for a part that is added or removed.

    Args:
        which: The part itself.
        new: The design from the stack file.
    """
    words = WHOLE[::-1] if added else WHOLE
    if section == "partitions":
        kind = Kind.LIVE if added else Kind.ENDS
        own = isinstance(which, Partition)
        gone = frozenset() if added or not own else frozenset(which.nodes())
        name = which.slurm_name
        # Waiting jobs of a partition that stays get nodes of other pools.
        nodes = gone if name in new.slurm_partitions() else frozenset()
        return Change("partitions.name", part, kind, *words, partition=name, nodes=nodes, gone=gone)
    if section == "login":
        return Change("login.count", part, Kind.LIVE, *words)
    if section == "storage":
        if which.kind in BUCKETS:
            return Change("storage.buckets", part, Kind.NODES, *words)
        if which.kind == "disk":
            return Change("controller.state", part, Kind.LIVE if added else Kind.DATA, *words)
        if which.kind == "nvme":
            # Nodes with it have another TmpDisk in slurm.conf.
            return Change("storage.local_scratch", part, Kind.RENEWED, *words)
        # What is there already stays.
        kind = Kind.NODES if added or which.existing is not None else Kind.DATA
        return Change("storage.*.path", part, kind, *words)
    return Change("scheduler", part, Kind.DATA, *words)


def _shared(old: ClusterDesign, new: ClusterDesign) -> Iterator[Change]:
    """Yield what differs in accounts, users and QOS."""
    for one in sharing.differences(old, new):
        kind = Kind.ENDS if one.removed else Kind.LIVE
        yield Change(one.key, "", kind, one.was, one.will, owners=one.removed, said=one.text)


def _fields(section: str, part: str, was: Any, will: Any, rules: Rules) -> Iterator[Change]:
    keys = rules.keys()
    retyped = isinstance(was, Partition) and (
        (was.instance_type, was.threads_per_core) != (will.instance_type, will.threads_per_core)
    )
    for path, old, new in values(section, was, will):
        name = path.rpartition(".")[2]
        if (
            old == new
            or path not in keys
            or path in sharing.FIELDS
            or (retyped and path in WITH_INSTANCE_TYPE)
        ):
            continue
        key, row = keys[path], rules.table[keys[path]]
        less = isinstance(old, int | float) and isinstance(new, int | float) and new < old
        kind, note = (row.less if less and row.less else row.kind), row.note
        if section == "storage":
            if {was.kind, will.kind} & set(BUCKETS):
                key, kind, note = "storage.buckets", Kind.NODES, ""
            elif "nvme" in (was.kind, will.kind):
                key, kind, note = "storage.local_scratch", Kind.NODES, ""
            elif was.kind != will.kind and name != "kind":
                continue  # the change of the kind says it already
            else:
                kind = rules.mount(was, name, kind)
        partition = was.slurm_name if section == "partitions" else None
        detail = SPELLING.get(path, name) if len(row.fields) > 1 else ""
        gone = frozenset(was.nodes()) - frozenset(will.nodes()) if path == "partitions.max" else frozenset()
        yield Change(key, part, kind, *texts(old, new), note, partition, detail, gone)


def values(section: str, was: Any, will: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield the path of each field of a part, with its old and its new value."""
    for field in fields(was):
        path = f"{section}.{field.name}"
        old, new = getattr(was, field.name), getattr(will, field.name)
        if path in NESTED:
            yield from values(path, old, new)
        else:
            yield path, old, new


def texts(old: Any, new: Any) -> tuple[str, str]:
    """Return two values as texts for users; of things with names only those that differ."""
    both = isinstance(old, tuple) and isinstance(new, tuple)
    if not both or not all(hasattr(item, "name") for item in (*old, *new)):
        return text(old), text(new)
    before, after = ({item.name: item for item in value} for value in (old, new))
    was = [name for name, item in before.items() if after.get(name) != item]
    will = [name for name, item in after.items() if before.get(name) != item]
    changed = [f"{name} (changed)" if name in before else name for name in will]
    return ", ".join(was) or "none", ", ".join(changed) or "none"


def text(value: Any) -> str:
    """Return a value as text for users."""
    if value is None or value in ((), ""):
        return "none"
    if isinstance(value, bool):
        return str(value).lower()  # as a stack file has it
    if isinstance(value, dict):
        return ", ".join(f"{key}: {item}" for key, item in value.items()) or "none"
    if isinstance(value, tuple):
        return ", ".join(
            item if isinstance(item, str) else str(getattr(item, "source", item)) for item in value
        )
    kind = getattr(value, "type", None)
    return f"{value.count} × {kind}" if kind else str(value)


OWN_DISKS = ("nfs", "disk", "efs", "filestore", "fsx_lustre")
"""The kinds of mounts whose disk or file system is a resource of the cluster, if they are not `existing`."""
LOCAL_FILES = (
    "the cluster's folder on this machine, with what users and jobs have written there: copy what you need "
    "to another folder first"
)
ACCOUNTING_FILES = (
    "the accounting that `sacct` shows: it is on the controller's own disk; save it first with `./cluster "
    "backup`, and restore it into the new controller with `./cluster restore`"
)
BACK_AGAIN = "then make this change, name it with `restore`, and run `up`"


def is_own_disk(mount: Mount) -> bool:
    """Return whether the files of a mount are on a disk or a file system that the cluster has made."""
    return mount.kind in OWN_DISKS and mount.existing is None


def files_of_mount(mount: Mount) -> str:
    """Return the line about the files of a mount that a change deletes: which, how much, how to keep them."""
    size = "" if mount.size_gib is None else f", {mount.size_gib} GiB"
    what = "Slurm's state: queue and accounting" if mount.kind == "disk" else mount.kind
    return f"{mount.path} ({what}{size}): {way_to_keep(mount)}"


def files_of_cluster(design: ClusterDesign) -> Iterator[str]:
    """Yield the lines about all files of a cluster that another one takes the place of."""
    if design.provider == "local":
        yield LOCAL_FILES
    yield from (files_of_mount(mount) for mount in design.mounts if is_own_disk(mount))


def files_on_head(design: ClusterDesign) -> tuple[str, ...]:
    """Return the lines about what is on the controller's root disk besides its queue.

    A change says the end of the queue by its kind. What has a disk of its own is not there.
    """
    return (ACCOUNTING_FILES,) if design.slurm.accounting and design.state() is None else ()


def way_to_keep(mount: Mount) -> str:
    """Say how the files of a mount can be kept when its disk or file system goes (docs/storage.md)."""
    if mount.keep:
        return "it stays, because of `keep: true`, but is not used any more; `existing` takes it back"
    if mount.kind in ("nfs", "disk"):
        return _saved(mount, "a snapshot", "snap-…, or its name")
    if mount.kind == "efs":
        return (
            "add `keep: true`, put the old values back and run `up`; then make this change, and name it with "
            "`existing`"
        )
    if mount.kind == "filestore":
        return (
            "make a backup with `gcloud filestore backups create`, restore it to an instance of your own, "
            "and name that with `existing`"
        )
    return _of_lustre(mount)


def _of_lustre(mount: Mount) -> str:
    if mount.s3_export is not None:
        return (
            f"what is exported to {mount.s3_export} stays there, and with that as `s3_import` the new one "
            "shows it; export or copy the rest first (`lfs hsm_state` names what is not archived)"
        )
    if (mount.deployment or "").startswith("PERSISTENT") and mount.s3_import is None:
        return _saved(mount, "a backup", "backup-…")
    return "this kind has no backup: copy its files to S3 or to another directory first"


def _saved(mount: Mount, what: str, name: str) -> str:
    """Return the way by a snapshot or backup, which a destroy makes and `restore` begins with."""
    how = (
        "run `down`, which makes {} ({})"
        if mount.snapshot
        else ("add `snapshot: true`, put the old values back, run `up` and then `down`, which makes {} ({})")
    )
    return f"{how.format(what, name)}; {BACK_AGAIN}"
