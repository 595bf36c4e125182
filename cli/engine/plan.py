"""The offline plan: the resources that a program declares, without an engine, credentials or a network.

The program runs against a monitor that executes nothing. It is told that this is no preview, so that every
`apply` runs and user data and policies become text, with placeholders for values that a cloud would compute.
"""

from __future__ import annotations

import enum
import functools
import importlib
import re
import threading
import types
import typing
from collections import abc
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypedDict

import pulumi
from google.protobuf import empty_pb2
from pulumi.runtime.proto import resource_pb2

from cli.console.events import Event, Message
from cli.engine import program, project, wire
from infra.additions import Addition
from infra.errors import UserError
from infra.program.stack import Stack


class PlannedResource(TypedDict):
    urn: str
    type: str
    name: str
    parent: str | None
    inputs: dict[str, Any]
    dependencies: list[str]
    protect: bool


class Plan(TypedDict):
    """What `./cluster plan --json` prints.

    `changes` says what `up` would change of a running cluster, and what happens to its jobs. It is `None` if
    there is no such cluster, or if only a cloud knows. `additions` are lines about containers and hooks.
    `slurm` names the release that the stack gets, and who maintains it; `None` if it has no Slurm.
    """

    stack: str
    resources: list[PlannedResource]
    outputs: dict[str, Any]
    additions: list[Addition]
    slurm: str | None
    cost: dict[str, Any]
    warnings: list[str]
    changes: list[dict[str, Any]] | None


Canned = Callable[[str, Mapping[str, Any]], Mapping[str, Any] | None]
"""Returns the answer of a provider function, by token and arguments; `None` means placeholders."""
Annotate = Callable[[Sequence[PlannedResource]], tuple[dict[str, Any], list[str]]]
"""Computes the plan's cost and warnings from its resources."""


def plan(
    stack: Stack,
    *,
    annotate: Annotate | None = None,
    canned: Canned | None = None,
) -> Plan:
    """Run the program of a stack and collect the resources that it declares.

    Raises:
        UserError: A file is missing or wrong (exit 2), or the program fails (exit 1).
    """
    recorder = Recorder(project.load(stack), canned)
    warnings: list[str] = []

    def on_event(event: Event) -> None:
        if isinstance(event, Message) and event.level != "info":
            warnings.append(event.text)

    program.run(recorder, mode_="plan", preview=False, on_event=on_event, transformation=recorder.learn_class)
    resources = list(_tree(recorder.planned.values()))
    cost, more = annotate(resources) if annotate is not None else ({}, [])
    return Plan(
        stack=stack.name,
        resources=resources,
        outputs=wire.redacted(recorder.outputs),
        additions=[],
        slurm=None,
        cost=cost,
        warnings=[*warnings, *more],
        changes=None,
    )


class Recorder(program.Monitor):
    """A monitor that records every registration and answers with placeholders."""

    def __init__(self, settings: project.Project, canned: Canned | None) -> None:
        super().__init__(settings)
        self.planned: dict[str, PlannedResource] = {}
        self.outputs: dict[str, Any] = {}
        self._canned = canned
        self._classes: dict[str, type] = {}
        self._lock = threading.Lock()

    def learn_class(self, args: pulumi.ResourceTransformationArgs) -> None:
        """Record the class of a resource. Only a stack transformation sees the resource's object."""
        self._classes[args.type_] = type(args.resource)

    def RegisterResource(self, request: Any) -> Any:  # noqa: N802  the protocol's name
        inputs = wire.to_json(request.object)
        urn = self._note(request, inputs)
        if not request.custom:
            return resource_pb2.RegisterResourceResponse(urn=urn)
        outputs = fill(self._classes.get(request.type), request.name, inputs)
        return resource_pb2.RegisterResourceResponse(
            urn=urn,
            id=request.importId or f"<{request.name}.id>",
            object=wire.to_struct(_hide(outputs, request.additionalSecretOutputs)),
        )

    def RegisterResourceOutputs(self, request: Any) -> Any:  # noqa: N802
        if f"::{program.STACK_TYPE}::" in request.urn:
            self.outputs = wire.to_json(request.outputs)
        return empty_pb2.Empty()

    def ReadResource(self, request: Any) -> Any:  # noqa: N802
        inputs = {**wire.to_json(request.properties), "id": request.id}
        urn = self._note(request, inputs)
        answer = self._canned(request.type, inputs) if self._canned is not None else None
        if answer is None:
            answer = fill(self._classes.get(request.type), request.name, inputs)
        properties = wire.to_struct({k: v for k, v in answer.items() if k != "id"})
        return resource_pb2.ReadResourceResponse(urn=urn, properties=properties)

    def Invoke(self, request: Any) -> Any:  # noqa: N802
        arguments = wire.to_json(request.args)
        answer = self._canned(request.tok, wire.plain(arguments)) if self._canned is not None else None
        if answer is None:
            answer = fill_invoke(request.tok, arguments)
        return resource_pb2.ResourceInvokeResponse(**{"return": wire.to_struct(dict(answer))})

    def _note(self, request: Any, inputs: dict[str, Any]) -> str:
        urn = self.make_urn(request.parent, request.type, request.name)
        planned = PlannedResource(
            urn=urn,
            type=request.type,
            name=request.name,
            parent=request.parent or None,
            inputs=wire.readable(wire.redacted(inputs)),
            dependencies=sorted(request.dependencies),
            protect=getattr(request, "protect", False),
        )
        with self._lock:
            if urn in self.planned:
                raise UserError(
                    f"the program declares two resources with the URN {urn}", code="program.urn-twice"
                )
            self.planned[urn] = planned
        return urn


def _hide(outputs: dict[str, Any], secret_names: Sequence[str]) -> dict[str, Any]:
    return {k: wire.secret(v) if k in secret_names else v for k, v in outputs.items()}


def _tree(resources: Iterator[PlannedResource] | Any) -> Iterator[PlannedResource]:
    """Yield each resource after its parent, siblings by name, because the order of registration varies."""
    children: dict[str | None, list[PlannedResource]] = {}
    for resource in sorted(resources, key=lambda r: (r["name"], r["urn"])):
        children.setdefault(resource["parent"], []).append(resource)

    def walk(parent: str | None) -> Iterator[PlannedResource]:
        for resource in children.get(parent, ()):
            yield resource
            yield from walk(resource["urn"])

    return walk(None)


DEPTH = 5
"""The depth to which objects are filled: a few of the SDKs' types contain themselves."""
OWN = ("id", "urn")
"""Attributes that are no properties; the SDK resolves them itself."""
LABELS = {"tagsAll": "tags", "effectiveLabels": "labels", "pulumiLabels": "labels"}
"""Computed maps that repeat an input."""


def fill(cls: type | None, name: str, known: dict[str, Any]) -> dict[str, Any]:
    """Return the outputs of a resource: its known values, and a placeholder for each other property.

    Args:
        cls: The resource's class; `None` if it is unknown.
        name: The resource's name, for the placeholders.
        known: Its inputs by their Pulumi names.
    """
    outputs = _fill(cls, name, known, DEPTH) if cls is not None else dict(known)
    for computed, given in LABELS.items():
        if outputs.get(computed) == {} and given in known:
            outputs[computed] = known[given]
    return outputs


def fill_invoke(token: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the result of a provider's function, such as `aws:ec2/getAmi:getAmi`, in the same way."""
    _, _, function = token.rpartition(":")
    result = _result_class(token)
    known = {k: v for k, v in arguments.items() if result is not None and k in _hints(result)}
    outputs = fill(result, function, known)
    if result is not None and "id" in _hints(result):
        outputs.setdefault("id", f"<{function}.id>")
    return outputs


def _result_class(token: str) -> type | None:
    """Return the class of a function's result, by the generators' convention.

    For example `pulumi_aws.ec2.get_ami.GetAmiResult` for `aws:ec2/getAmi:getAmi`.
    """
    try:
        package, module, function = token.split(":")
        folder, _, file = module.rpartition("/")
        snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", file or function).lower()
        path = ".".join(part for part in (f"pulumi_{package}", folder.replace("index", ""), snake) if part)
        result_class = getattr(
            importlib.import_module(path), function[0].upper() + function[1:] + "Result", None
        )
    except (ValueError, ImportError):
        return None
    return result_class if isinstance(result_class, type) else None


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    """Return Pulumi name -> type for the Pulumi properties of a class."""
    hints: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        for member in vars(base).values():
            pulumi_name = getattr(getattr(member, "fget", None), "_pulumi_name", None)
            if isinstance(member, property) and isinstance(pulumi_name, str):
                try:
                    hints[pulumi_name] = typing.get_type_hints(member.fget).get("return", Any)
                except (NameError, TypeError):
                    hints[pulumi_name] = Any
    return hints


def _fill(cls: type, path: str, known: dict[str, Any], depth: int) -> dict[str, Any]:
    values = dict(known)
    for name, hint in _hints(cls).items():
        if name in OWN and depth == DEPTH:
            continue
        if known.get(name) is None:
            invented = _invent(hint, f"{path}.{name}", depth - 1)
            if invented is not None:
                values[name] = invented
        else:
            values[name] = _complete(hint, f"{path}.{name}", known[name], depth - 1)
    return values


def _invent(hint: Any, path: str, depth: int) -> Any:
    """Return a placeholder for a value of this type; `None` leaves it out.

    Strings always get a placeholder, because addresses are often optional in the types: they may be given or
    computed. Other values get one only if the type is not optional.
    """
    kind, optional = _unwrap(hint)
    item = _element(kind)
    if kind in (str, Any):
        return f"<{path}>"
    if item is not None:
        if _unwrap(item)[0] is str or not optional:
            invented = _invent(item, f"{path}[0]", depth)
            return [] if invented is None else [invented]
        return None
    if optional or depth < 0:
        return None
    return _required(kind, path, depth)


def _required(kind: Any, path: str, depth: int) -> Any:
    if kind in (bool, int, float):
        return kind()
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        # A text placeholder would not be a member of the enumeration.
        return next(iter(kind)).value
    if _is_object(kind):
        return _fill(kind, path, {}, depth)
    return {} if _is_mapping(kind) else None


def _complete(hint: Any, path: str, value: Any, depth: int) -> Any:
    """Fill in computed properties of a known value, such as the address of a given network interface."""
    kind, _ = _unwrap(hint)
    item = _element(kind)
    if wire.is_secret(value) or depth < 0:
        return value
    if isinstance(value, list) and item is not None:
        return [_complete(item, f"{path}[{i}]", part, depth) for i, part in enumerate(value)]
    if isinstance(value, dict) and _is_object(kind):
        return _fill(kind, path, value, depth)
    return value


def _unwrap(hint: Any) -> tuple[Any, bool]:
    """Return the type inside `Output[…]` and `Optional[…]`, and whether it was optional."""
    optional = False
    while True:
        origin, arguments = typing.get_origin(hint), typing.get_args(hint)
        if origin is pulumi.Output:
            (hint,) = arguments
        elif origin in (typing.Union, types.UnionType) and type(None) in arguments:
            optional = True
            rest = [argument for argument in arguments if argument is not type(None)]
            if len(rest) != 1:
                return None, optional
            (hint,) = rest
        else:
            return hint, optional


def _element(kind: Any) -> Any:
    """Return the type of a list's elements; `None` if the type is no list."""
    if typing.get_origin(kind) in (list, abc.Sequence):
        return typing.get_args(kind)[0]
    return None


def _is_mapping(kind: Any) -> bool:
    return kind is dict or typing.get_origin(kind) in (dict, abc.Mapping)


def _is_object(kind: Any) -> bool:
    return isinstance(kind, type) and not _is_mapping(kind) and bool(_hints(kind))
