"""What people change in Slurm at run time, and slurmctld forgets when it starts, for slurm.conf. Pure.

slurmctld saves jobs, states of nodes, reservations and triggers itself. For partitions, for weights and
features of nodes, and for its own options it believes slurm.conf at each start: a partition that somebody has
created is gone then, and its jobs end. `slurmctld -R` would take partitions from its saved state, but also
hardware of nodes that has changed since, and partitions that the stack file does not have any more.

So what slurmctld has is compared with what the stack file says (`compare`), and the differences are recorded
beside slurmctld's state, where backups and a new head find them. slurm.conf gets them before each start
(`merge`). A key that has changed in the stack file since is stronger than a difference from its former value.

Slurm's traps (docs/internals/slurm_traps.md): runtime-changes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from types import MappingProxyType

from node.slurm.hostlist import expand, fold
from node.slurm.states import NodeState

FILE = "slurm-stacks-runtime.json"
"""The record, in slurmctld's folder of saved state."""

Fields = Mapping[str, str]
"""Options of a partition, a node or slurmctld, in one spelling for each value (`_partition`)."""

# What `scontrol show partition` prints of an option that nobody has set. Every release prints some of these.
_UNSET = {
    "AllowGroups": "ALL", "AllowAccounts": "ALL", "DenyAccounts": "", "AllowQos": "ALL", "DenyQos": "",
    "AllocNodes": "ALL", "Alternate": "", "CpuBind": "", "QoS": "N/A", "DefaultTime": "NONE",
    "DisableRootJobs": "NO", "Exclusive": "NO", "ExclusiveUser": "NO", "ExclusiveTopo": "NO",
    "GraceTime": "0", "Hidden": "NO", "MaxNodes": "UNLIMITED", "MinNodes": "0", "LLN": "NO",
    "MaxCPUsPerNode": "UNLIMITED", "MaxCPUsPerSocket": "UNLIMITED", "PriorityJobFactor": "1",
    "PriorityTier": "1", "RootOnly": "NO", "ReqResv": "NO", "OverTimeLimit": "NONE", "PreemptMode": "OFF",
    "SelectTypeParameters": "NONE", "JobDefaults": "(null)", "TRESBillingWeights": "",
    "ResumeTimeout": "GLOBAL", "SuspendTimeout": "GLOBAL", "SuspendTime": "GLOBAL", "PowerDownOnIdle": "NO",
    "Topology": "", "NodeSets": "", "Default": "NO", "MaxTime": "UNLIMITED", "OverSubscribe": "NO",
    "State": "UP", "Nodes": "",
}  # fmt: skip
_MEMORY = {"DefMem": ("DefMemPerCPU", "DefMemPerNode"), "MaxMem": ("MaxMemPerCPU", "MaxMemPerNode")}
"""Options that exclude each other -> both of them. Their value here is `DefMemPerCPU=100`."""
_NO_MEMORY = "UNLIMITED"
_OF_GPUS = {"DefCPUPerGPU": "DefCpuPerGPU", "DefMemPerGPU": "DefMemPerGPU"}
"""Options of slurm.conf -> how scontrol names them within JobDefaults."""
_NO_VALUES = ("", "N/A", "NONE", "GLOBAL", "(null)")
"""What scontrol prints where there is no value. slurm.conf takes none of these."""

SETS = frozenset({"Feature", "DebugFlags", "SuspendExcNodes", "SuspendExcParts", "SuspendExcStates"})
"""Options that are lists. What people have added or removed is kept if the stack file's list changes."""
CONTROLLER = {
    "DebugFlags": "", "SlurmctldDebug": "info", "SlurmSchedLogLevel": "0", "FairShareDampeningFactor": "1",
    "SuspendExcNodes": "", "SuspendExcParts": "", "SuspendExcStates": "",
}  # fmt: skip
"""slurmctld's options that scontrol changes, with Slurm's defaults."""

# What slurm.conf can hold. Who writes the record must not be able to write any other line there.
_SIMPLE = re.compile(r"[A-Za-z0-9._+@:,/%*()\[\]-]+")
_PLAIN = re.compile(r"[^\s#\"'\\]+")
_JOB_DEFAULTS = re.compile(r"Def\w+PerGPU=[0-9]+(,Def\w+PerGPU=[0-9]+)*", re.ASCII)
_DEFAULTS = "DEFAULT"
"""The name whose line in slurm.conf, in any case, has defaults of the lines after it, and is no partition."""
_QUOTABLE = re.compile(r"[^\x00-\x1f\x7f\x85\u2028\u2029\"\\]+")


@dataclass(frozen=True, slots=True)
class Difference:
    """An option that somebody has changed at run time.

    Attributes:
        was: What the stack file said then.
        now: What it is.
    """

    was: str
    now: str


@dataclass(frozen=True, slots=True)
class Record:
    """What people have changed.

    Attributes:
        own: The partitions that people have created, with their options.
        partitions: Partition of the stack file -> option -> difference.
        nodes: Node -> option (Feature, Weight, CpuBind) -> difference.
        controller: Option of slurmctld -> difference.
        closed: Partition -> the state that a command of ours has given it (`node.slurm.closing`), which is
            nobody's wish.
    """

    own: dict[str, dict[str, str]] = field(default_factory=dict)
    partitions: dict[str, dict[str, Difference]] = field(default_factory=dict)
    nodes: dict[str, dict[str, Difference]] = field(default_factory=dict)
    controller: dict[str, Difference] = field(default_factory=dict)
    closed: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Designed:
    """What slurm.conf says without what people have changed.

    Attributes:
        partitions: Partition -> options.
        nodes: Node -> Feature, Weight and CpuBind.
        controller: slurmctld's options.
    """

    partitions: Mapping[str, Fields]
    nodes: Mapping[str, Fields]
    controller: Fields


@dataclass(frozen=True, slots=True)
class Kept:
    """What the next slurm.conf says instead of the stack file, or besides it.

    Attributes:
        own: Partitions that people have created.
        partitions: Partition of the stack file -> option -> value.
        nodes: Node -> option -> value.
        controller: Option of slurmctld -> value.
        replaced: For each change of people's that ends now, a sentence that says so.
    """

    own: Mapping[str, Fields] = field(default_factory=dict)
    partitions: Mapping[str, Fields] = field(default_factory=dict)
    nodes: Mapping[str, Fields] = field(default_factory=dict)
    controller: Fields = field(default_factory=dict)
    replaced: Sequence[str] = ()

    def groups(self, nodes: Iterable[str]) -> Iterator[tuple[list[str], Fields]]:
        """Group neighbours with the same changes. Each group is a line."""
        group: list[str] = []
        last: Fields = {}
        for node in nodes:
            changes = self.nodes.get(node, {})
            if group and changes != last:
                yield group, last
                group = []
            group.append(node)
            last = changes
        if group:
            yield group, last


NOTHING = Kept()


# What slurmctld has.


def shown_partitions(text: str) -> dict[str, Fields]:
    """Parse the output of `scontrol show partitions --all --oneliner`."""
    shown: dict[str, Fields] = {}
    for line in text.split("\n"):
        words = _words(line)
        if name := words.pop("PartitionName", ""):
            shown[name] = partition(words)
    return shown


def shown_nodes(nodes: Mapping[str, NodeState]) -> dict[str, Fields]:
    """Return what people can change of nodes."""
    return {
        name: _node_fields(node.features, node.weight, node.cpu_bind)
        for name, node in nodes.items()
        if node.weight
    }


@lru_cache(maxsize=1024)  # of thousands of nodes most have the same
def _node_fields(features: str, weight: str, cpu_bind: str) -> Fields:
    return MappingProxyType({"Feature": features, "Weight": weight, "CpuBind": cpu_bind})


def shown_controller(text: str) -> Fields:
    """Parse slurmctld's options in the output of `scontrol show config`. It may lack some."""
    shown = {}
    for line in text.split("\n"):
        key, _, value = line.partition("=")
        if key.strip() in CONTROLLER:
            shown[key.strip()] = "" if value.strip() in ("(null)", "N/A") else value.strip()
    return shown


def _words(line: str) -> dict[str, str]:
    """Return the options of a line. A word without `=` belongs to the value before it."""
    words: dict[str, str] = {}
    last = ""
    for word in line.strip().split(" "):
        key, separator, value = word.partition("=")
        if separator:
            last = key
            words[key] = value
        elif word and last:
            words[last] += f" {word}"
    return words


def partition(options: Mapping[str, object]) -> dict[str, str]:
    """Return a partition's options in one spelling for each value, without those that nobody has set.

    Args:
        options: Options as slurm.conf or `scontrol show partition` have them.
    """
    texts = {key: str(value) for key, value in options.items()}
    if texts.get("Exclusive") == "NODE":  # 26.05
        texts |= {"Exclusive": "NO", "OverSubscribe": "EXCLUSIVE"}
    elif texts.get("Exclusive") == "TOPO":
        texts["OverSubscribe"] = "NO"
    for key in ("MaxTime", "DefaultTime"):
        if key in texts:
            texts[key] = _minutes(texts[key])
    texts["Nodes"] = _nodes(texts.get("Nodes", ""))
    # scontrol shows what slurm.conf has as options of their own in one.
    if defaults := [f"{word}={texts.pop(key)}" for key, word in _OF_GPUS.items() if key in texts]:
        texts["JobDefaults"] = ",".join(defaults)
    fields = {key: value for key, value in texts.items() if value != _UNSET.get(key, value)}
    for name, keys in _MEMORY.items():
        for key in keys:
            if texts.get(key, _NO_MEMORY) not in (_NO_MEMORY, "0"):
                fields[name] = f"{key}={texts[key]}"
    return fields


def _minutes(text: str) -> str:
    """Return a time limit in minutes; text that is no time stays."""
    if text.upper() in ("INFINITE", "UNLIMITED"):
        return "UNLIMITED"
    days, dash, rest = text.rpartition("-")
    parts = rest.split(":")
    if not all(part.isdigit() for part in (*parts, days or "0")) or len(parts) > 3:
        return text
    numbers = [int(part) for part in parts]
    if dash:
        hours, minutes, seconds = (*numbers, 0, 0)[:3]
    elif len(numbers) == 3:
        hours, minutes, seconds = numbers
    else:
        hours, minutes, seconds = 0, *(*numbers, 0)[:2]
    return str(int(days or 0) * 1440 + hours * 60 + minutes + (seconds > 0))


@lru_cache(maxsize=256)  # each pass asks for each partition, which may have tens of thousands
def _nodes(text: str) -> str:
    if text in ("", "(null)"):
        return ""
    try:
        return fold(expand(text))
    except ValueError:  # a spelling that only Slurm knows
        return text


def nodes_of(options: Fields) -> list[str]:
    """Return the nodes of a partition; none if only Slurm knows the spelling."""
    try:
        return expand(options.get("Nodes", ""))
    except ValueError:
        return []


def start_time(text: str) -> int | None:
    """Return when slurmctld started, in seconds since 1970, from the output of `scontrol show config`."""
    match = re.search(r"^BOOT_TIME\s*= (\d+)$", text, re.MULTILINE)
    return int(match[1]) if match else None


# Which of it people have changed.


def compare(
    shown: Designed,
    designed: Designed,
    before: Record,
    closed: Callable[[str], bool] = lambda _name: False,
    marked: Mapping[str, str] = MappingProxyType({}),
) -> Record:
    """Return what people have changed.

    Args:
        shown: What slurmctld has.
        designed: What its slurm.conf said without what people had changed.
        before: The last record.
        closed: Whether the elastic daemon itself has closed a partition for a moment: its state is nobody's
            wish.
        marked: Partition -> the state that a command's mark says (`node.slurm.closing`).
    """
    own, partitions = {}, {}
    by_command = {
        name: state
        for name, state in marked.items()
        if name in shown.partitions and shown.partitions[name].get("State", _UNSET["State"]) == state
    }
    for name, options in shown.partitions.items():
        ours = closed(name) or name in by_command
        if name in designed.partitions:
            changes = _differences(designed.partitions[name], options, _UNSET)
            if ours:
                changes.pop("State", None)
                if (state := before.partitions.get(name, {}).get("State")) is not None:
                    changes["State"] = state
            if changes:
                partitions[name] = changes
        else:
            own[name] = dict(options)
            if ours:
                own[name].pop("State", None)
                if (before_closed := before.own.get(name, {}).get("State")) is not None:
                    own[name]["State"] = before_closed
    nodes = dict(_changed_nodes(shown.nodes, designed.nodes))
    present = {key: value for key, value in designed.controller.items() if key in shown.controller}
    return Record(own, partitions, nodes, _differences(present, shown.controller, CONTROLLER), by_command)


def _changed_nodes(
    shown: Mapping[str, Fields], designed: Mapping[str, Fields]
) -> Iterator[tuple[str, dict[str, Difference]]]:
    # Thousands of nodes share a few objects, so a pair that has no difference is compared once.
    same: set[tuple[int, int]] = set()
    for name, options in shown.items():
        if (was := designed.get(name)) is None or (id(was), id(options)) in same:
            continue
        if changes := _differences(was, options, {}):
            yield name, changes
        else:
            same.add((id(was), id(options)))


def _differences(was: Fields, now: Fields, unset: Fields) -> dict[str, Difference]:
    return {
        key: Difference(was.get(key, unset.get(key, "")), now.get(key, unset.get(key, "")))
        for key in sorted({*was, *now})
        if not _same(key, was.get(key, unset.get(key, "")), now.get(key, unset.get(key, "")))
    }


def _same(key: str, one: str, other: str) -> bool:
    if key == "DebugFlags":  # slurm.conf may have them in any case
        one, other = one.lower(), other.lower()
    return one == other or (key in SETS and set(_members(key, one)) == set(_members(key, other)))


def _members(key: str, text: str) -> list[str]:
    if key == "SuspendExcNodes":
        try:
            return expand(text)
        except ValueError:  # `node[1-4]:2` keeps two of them
            pass
    return [member for member in text.split(",") if member]


def news(before: Record, record: Record) -> Iterator[str]:
    """Yield a line for each change that is new."""
    for name in sorted(record.own.keys() - before.own.keys()):
        yield f"partition {name} was made at run time: slurmctld keeps it when it starts"
    for name in sorted(before.own.keys() - record.own.keys()):
        yield f"partition {name}, made at run time, is no more"
    whole = (("partition", before.partitions, record.partitions), ("node", before.nodes, record.nodes))
    for kind, old, new in whole:
        for name, changes in sorted(new.items()):
            yield from _news(f"{kind} {name}", old.get(name, {}), changes)
    yield from _news("slurmctld", before.controller, record.controller)


def _news(what: str, old: Mapping[str, Difference], new: Mapping[str, Difference]) -> Iterator[str]:
    for key, change in new.items():
        if old.get(key) != change:
            yield f"{what}: {key} is {change.now!r} at run time, and {change.was!r} by the stack file"


def commands(record: Record, shown: Designed) -> Iterator[tuple[str, ...]]:
    """Yield scontrol's words that set again what people have changed, where slurmctld has something else."""
    for name, present in shown.partitions.items():
        wanted = dict(record.own.get(name, present))
        wanted |= {key: change.now for key, change in record.partitions.get(name, {}).items()}
        # Slurm itself keeps states (KeepPartInfo), and a command may have opened a partition meanwhile.
        changes = {
            key: value
            for key, value in wanted.items()
            if value and key != "State" and present.get(key) != value
        }
        if changes:
            yield ("update", f"PartitionName={name}", *_arguments(changes))
    alike: dict[tuple[str, ...], list[str]] = {}
    for name, differences in record.nodes.items():
        present = shown.nodes.get(name, {})
        words = tuple(
            f"{option}={change.now}"
            for key, change in differences.items()
            if key in present and not _same(key, present[key], change.now)
            for option in _NODE_UPDATES.get(key, ())
        )
        if words:
            alike.setdefault(words, []).append(name)
    for words, names in alike.items():
        yield ("update", f"NodeName={fold(names)}", *words)
    for key, change in record.controller.items():
        if key in shown.controller and not _same(key, shown.controller[key], change.now):
            yield from _set(key, shown.controller[key], change.now)


def _arguments(changes: Fields) -> Iterator[str]:
    """Return options as `scontrol update` has them."""
    for key, value in changes.items():
        if key in _MEMORY:
            yield value
        elif key in _UNSET:
            yield f"{key}={value}"


_NODE_UPDATES = {
    # Slurm refuses features of which not all active ones are available.
    "Feature": ("AvailableFeatures", "ActiveFeatures"),
    "Weight": ("Weight",),
    "CpuBind": ("CpuBind",),
}


def _set(key: str, present: str, wanted: str) -> Iterator[tuple[str, ...]]:
    if key == "DebugFlags":
        was, will = _members(key, present), _members(key, wanted)
        yield from (("setdebugflags", f"+{flag}") for flag in will if flag not in was)
        yield from (("setdebugflags", f"-{flag}") for flag in was if flag not in will)
    elif key in _VERBS:
        yield (_VERBS[key], wanted)
    else:
        yield ("update", f"{key}={wanted}")


_VERBS = {
    "SlurmctldDebug": "setdebug",
    "SlurmSchedLogLevel": "schedloglevel",
    "FairShareDampeningFactor": "fsdampeningfactor",
}


# What the next slurm.conf says.


def merge(record: Record, designed: Designed) -> Kept:
    """Return what the next slurm.conf keeps of the changes.

    Partitions of people's lose the nodes that the cluster does not have any more.
    """
    replaced: list[str] = []
    partitions = {
        name: _merged(f"partition {name}", changes, designed.partitions[name], replaced)
        for name, changes in record.partitions.items()
        if name in designed.partitions
    }
    own: dict[str, Fields] = {}
    known = frozenset(designed.nodes)
    for name, options in record.own.items():
        if name in designed.partitions:
            replaced.append(f"partition {name} was made at run time: it is now the stack file's")
        elif (
            not _QUOTABLE.fullmatch(name)
            or name.upper() == _DEFAULTS
            or not all(_can_hold(key, value) for key, value in options.items())
        ):
            replaced.append(f"partition {name!r} was made at run time, and slurm.conf cannot hold it")
        else:
            own[name] = _with_nodes(name, options, known, replaced)
    _one_default(record, designed, partitions, own)
    nodes = {
        name: changes
        for name, differences in record.nodes.items()
        if name in known and (changes := _merged(f"node {name}", differences, designed.nodes[name], replaced))
    }
    controller = _merged("slurmctld", record.controller, designed.controller, replaced)
    return Kept(own, partitions, nodes, controller, replaced)


def with_closed(kept: Kept, designed: Designed, closed: Fields) -> Kept:
    """Return what the next slurm.conf keeps, with partitions that a command has closed as closed as they are.

    Args:
        closed: Partition -> its state.
    """
    if not closed:
        return kept
    partitions = {**kept.partitions} | {
        name: {**kept.partitions.get(name, {}), "State": state}
        for name, state in closed.items()
        if name in designed.partitions
    }
    own = {
        name: {**options, "State": closed[name]} if name in closed else options
        for name, options in kept.own.items()
    }
    return replace(kept, own=own, partitions=partitions)


def _merged(
    what: str, changes: Mapping[str, Difference], designed: Fields, replaced: list[str]
) -> dict[str, str]:
    kept = {}
    for key, change in changes.items():
        will = designed.get(key, _UNSET.get(key, CONTROLLER.get(key, "")))
        if key in SETS:
            value = _with_members(key, will, change)
        elif _same(key, will, change.was):
            value = change.now
        else:
            if not _same(key, will, change.now):
                replaced.append(
                    f"{what}: {key} was {change.now} at run time: the stack file's {will} replaces it"
                )
            continue
        if _can_hold(key, value):
            kept[key] = value
        else:
            replaced.append(f"{what}: slurm.conf cannot hold {key}={value!r}, which somebody has set")
    return kept


def _with_members(key: str, will: str, change: Difference) -> str:
    """Return a list of the stack file's with what people have added, and without what they have removed."""
    if _same(key, will, change.was):
        return change.now
    was, now = _members(key, change.was), _members(key, change.now)
    members = dict.fromkeys(m for m in _members(key, will) if m in now or m not in was)
    return ",".join(members | dict.fromkeys(m for m in now if m not in was))


def _with_nodes(name: str, options: Fields, known: Collection[str], replaced: list[str]) -> Fields:
    if options.get("NodeSets") == "ALL":
        return {**options, "Nodes": fold(known)}
    nodes = nodes_of(options)
    if gone := [node for node in nodes if node not in known]:
        replaced.append(
            f"partition {name}, made at run time, loses {fold(gone)}, which the cluster has no more"
        )
    return {**options, "Nodes": fold(node for node in nodes if node in known)}


def _one_default(
    record: Record, designed: Designed, partitions: dict[str, dict[str, str]], own: dict[str, Fields]
) -> None:
    """Have one default partition: that of people, or the stack file's if it has changed since."""
    changed = any(
        designed.partitions.get(name, {}).get("Default", "NO") != changes["Default"].was
        for name, changes in record.partitions.items()
        if "Default" in changes
    )
    elsewhere = any(
        options.get("Default") == "YES" and "Default" not in record.partitions.get(name, {})
        for name, options in designed.partitions.items()
    )
    if changed or elsewhere:
        for kept in partitions.values():
            kept.pop("Default", None)
        for name, options in own.items():
            own[name] = {key: value for key, value in options.items() if key != "Default"}


def _can_hold(key: str, value: str) -> bool:
    """Return whether slurm.conf can hold an option, and the program knows it."""
    if key in _MEMORY:
        option, _, amount = value.partition("=")
        return value == "" or (option in _MEMORY[key] and amount.isdecimal())
    if key == "JobDefaults":
        return value in _NO_VALUES or _JOB_DEFAULTS.fullmatch(value) is not None
    if key in _UNSET:
        return value == "" or _QUOTABLE.fullmatch(value) is not None
    return (key in CONTROLLER or key in _NODE_UPDATES) and (
        value == "" or _PLAIN.fullmatch(value) is not None
    )


def lines(options: Fields) -> Iterator[tuple[str, str]]:
    """Return options as slurm.conf has them. Options that this program does not know are left out."""
    for key, value in options.items():
        if key in _MEMORY:
            option, _, amount = value.partition("=")
            # Without a limit, the number is 0. An option must be there all the same, to replace another one.
            yield (option, amount) if value else (_MEMORY[key][1], "0")
        elif key == "JobDefaults":
            for default in value.split(","):
                option, _, amount = default.partition("=")
                yield option, amount
        elif key == "Nodes" and options.get("NodeSets") == "ALL":
            yield key, "ALL"  # the partition has the nodes that come later, too
        elif key in _UNSET and key != "NodeSets" and value not in _NO_VALUES:
            yield key, spelled(value)


def spelled(value: str) -> str:
    """Return a value as slurm.conf has it: quoted unless it is simple, and no part of it is a comment."""
    return value if _SIMPLE.fullmatch(value) else '"{}"'.format(value.replace("#", "\\#"))


def replaced(
    options: Iterable[tuple[str, object]], changes: Iterable[tuple[str, object]]
) -> list[tuple[str, object]]:
    """Return options with changes in their places. Those that exclude a new one are left out."""
    new = dict(changes)
    excluded = {
        key for keys in _MEMORY.values() for key in keys if not new.keys().isdisjoint(keys)
    } - new.keys()
    result = [(key, new.pop(key, value)) for key, value in options if key not in excluded]
    return [*result, *new.items()]
