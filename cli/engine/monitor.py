"""The SDK's mock monitor, which runs the verbs of the commands that a program declares.

It answers registrations itself, because the SDK's `Mocks.new_resource` is told neither what a resource
depends on nor with what it is deleted, and can fail only for the whole program. A verb that fails is answered
as the real engine does with `--continue-on-error`: what depends on it is left out, and all else goes on.
"""

from __future__ import annotations

import threading
from typing import Any

from google.protobuf import empty_pb2
from pulumi.runtime.proto import resource_pb2

from cli.engine import wire
from cli.engine.program import STACK_TYPE, Monitor
from cli.engine.project import Project
from cli.engine.state import COMMAND
from cli.engine.verbs import Verbs
from cli.hints import HOW_TO_INSTALL
from infra.errors import EXIT_REFUSED, UserError

INPUTS = ("create", "update", "delete", "interpreter", "triggers", "environment", "stdin")
"""The inputs of a command that are known."""
OPTIONS = (
    "importId", "protect", "additionalSecretOutputs", "transforms", "hooks", "ignoreChanges", "replace_with",
    "replacement_trigger", "retainOnDelete", "customTimeouts",
)  # fmt: skip
"""The options of a resource that would be ignored, by the protocol's names."""


class CommandMonitor(Monitor):
    """Serves one run of one program.

    Attributes:
        seen: The URNs that the program has registered, each after what it depends on.
        outputs: The known outputs of the stack.
    """

    def __init__(self, project: Project, verbs: Verbs) -> None:
        super().__init__(project)
        self.seen: list[str] = []
        self.outputs: dict[str, Any] = {}
        self._verbs = verbs
        self._missing: set[str] = set()
        """URNs of commands that failed, or that depend on such a one."""
        self._lock = threading.Lock()

    def RegisterResource(self, request: Any) -> Any:  # noqa: N802  the protocol's name
        urn, inputs = self.make_urn(request.parent, request.type, request.name), wire.to_json(request.object)
        with self._lock:
            if urn in self.seen:
                text = f"the program declares two resources with the URN {urn}"
                raise UserError(text, code="program.urn-twice")
            self.seen.append(urn)
        _refuse(request, inputs)
        if not request.custom:
            return resource_pb2.RegisterResourceResponse(urn=urn)
        needed = {request.parent, *request.dependencies}
        if needed & self._missing or wire.has_unknown(inputs):
            made = None
        else:
            made = self._verbs.make(urn, inputs, request.deletedWith)
        if made is None:
            self._missing.add(urn)
            return resource_pb2.RegisterResourceResponse(urn=urn, result=resource_pb2.Result.FAIL)
        values = wire.to_struct({**inputs, **made.outputs})
        return resource_pb2.RegisterResourceResponse(urn=urn, id=made.id, object=values)

    def RegisterResourceOutputs(self, request: Any) -> Any:  # noqa: N802
        if f"::{STACK_TYPE}::" in request.urn:
            values = wire.to_json(request.outputs)
            _refuse_secrets("the stack's outputs", values)
            self.outputs = {k: v for k, v in values.items() if not wire.has_unknown(v)}
        return empty_pb2.Empty()

    def ReadResource(self, request: Any) -> Any:  # noqa: N802
        raise _needs_cli(f"{request.name}: a resource of type {request.type} that is read")

    def Invoke(self, request: Any) -> Any:  # noqa: N802
        raise _needs_cli(f"a call of {request.tok}")

    def Call(self, request: Any) -> Any:  # noqa: N802
        return self.Invoke(request)


def _refuse(request: Any, inputs: dict[str, Any]) -> None:
    """Refuse what would be left out or ignored without a word. The project's own program has none of it.

    Raises:
        UserError: Exit 3, saying how to install Pulumi.
    """
    if (request.custom or request.remote) and request.type != COMMAND:
        raise _needs_cli(f"{request.name}: a resource of type {request.type}")
    given = {field.name: value for field, value in request.ListFields() if field.name in OPTIONS}
    # Messages that are there may be empty.
    used = [name for name, value in given.items() if not hasattr(value, "ByteSize") or value.ByteSize()]
    # The SDK's Command itself sets `triggers[*]`: other triggers always make another one.
    used += ["replaceOnChanges"] if {*request.replaceOnChanges} - {"triggers[*]"} else []
    used += inputs.keys() - {*INPUTS} if request.custom else ()
    if used:
        raise _needs_cli(f"{request.name}: {', '.join(sorted(used))}")
    _refuse_secrets(request.name, inputs)


def _refuse_secrets(name: str, values: dict[str, Any]) -> None:
    """Refuse values that would have to be kept encrypted.

    Raises:
        UserError: Exit 3, saying how to install Pulumi.
    """
    if keys := sorted(key for key, value in values.items() if wire.has_secret(value)):
        raise _needs_cli(f"{name}: {', '.join(keys)}: a secret")


def _needs_cli(what: str) -> UserError:
    text = f"{what}: without the Pulumi CLI only local commands are run, with {', '.join(INPUTS)}"
    return UserError(f"{text}. {HOW_TO_INSTALL}", EXIT_REFUSED, code="runner.resource-type")
