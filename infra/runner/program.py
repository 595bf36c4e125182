"""Running a project's `__main__.py` to its end against a monitor of ours, by the SDK's testing interface."""

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
from pulumi.runtime import mocks, settings, stack

from infra.errors import EXIT_REFUSED, UserError
from infra.runner import interrupt, mode, urn
from infra.runner.events import Level, Message, OnEvent
from infra.runner.project import Project

WORKERS = 32
"""How many registrations, and so commands, are worked on at once."""


class NoMocks(mocks.Mocks):
    """The monitors below answer for themselves; the SDK still wants an object of this class."""

    def call(self, args: mocks.MockCallArgs) -> tuple[dict[Any, Any], list[tuple[str, str]] | None]:
        raise NotImplementedError(args.token)

    def new_resource(self, args: mocks.MockResourceArgs) -> tuple[str | None, dict[Any, Any]]:
        raise NotImplementedError(args.typ)


class Monitor(mocks.MockMonitor):
    """What our two monitors share: the engine's own URNs, where the SDK's mock has short ones."""

    def __init__(self, project: Project) -> None:
        super().__init__(NoMocks())
        self.project = project

    def RegisterStackTransform(self, request: Any) -> Any:  # noqa: N802  the protocol's name
        # The SDK's mock would accept and never run it.
        raise UserError(
            "the program registers a resource transform, which only the Pulumi CLI applies; "
            "pulumi.runtime.register_stack_transformation works everywhere",
            EXIT_REFUSED,
        )

    def RegisterStackInvokeTransform(self, request: Any) -> Any:  # noqa: N802
        return self.RegisterStackTransform(request)

    def make_urn(self, parent: str, type_: str, name: str) -> str:
        return urn.make(self.project.stack, self.project.name, parent, type_, name)


def run(
    monitor: Monitor,
    *,
    mode_: mode.Mode,
    preview: bool,
    on_event: OnEvent,
    transformation: pulumi.ResourceTransformation | None = None,
) -> None:
    """Run the program of the monitor's project until every registration is answered.

    The SDK keeps everything about a deployment in context variables. Running in a copy of the context leaves
    the caller's untouched: two runs in one process do not meet.

    Args:
        preview: whether the program is told that this is a dry run.
        transformation: applied to every resource, for what only the resource's object tells.

    Raises:
        UserError: raised by the program or the monitor; any other exception of the program becomes one, with
            the place in the program.
    """

    def isolated() -> None:
        mode.MODE.set(mode_)
        with _in_project(monitor.project.directory), warnings.catch_warnings():
            # After an error the SDK's other tasks are abandoned. That error is raised; these are its echo.
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
    loop.set_exception_handler(lambda _loop, _context: None)  # the same echo
    # The mocks' settings share the set of pending outputs with whatever ran before in this process.
    pulumi.runtime.reset_options(root_directory=str(project.directory))
    pulumi.runtime.set_all_config(project.config, sorted(project.secure))
    # set_mocks would register a stack whose outputs are closed before the program starts: a placeholder keeps
    # it from that, and run_in_stack, which is what the real language host calls, makes the proper one.
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
        with interrupt.waking(loop):
            await stack.run_in_stack(program)
    except UserError:
        raise
    except SystemExit as error:
        if error.code not in (None, 0):
            raise UserError(f"the Pulumi program ended itself: {error.code}") from error
    except Exception as error:
        raise UserError(_explain(error, project.directory)) from error


@contextlib.contextmanager
def _in_project(directory: Path) -> Iterator[None]:
    """The working folder and import path of a program that the Pulumi CLI starts."""
    path = str(directory)
    sys.path.insert(0, path)
    try:
        with contextlib.chdir(directory):
            yield
    finally:
        sys.path.remove(path)


def _logger(on_event: OnEvent) -> logging.Logger:
    """What the program says with `pulumi.log` becomes events."""

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
    """The error and where in the project it came from; the SDK's own frames would bury both."""
    if isinstance(error, pulumi.RunError):
        return str(error)
    frames = [
        f"  {Path(f.filename).relative_to(directory)}:{f.lineno} in {f.name}"
        for f in traceback.extract_tb(error.__traceback__)
        if Path(f.filename).is_relative_to(directory) and ".venv" not in f.filename
    ]
    text = f"the Pulumi program failed: {type(error).__name__}: {error}"
    return "\n".join([text, *frames])
