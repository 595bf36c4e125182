"""The offline plan: the resources that a program declares, without an engine, credentials or a network.

The program runs against a monitor that executes nothing. It is told that this is no preview, so that every
`apply` runs and user data and policies become text, with placeholders for values that a cloud would compute.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypedDict

import pulumi
from google.protobuf import empty_pb2
from pulumi.runtime.proto import resource_pb2

from cli.runner import placeholders, program, project, wire
from cli.runner.events import Event, Message
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
        UserError: a file is missing or wrong (exit 2), or the program fails (exit 1).
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
        outputs = placeholders.fill(self._classes.get(request.type), request.name, inputs)
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
            answer = placeholders.fill(self._classes.get(request.type), request.name, inputs)
        properties = wire.to_struct({k: v for k, v in answer.items() if k != "id"})
        return resource_pb2.ReadResourceResponse(urn=urn, properties=properties)

    def Invoke(self, request: Any) -> Any:  # noqa: N802
        arguments = wire.to_json(request.args)
        answer = self._canned(request.tok, wire.plain(arguments)) if self._canned is not None else None
        if answer is None:
            answer = placeholders.fill_invoke(request.tok, arguments)
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
                raise UserError(f"the program declares two resources with the URN {urn}")
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
