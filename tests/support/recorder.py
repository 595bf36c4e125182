"""Runs a Pulumi program with the SDK's mocks, and records every registration as it was requested."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from typing import Any

import pulumi
from pulumi.runtime import mocks


class Answers(mocks.Mocks):
    """Answers like the engine: with the inputs, and with the output of commands.

    Args:
        stdout: end of a resource's name -> the command's output.
    """

    def __init__(self, stdout: dict[str, str]) -> None:
        self._stdout = stdout

    def new_resource(self, args: mocks.MockResourceArgs) -> tuple[str, dict[str, Any]]:
        known = {k: v for part, v in self._stdout.items() if args.name.endswith(part) for k in ("stdout",)}
        return f"{args.name}-id", {**args.inputs, **known}

    def call(self, args: mocks.MockCallArgs) -> Any:
        raise AssertionError(f"no component calls {args.token}")


class Recorder(mocks.MockMonitor):
    """Records every registration as it was requested."""

    def __init__(self, answers: mocks.Mocks) -> None:
        super().__init__(answers)
        self.asked: dict[str, Any] = {}
        self.closed: list[str] = []

    def RegisterResource(self, request: Any) -> Any:  # noqa: N802  the protocol's name
        # The component of a whole cluster has the name of the provider's cluster in it.
        if request.type not in ("pulumi:pulumi:Stack", "slurm-stacks:index:SlurmCluster"):
            assert request.name not in self.asked, "names are unique"
            self.asked[request.name] = request
        return super().RegisterResource(request)  # type: ignore[no-untyped-call]

    def RegisterResourceOutputs(self, request: Any) -> Any:  # noqa: N802
        self.closed.append(request.urn.rpartition("::")[2])
        return super().RegisterResourceOutputs(request)  # type: ignore[no-untyped-call]

    def types(self) -> dict[str, str]:
        return {name: request.type for name, request in self.asked.items()}

    def inputs(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = pulumi.runtime.rpc.deserialize_properties(self.asked[name].object)
        return found

    def after(self, name: str) -> set[str]:
        return {urn.rpartition("::")[2] for urn in self.asked[name].dependencies}

    def parents(self) -> dict[str, str]:
        return {name: request.parent.rpartition("::")[2] for name, request in self.asked.items()}


def run(recorder: Recorder, program: Callable[[], Any], *, preview: bool = False) -> None:
    """Run a program to its end with the recorder, in its own event loop and context."""

    def isolated() -> None:
        loop = asyncio.new_event_loop()
        loop.set_exception_handler(lambda _loop, _context: None)  # these follow from the error that is raised
        asyncio.set_event_loop(loop)
        pulumi.runtime.set_mocks(
            recorder.mocks, project="slurm-stacks", stack="test", preview=preview, monitor=recorder
        )
        try:
            # Without this wait a failing apply would not fail, and registrations would be missing.
            pulumi.runtime.test(program)()  # type: ignore[no-untyped-call]
        finally:
            # An event loop has three open files, and a process of tests may have a thousand files open.
            asyncio.set_event_loop(None)
            loop.close()

    contextvars.copy_context().run(isolated)


def declare(
    program: Callable[[], Any], *, preview: bool = False, stdout: dict[str, str] | None = None
) -> Recorder:
    """Run a program with mocks that answer with the given output of its commands."""
    recorder = Recorder(Answers(stdout or {}))
    run(recorder, program, preview=preview)
    return recorder


def counts(recorder: Recorder) -> dict[str, int]:
    """Return the number of resources of each type that occurs."""
    found: dict[str, int] = {}
    for kind in recorder.types().values():
        found[kind] = found.get(kind, 0) + 1
    return found


def unknown(recorder: Recorder, name: str) -> set[str]:
    """Return the inputs of a resource that are not known yet."""
    fields = recorder.asked[name].object.fields
    return {key for key, value in fields.items() if value.string_value == pulumi.runtime.rpc.UNKNOWN}


def needs(recorder: Recorder) -> dict[str, set[str]]:
    """Return name -> what the resource and its components need, which must be deleted after the resource."""
    direct = {name: recorder.after(name) for name in recorder.types()}
    whole: dict[str, set[str]] = {}

    def all_of(name: str) -> set[str]:
        if name not in whole:
            whole[name] = set()
            whole[name] = direct[name] | {far for near in direct[name] for far in all_of(near)}
        return whole[name]

    return {name: all_of(name) for name in direct}


def custom(recorder: Recorder) -> set[str]:
    """Return the names of a cloud's resources, without components."""
    return {name for name, asked in recorder.asked.items() if asked.custom}
