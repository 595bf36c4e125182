"""The resource monitor of the embedded runner: it carries out a program's registrations.

It is built on the SDK's `MockMonitor`. A failed command is answered as the real engine does with
`--continue-on-error`: resources that depend on it get unknown values and are skipped; all others go on.
"""

from __future__ import annotations

import threading
from typing import Any

from google.protobuf import empty_pb2
from pulumi.runtime.proto import resource_pb2

from cli.engine import lifecycle, wire
from cli.engine.lifecycle import Lifecycle, Registration
from cli.engine.program import STACK_TYPE, Monitor
from cli.engine.state import STATE_FILE, State
from cli.hints import HOW_TO_INSTALL
from infra.errors import EXIT_REFUSED, UserError
from infra.program import clusters, locations, owner

PROVIDER = "pulumi:providers:command"
STACK_REFERENCE = "pulumi:pulumi:StackReference"


class EmbeddedMonitor(Monitor):
    """Serves one run of one program."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        super().__init__(lifecycle.project)
        self._life = lifecycle
        self._lock = threading.Lock()
        self.seen: set[str] = set()
        """Every URN that the program has registered. Any other resource is no longer in the program."""
        self.unreached: set[str] = set()
        """URNs of resources that failed, or that depend on a failed one."""
        self.outputs: dict[str, Any] = {}
        """The known outputs of the stack."""

    def RegisterResource(self, request: Any) -> Any:  # noqa: N802  the protocol's name
        urn = self.make_urn(request.parent, request.type, request.name)
        with self._lock:
            if urn in self.seen:
                raise UserError(
                    f"the program declares two resources with the URN {urn}", code="program.urn-twice"
                )
            self.seen.add(urn)
        wanted = _wanted(urn, request)
        if request.custom or request.remote:
            _refuse_foreign(wanted, request)
        _refuse_options(request)
        _refuse_secrets(wanted.name, wanted.inputs)
        if not self._reachable(wanted):
            with self._lock:
                self.unreached.add(urn)
            return resource_pb2.RegisterResourceResponse(urn=urn, result=resource_pb2.Result.FAIL)
        if request.type == lifecycle.COMMAND_TYPE:
            record = self._life.command(wanted)
            if record is None:
                with self._lock:
                    self.unreached.add(urn)
                return resource_pb2.RegisterResourceResponse(urn=urn, result=resource_pb2.Result.FAIL)
            outputs = {**wanted.inputs, **record.outputs}
            return resource_pb2.RegisterResourceResponse(
                urn=urn, id=record.id, object=wire.to_struct(outputs)
            )
        id_ = self._life.adopt(wanted)
        return resource_pb2.RegisterResourceResponse(urn=urn, id=id_)

    def RegisterResourceOutputs(self, request: Any) -> Any:  # noqa: N802
        if f"::{STACK_TYPE}::" in request.urn:
            values = wire.to_json(request.outputs)
            _refuse_secrets("the stack's outputs", values)
            self.outputs = {k: v for k, v in values.items() if not wire.has_unknown(v)}
        return empty_pb2.Empty()

    def ReadResource(self, request: Any) -> Any:  # noqa: N802
        if request.type != STACK_REFERENCE:
            raise UserError(
                f"{request.name}: the embedded runner does not read resources of type {request.type}. "
                + HOW_TO_INSTALL,
                EXIT_REFUSED,
                code="runner.read",
            )
        values = {"name": request.id, "outputs": outputs_of(request.id), "secretOutputNames": []}
        properties = wire.to_struct(values)
        urn = self.make_urn(request.parent, request.type, request.name)
        return resource_pb2.ReadResourceResponse(urn=urn, properties=properties)

    def Invoke(self, request: Any) -> Any:  # noqa: N802
        raise UserError(
            f"the program calls {request.tok}, which needs its provider. " + HOW_TO_INSTALL,
            EXIT_REFUSED,
            code="runner.invoke",
        )

    def Call(self, request: Any) -> Any:  # noqa: N802
        return self.Invoke(request)

    def _reachable(self, wanted: Registration) -> bool:
        """Return whether all resources that this one needs exist."""
        if self._life.stopping.is_set():
            return False
        if wanted.edges & self.unreached:
            return False
        return self._life.preview or not wire.has_unknown(wanted.inputs)


def _wanted(urn: str, request: Any) -> Registration:
    return Registration(
        urn=urn,
        type=request.type,
        name=request.name,
        custom=request.custom,
        parent=request.parent,
        inputs=wire.to_json(request.object),
        dependencies=sorted(request.dependencies),
        property_dependencies={k: sorted(v.urns) for k, v in request.propertyDependencies.items()},
        deleted_with=request.deletedWith,
        delete_before_replace=request.deleteBeforeReplace,
    )


def _refuse_options(request: Any) -> None:
    """Refuse options that this project's program does not use.

    Raises:
        UserError: Exit 3, saying how to install Pulumi.
    """
    used = {
        "protect": request.protect,
        "additional_secret_outputs": request.additionalSecretOutputs,
        "transforms": request.transforms,
        "hooks": request.hooks.ByteSize(),
        "ignore_changes": request.ignoreChanges,
        # The SDK's Command itself sets `triggers[*]`, and a change of `triggers` always replaces.
        "replace_on_changes": set(request.replaceOnChanges) - {"triggers[*]"},
        "replace_with": request.replace_with,
        "replacement_trigger": request.HasField("replacement_trigger"),
        "retain_on_delete": request.retainOnDelete,
        "custom_timeouts": request.customTimeouts.ByteSize(),
    }
    if found := [option for option, value in used.items() if value]:
        raise UserError(
            f"{request.name}: {', '.join(found)}: an option that needs the Pulumi CLI. {HOW_TO_INSTALL}",
            EXIT_REFUSED,
            code="runner.option",
        )


def _refuse_secrets(name: str, values: dict[str, Any]) -> None:
    """Refuse values that would have to be kept encrypted.

    Raises:
        UserError: Exit 3, saying how to install Pulumi.
    """
    if keys := sorted(key for key, value in values.items() if wire.has_secret(value)):
        raise UserError(
            f"{name}: {', '.join(keys)}: a secret needs the Pulumi CLI, which encrypts it in its state. "
            f"{HOW_TO_INSTALL}",
            EXIT_REFUSED,
            code="runner.secret",
        )


def _refuse_foreign(wanted: Registration, request: Any) -> None:
    """Refuse resources other than local commands.

    Raises:
        UserError: Exit 3, saying how to install Pulumi.
    """
    if request.importId:
        raise UserError(
            f"{wanted.name}: importing resources needs the Pulumi CLI. {HOW_TO_INSTALL}",
            EXIT_REFUSED,
            code="runner.import",
        )
    if wanted.type in (lifecycle.COMMAND_TYPE, PROVIDER):
        lifecycle.check(wanted.name, wanted.inputs)
        return
    raise UserError(
        f"{wanted.name}: a resource of type {wanted.type} needs the Pulumi CLI; without it only local "
        f"commands are run ({owner.EMBEDDED} runner). {HOW_TO_INSTALL}",
        EXIT_REFUSED,
        code="runner.resource-type",
    )


def outputs_of(reference: str) -> dict[str, Any]:
    """Return the outputs of the stack `<organization>/<project>/<stack>` of this user's embedded runner.

    It lets a consumer of a local cluster (`docs/consuming.md`) run without the Pulumi CLI.

    Raises:
        UserError: No such stack is up, or more than one checkout has one.
    """
    match reference.split("/"):
        case [_organization, project, stack]:
            pass
        case _:
            raise UserError(
                f"StackReference {reference!r}: write organization/<project>/<stack>", code="reference.form"
            )
    folders = [locations.state_dir(each.home) for each in clusters.recorded() if each.stack == stack]
    states = [State.load(folder / STATE_FILE) for folder in folders]
    found = [state for state in states if state.project == project and not state.empty]
    if len(found) == 1:
        return found[0].outputs
    if found:
        places = ", ".join(str(state.path.parent) for state in found)
        problem = f"is up in {len(found)} checkouts (state in {places}); destroy all but one"
    else:
        problem = "is not up under the embedded runner; bring it up first, or use the Pulumi CLI"
    raise UserError(
        f"StackReference {reference!r}: that stack {problem}", EXIT_REFUSED, code="reference.stack"
    )
