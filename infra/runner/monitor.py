"""The resource monitor of the embedded runner: it answers a program's registrations by doing what they ask.

Built on the SDK's `MockMonitor`. A failed command is answered as the real engine answers it with
--continue-on-error: what depends on it gets unknown values and is left alone, everything else goes on.
"""

from __future__ import annotations

import threading
from typing import Any

from google.protobuf import empty_pb2
from pulumi.runtime.proto import resource_pb2

from infra.errors import EXIT_REFUSED, UserError
from infra.runner import command, owner, stackref, wire
from infra.runner.lifecycle import Lifecycle, Wanted
from infra.runner.program import Monitor
from infra.runner.refusal import HOW_TO_INSTALL
from infra.runner.urn import STACK_TYPE

PROVIDER = "pulumi:providers:command"


class EmbeddedMonitor(Monitor):
    """Serves one run of one program."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        super().__init__(lifecycle.project)
        self._life = lifecycle
        self._lock = threading.Lock()
        self.seen: set[str] = set()
        """Every URN that the program has registered: what is not among them has vanished from it."""
        self.unreached: set[str] = set()
        """What failed, or depends on what failed."""
        self.outputs: dict[str, Any] = {}
        """The stack's outputs that are known, secrets marked."""

    def RegisterResource(self, request: Any) -> Any:  # noqa: N802  the protocol's name
        urn = self.make_urn(request.parent, request.type, request.name)
        with self._lock:
            if urn in self.seen:
                raise UserError(f"the program declares two resources with the URN {urn}")
            self.seen.add(urn)
        wanted = _wanted(urn, request)
        if request.transforms or request.hooks.ByteSize():
            raise UserError(
                f"{wanted.name}: transforms and hooks need the Pulumi CLI. {HOW_TO_INSTALL}", EXIT_REFUSED
            )
        if request.custom or request.remote:
            _refuse_foreign(wanted, request)
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
        if request.type != stackref.TYPE:
            raise UserError(
                f"{request.name}: the embedded runner does not read resources of type {request.type}. "
                + HOW_TO_INSTALL,
                EXIT_REFUSED,
            )
        outputs = stackref.outputs(request.id)
        secret_names = sorted(k for k, v in outputs.items() if wire.has_secret(v))
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

    def _reachable(self, wanted: Wanted) -> bool:
        """Whether everything that this resource needs is there."""
        if self._life.stopping.is_set():
            return False
        if wanted.edges & self.unreached:
            return False
        return self._life.preview or not wire.has_unknown(wanted.inputs)


def _wanted(urn: str, request: Any) -> Wanted:
    timeouts = request.customTimeouts
    limits = {"create": timeouts.create, "update": timeouts.update, "delete": timeouts.delete}
    trigger = request.replacement_trigger
    return Wanted(
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
        retain_on_delete=request.retainOnDelete,
        delete_before_replace=request.deleteBeforeReplace,
        ignore_changes=list(request.ignoreChanges),
        replace_on_changes=list(request.replaceOnChanges),
        replace_with=list(request.replace_with),
        replacement_trigger=wire.value_to_json(trigger) if request.HasField("replacement_trigger") else None,
        secret_outputs=list(request.additionalSecretOutputs),
        timeouts={k: command.seconds(v) for k, v in limits.items() if v},
    )


def _refuse_foreign(wanted: Wanted, request: Any) -> None:
    """Only local commands are executed here.

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
