"""The resource monitor of the embedded runner: it carries out a program's registrations.

It is built on the SDK's `MockMonitor`. A failed command is answered as the real engine does with
`--continue-on-error`: resources that depend on it get unknown values and are skipped; all others go on.
"""

from __future__ import annotations

import threading
from typing import Any

from google.protobuf import empty_pb2
from pulumi.runtime.proto import resource_pb2

from cli.hints import HOW_TO_INSTALL
from cli.runner import command, stack_reference, wire
from cli.runner.lifecycle import Lifecycle, Registration
from cli.runner.program import STACK_TYPE, Monitor
from infra.errors import EXIT_REFUSED, UserError
from infra.program import owner

PROVIDER = "pulumi:providers:command"


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
        """The known outputs of the stack; secrets are marked."""

    def RegisterResource(self, request: Any) -> Any:  # noqa: N802  the protocol's name
        urn = self.make_urn(request.parent, request.type, request.name)
        with self._lock:
            if urn in self.seen:
                raise UserError(f"the program declares two resources with the URN {urn}")
            self.seen.add(urn)
        wanted = _wanted(urn, request)
        if request.custom or request.remote:
            _refuse_foreign(wanted, request)
        _refuse_options(request)
        if not self._reachable(wanted):
            with self._lock:
                self.unreached.add(urn)
            return resource_pb2.RegisterResourceResponse(urn=urn, result=resource_pb2.Result.FAIL)
        if request.type == command.TYPE:
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
            self.outputs = {k: v for k, v in values.items() if not wire.has_unknown(v)}
        return empty_pb2.Empty()

    def ReadResource(self, request: Any) -> Any:  # noqa: N802
        if request.type != stack_reference.TYPE:
            raise UserError(
                f"{request.name}: the embedded runner does not read resources of type {request.type}. "
                + HOW_TO_INSTALL,
                EXIT_REFUSED,
            )
        outputs = stack_reference.outputs(request.id)
        secret_names = sorted(name for name, value in outputs.items() if wire.has_secret(value))
        properties = wire.to_struct(
            {"name": request.id, "outputs": outputs, "secretOutputNames": secret_names}
        )
        urn = self.make_urn(request.parent, request.type, request.name)
        return resource_pb2.ReadResourceResponse(urn=urn, properties=properties)

    def Invoke(self, request: Any) -> Any:  # noqa: N802
        raise UserError(
            f"the program calls {request.tok}, which needs its provider. " + HOW_TO_INSTALL, EXIT_REFUSED
        )

    def Call(self, request: Any) -> Any:  # noqa: N802
        return self.Invoke(request)

    def _reachable(self, wanted: Registration) -> bool:
        """Whether all resources that this one needs exist."""
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
        protect=request.protect,
        delete_before_replace=request.deleteBeforeReplace,
        secret_outputs=list(request.additionalSecretOutputs),
    )


def _refuse_options(request: Any) -> None:
    """Refuse options that this project's program does not use.

    Raises:
        UserError: exit 3, saying how to install Pulumi.
    """
    used = {
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
        )


def _refuse_foreign(wanted: Registration, request: Any) -> None:
    """Refuse resources other than local commands.

    Raises:
        UserError: exit 3, saying how to install Pulumi.
    """
    if request.importId:
        raise UserError(
            f"{wanted.name}: importing resources needs the Pulumi CLI. {HOW_TO_INSTALL}", EXIT_REFUSED
        )
    if wanted.type in (command.TYPE, PROVIDER):
        command.check(wanted.name, wanted.inputs)
        return
    raise UserError(
        f"{wanted.name}: a resource of type {wanted.type} needs the Pulumi CLI; without it only local "
        f"commands are run ({owner.EMBEDDED} runner). {HOW_TO_INSTALL}",
        EXIT_REFUSED,
    )
