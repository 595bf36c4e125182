"""What an engine would replace or delete between two plans of a stack, by the providers' own rules.

It judges as the engine's step generator does (pkg/resource/deploy/step_generator.go of pulumi/pulumi at
1b594989): a resource is replaced if a property that forces it has another value, or gets its value from a
resource that is replaced itself, unless the resource ignores changes of that property.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from cli.engine import plan, program, project
from infra.program.stack import Stack
from node.design.model import ClusterDesign
from node.design.published import parse_settings
from tests.support import replacing_rules
from tests.support.checkout import ROOT
from tests.support.replacing_rules import HOLDS, at, differs
from tests.support.stack_values import values


@dataclass(frozen=True)
class Declared:
    """A resource as the program registered it.

    Attributes:
        after: the URNs that it depends on in any way.
        from_: property -> the URNs from which its value comes.
        timeouts: operation -> the minutes that it may take; only what is not the provider's own limit.
    """

    urn: str
    type: str
    name: str
    inputs: Mapping[str, Any]
    after: frozenset[str]
    from_: Mapping[str, frozenset[str]]
    ignores: tuple[str, ...]
    deleted_first: bool
    stays: bool
    parent: str = ""
    custom: bool = True
    timeouts: Mapping[str, int] = field(default_factory=dict)

    def forcing(self) -> list[str]:
        """The properties that are set here and whose change replaces it."""
        names = replacing_rules.forcing(self.type)
        return sorted(name for name in names if next(at(self.inputs, name), None) is not None)


@dataclass(frozen=True)
class Run:
    """All resources of a plan, by URN, in the order in which they were registered."""

    declared: dict[str, Declared] = field(default_factory=dict)

    def named(self, end: str) -> Declared:
        (found,) = (one for one in self.declared.values() if one.name.endswith(end))
        return found

    def exported(self) -> list[dict[str, Any]]:
        """Return the resources of the stack once it is up, as far as the CLI exports what the plan says."""
        return [
            {"urn": one.urn, "type": one.type, "custom": one.custom, "parent": one.parent}
            for one in self.declared.values()
        ]

    def published(self, fallback: ClusterDesign) -> ClusterDesign:
        """The design that machines on AWS would read, with the zones that were chosen.

        The SDK of Google Cloud counts the content of an object as a secret, so there it is the fallback.
        """
        for one in self.declared.values():
            if one.type == "aws:s3/bucketObjectv2:BucketObjectv2" and one.name.endswith("-settings"):
                return parse_settings(str(one.inputs["content"])).design
        return fallback


Canned = Callable[[str, Mapping[str, Any]], Mapping[str, Any] | None]


class _Recorder(plan.Recorder):
    def __init__(self, settings: project.Project, canned: Canned | None) -> None:
        super().__init__(settings, canned)
        self.run = Run()

    def RegisterResource(self, request: Any) -> Any:  # noqa: N802  the protocol's name
        answer = super().RegisterResource(request)
        from_ = {name: frozenset(deps.urns) for name, deps in request.propertyDependencies.items()}
        self.run.declared[answer.urn] = Declared(
            answer.urn,
            request.type,
            request.name,
            self.planned[answer.urn]["inputs"],
            frozenset(request.dependencies),
            from_,
            tuple(request.ignoreChanges),
            request.deleteBeforeReplace,
            request.retainOnDelete,
            request.parent,
            request.custom,
            {
                verb: _minutes(text)
                for verb in ("create", "update", "delete")
                if (text := getattr(request.customTimeouts, verb))
            },
        )
        return answer


def _minutes(text: str) -> int:
    """The minutes of a duration as the engine reads it: 90m, 6h."""
    return int(text[:-1]) * {"m": 1, "h": 60}[text[-1]]


def run(config: Mapping[str, Any], folder: Path, name: str = "test", canned: Canned | None = None) -> Run:
    """Run the project's program with this configuration."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in ("Pulumi.yaml", "__main__.py"):
        (folder / file).write_bytes((ROOT / file).read_bytes())
    stack = Stack(folder, name)
    stack.file.write_text(yaml.safe_dump({"config": dict(config)}))
    recorder = _Recorder(project.load(stack), canned)
    program.run(
        recorder,
        mode_="plan",
        preview=False,
        on_event=lambda _event: None,
        transformation=recorder.learn_class,
    )
    return recorder.run


def _answer(token: str, arguments: Mapping[str, Any]) -> Mapping[str, Any] | None:
    match token.rpartition(":")[2]:
        case "getInstanceTypeOfferings":
            return {"locations": ["us-east-1a", "us-east-1b"]}
        case "getSubnets":
            return {"ids": []}
        case "getSubnet":
            return {"id": arguments["id"], "availabilityZone": f"us-east-1{arguments['id'][-1]}"}
    return None


def of_stack(stack: str, changes: dict[str, Any]) -> Run:
    """Plan one of the small stacks of `stack_values` with changes, on a cloud of two zones."""
    with tempfile.TemporaryDirectory() as folder:
        return run(values(stack, changes), Path(folder), canned=_answer)


def forced(old: Declared, new: Declared, replaced: Mapping[str, Any]) -> list[str]:
    """The properties that force the replacement of a resource.

    Args:
        replaced: the URNs that are replaced already.
    """
    return sorted(
        name
        for name in replacing_rules.fixed(new.type, old.inputs, new.inputs)
        if not _ignored(name, new)
        and (
            differs(name, old.inputs, new.inputs)
            or new.from_.get(name.split(".")[0], frozenset()) & replaced.keys()
        )
    )


def _ignored(name: str, one: Declared) -> bool:
    """Whether a resource ignores changes of a property, itself or as a part of another."""
    return any(name == ignored or name.startswith((f"{ignored}.", f"{ignored}[")) for ignored in one.ignores)


def replaced(before: Run, after: Run) -> dict[str, list[str]]:
    """URN -> the properties that force its replacement."""
    found: dict[str, list[str]] = {}
    while True:
        more = {
            urn: why
            for urn, new in after.declared.items()
            if urn not in found
            and urn in before.declared
            and (why := forced(before.declared[urn], new, found))
        }
        if not more:
            return found
        found |= more


def lost(before: Run, after: Run) -> dict[str, list[str]]:
    """URN of what holds data and goes -> the properties that force it, or nothing if it is not declared any
    more. What stays when its resource is deleted is left out."""
    gone: dict[str, list[str]] = {urn: [] for urn in before.declared if urn not in after.declared}
    return {
        urn: why
        for urn, why in {**gone, **replaced(before, after)}.items()
        if before.declared[urn].type in HOLDS and not before.declared[urn].stays
    }


def deletions(before: Run, root: str) -> list[str]:
    """The URNs that the engine deletes before it makes `root` anew, in order.

    By `calculateDependentReplacements`: of all that depends on it, what a changed value forces to be replaced
    as well. An edge of `depends_on` alone forces nothing. The last that was made goes first.
    """
    order = list(before.declared)
    found = {root: [""]}
    for urn in order:
        one = before.declared[urn]
        names = [name for name, urns in one.from_.items() if urns & found.keys()]
        forcing = {name.split(".")[0] for name in one.forcing() if not _ignored(name, one)}
        if urn not in found and (why := [name for name in names if name in forcing]):
            found[urn] = why
    return [urn for urn in reversed(order) if urn in found]


def needs(run: Run, urn: str) -> set[str]:
    """All that a resource depends on, through others too."""
    found: set[str] = set()
    waiting = {urn}
    while waiting:
        there = {one for each in waiting for one in run.declared[each].after if one in run.declared}
        waiting = there - found
        found |= waiting
    return found
