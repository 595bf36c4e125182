"""Running a Pulumi program against the SDK's mocks, with every registration noted as it was asked for."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from typing import Any
from unittest import mock

import pulumi
from pulumi.runtime import mocks
from pulumi.runtime.proto import source_pb2


class Answers(mocks.Mocks):
    """What the engine would answer: the inputs, and what commands would have printed.

    Args:
        stdout: by the end of the resource's name.
    """

    def __init__(self, stdout: dict[str, str]) -> None:
        self._stdout = stdout

    def new_resource(self, args: mocks.MockResourceArgs) -> tuple[str, dict[str, Any]]:
        known = {k: v for part, v in self._stdout.items() if args.name.endswith(part) for k in ("stdout",)}
        return f"{args.name}-id", {**args.inputs, **known}

    def call(self, args: mocks.MockCallArgs) -> Any:
        raise AssertionError(f"no component calls {args.token}")


class Recorder(mocks.MockMonitor):
    """Notes every registration as it was asked for."""

    def __init__(self, answers: mocks.Mocks) -> None:
        super().__init__(answers)
        self.asked: dict[str, Any] = {}
        self.closed: list[str] = []

    def RegisterResource(self, request: Any) -> Any:  # noqa: N802  the protocol's name
        if request.type != "pulumi:pulumi:Stack":
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


# Where in the code a resource is declared: the SDK walks the whole stack, that of the test runner too, for
# every resource, reads the source of each frame, and takes a sixth of a preview's time. No test asks for it.
NOWHERE = mock.patch("pulumi.runtime.resource._get_stack_trace", source_pb2.StackTrace)


def run(recorder: Recorder, program: Callable[[], Any], *, preview: bool = False) -> None:
    """Run a program to its end against the recorder, on an event loop and a context of its own."""

    def isolated() -> None:
        loop = asyncio.new_event_loop()
        loop.set_exception_handler(lambda _loop, _context: None)  # the echo of an error that is raised
        asyncio.set_event_loop(loop)
        pulumi.runtime.set_mocks(
            recorder.mocks, project="slurm-stacks", stack="test", preview=preview, monitor=recorder
        )
        try:
            with NOWHERE:
                # Only so does a failing apply fail, and only then is everything registered.
                pulumi.runtime.test(program)()  # type: ignore[no-untyped-call]
        finally:
            # Three open files each, and a process of tests may have a thousand.
            asyncio.set_event_loop(None)
            loop.close()

    contextvars.copy_context().run(isolated)


def declare(
    program: Callable[[], Any], *, preview: bool = False, stdout: dict[str, str] | None = None
) -> Recorder:
    """Run a program against mocks that answer with what its commands would print."""
    recorder = Recorder(Answers(stdout or {}))
    run(recorder, program, preview=preview)
    return recorder


def counts(made: Recorder) -> dict[str, int]:
    """How many resources of each type: what is not in it does not exist."""
    found: dict[str, int] = {}
    for kind in made.types().values():
        found[kind] = found.get(kind, 0) + 1
    return found


def unknown(made: Recorder, name: str) -> set[str]:
    """The inputs of a resource that are not known yet."""
    fields = made.asked[name].object.fields
    return {key for key, value in fields.items() if value.string_value == pulumi.runtime.rpc.UNKNOWN}


def needs(made: Recorder) -> dict[str, set[str]]:
    """What each resource needs, its components' included: nothing of it may go before that resource."""
    direct = {name: made.after(name) for name in made.types()}
    whole: dict[str, set[str]] = {}

    def all_of(name: str) -> set[str]:
        if name not in whole:
            whole[name] = set()
            whole[name] = direct[name] | {far for near in direct[name] for far in all_of(near)}
        return whole[name]

    return {name: all_of(name) for name in direct}


def custom(made: Recorder) -> set[str]:
    """Names of what is a cloud's, and no component."""
    return {name for name, asked in made.asked.items() if asked.custom}
