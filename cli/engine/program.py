"""Runs a project's `__main__.py` against one of our monitors, through the SDK's testing interface."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import runpy
import sys
import traceback
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pulumi
from pulumi.runtime import mocks, resource, settings, stack
from pulumi.runtime.proto import source_pb2

from cli.console.events import Level, Message, OnEvent
from cli.engine import interrupt
from cli.engine.project import Project
from infra.errors import EXIT_REFUSED, UserError
from infra.program import mode

STACK_TYPE = "pulumi:pulumi:Stack"
WORKERS = 32
"""How many registrations, and therefore commands, run at the same time."""


class NoMocks(mocks.Mocks):
    """A placeholder: our monitors answer themselves, but the SDK needs an object of this class."""

    def call(self, args: mocks.MockCallArgs) -> tuple[dict[Any, Any], list[tuple[str, str]] | None]:
        raise NotImplementedError(args.token)

    def new_resource(self, args: mocks.MockResourceArgs) -> tuple[str | None, dict[Any, Any]]:
        raise NotImplementedError(args.typ)


class Monitor(mocks.MockMonitor):
    """Base class of our two monitors. It makes the engine's URNs; the SDK's mock makes shorter ones."""

    def __init__(self, project: Project) -> None:
        super().__init__(NoMocks())
        self.project = project

    def RegisterStackTransform(self, request: Any) -> Any:  # noqa: N802  the protocol's name
        # The SDK's mock would accept the transform and never run it.
        raise UserError(
            "the program registers a resource transform, which only the Pulumi CLI applies; "
            "pulumi.runtime.register_stack_transformation works everywhere",
            EXIT_REFUSED,
            code="runner.transform",
        )

    def RegisterStackInvokeTransform(self, request: Any) -> Any:  # noqa: N802
        return self.RegisterStackTransform(request)

    def make_urn(self, parent: str, type_: str, name: str) -> str:
        """Return `urn:pulumi:<stack>::<project>::<parent types>$<type>::<name>`, without the stack's type."""
        parents = parent.split("::")[2] if parent else ""
        qualified = f"{parents}${type_}" if parents and parents != STACK_TYPE else type_
        return f"urn:pulumi:{self.project.stack}::{self.project.name}::{qualified}::{name}"


def run(
    monitor: Monitor,
    *,
    mode_: mode.Mode,
    preview: bool,
    on_event: OnEvent,
    kept: dict[str, Any] | None = None,
    transformation: pulumi.ResourceTransformation | None = None,
) -> None:
    """Run the program of the monitor's project until every registration is answered.

    The SDK keeps the state of a deployment in context variables. The program runs in a copy of the context,
    so that two runs in one process do not affect each other.

    Args:
        preview: Whether the program is told that this is a dry run.
        kept: The former outputs of a benchmark that is not changed (`mode.of_benchmark`).
        transformation: Applied to every resource; only a transformation sees the resource's object.

    Raises:
        UserError: Raised by the program or the monitor. Any other exception of the program becomes one, with
            the line of the program.
    """

    def isolated() -> None:
        mode.MODE.set(mode_)
        mode.KEPT.set(kept)
        with _in_project(monitor.project.directory), _without_places(), warnings.catch_warnings():
            # After an error the SDK abandons its other tasks, and Python warns about them. The error itself
            # is raised.
            warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
            asyncio.run(_main(monitor, preview, on_event, transformation))

    contextvars.copy_context().run(isolated)


async def _main(
    monitor: Monitor,
    preview: bool,
    on_event: OnEvent,
    transformation: pulumi.ResourceTransformation | None,
) -> None:
    project = monitor.project
    executor = ThreadPoolExecutor(WORKERS, thread_name_prefix="resource")
    loop = asyncio.get_running_loop()
    loop.set_default_executor(executor)
    loop.set_exception_handler(lambda _loop, _context: None)  # hides errors of the abandoned tasks, too
    # The mocks' settings share the set of pending outputs with earlier runs in this process.
    pulumi.runtime.reset_options(root_directory=str(project.directory))
    pulumi.runtime.set_all_config(project.config, sorted(project.secure))
    # set_mocks would register a stack whose outputs are closed before the program starts. The placeholder
    # prevents that. run_in_stack, which the real language host calls too, registers the stack.
    settings.set_root_resource(cast(pulumi.Resource, object()))
    pulumi.runtime.set_mocks(
        monitor.mocks,
        project=project.name,
        stack=project.stack,
        preview=preview,
        logger=_logger(on_event),
        monitor=monitor,
        organization="organization",
    )
    settings.set_root_resource(cast(pulumi.Resource, None))

    def program() -> None:
        if transformation is not None:
            pulumi.runtime.register_stack_transformation(transformation)
        runpy.run_path(str(project.program), run_name="__main__")

    try:
        with interrupt.waking_loop(loop):
            await stack.run_in_stack(program)
    except UserError:
        raise
    except SystemExit as error:
        if error.code not in (None, 0):
            raise UserError(
                f"the Pulumi program ended itself: {error.code}", code="program.exited"
            ) from error
    except Exception as error:
        raise UserError(_explain(error, project.directory), code="program.failed") from error


@contextlib.contextmanager
def _without_places() -> Iterator[None]:
    """Have the SDK not look up where in the code a resource is declared.

    For every resource it would read the source of each frame of the call stack, a twentieth of a plan's time.
    Only the engine's own monitor keeps it.
    """
    declared = vars(resource).get("_get_stack_trace")
    if declared is None:
        yield
        return
    vars(resource)["_get_stack_trace"] = source_pb2.StackTrace
    try:
        yield
    finally:
        vars(resource)["_get_stack_trace"] = declared


@contextlib.contextmanager
def _in_project(directory: Path) -> Iterator[None]:
    """Set the working folder and the import path for the body, as the Pulumi CLI does for a program."""
    path = str(directory)
    sys.path.insert(0, path)
    try:
        with contextlib.chdir(directory):
            yield
    finally:
        sys.path.remove(path)


def _logger(on_event: OnEvent) -> logging.Logger:
    """Return a logger that turns messages of `pulumi.log` into events."""

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            level: Level = "info"
            if record.levelno >= logging.WARNING:
                level = "error" if record.levelno >= logging.ERROR else "warning"
            on_event(Message(record.getMessage(), level))

    logger = logging.Logger("slurm-stacks.program", logging.INFO)
    logger.addHandler(Handler())
    return logger


def _explain(error: Exception, directory: Path) -> str:
    """Return the error and its place in the project, without the SDK's own frames."""
    if isinstance(error, pulumi.RunError):
        return str(error)
    frames = [
        f"  {Path(f.filename).relative_to(directory)}:{f.lineno} in {f.name}"
        for f in traceback.extract_tb(error.__traceback__)
        if Path(f.filename).is_relative_to(directory) and ".venv" not in f.filename
    ]
    text = f"the Pulumi program failed: {type(error).__name__}: {error}"
    return "\n".join([text, *frames])
