"""Bringing a stack up and down: with the Pulumi CLI where there is one, else with the embedded runner.

`select` chooses. It keeps to whoever brought a local cluster up: nobody owns a cluster twice.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from infra.errors import EXIT_REFUSED, EXIT_USAGE, UserError
from infra.hints import hint
from infra.runner.events import Message, OnEvent, Summary, ignore
from infra.runner.refusal import HOW_TO_INSTALL

if TYPE_CHECKING:
    from infra.runner.automation import PulumiRunner

OVERRIDE = "SLURM_STACKS_RUNNER"
"""Environment variable: `embedded` or `pulumi` instead of the choice by what is on PATH."""


class Runner(Protocol):
    """One stack of one checkout, and a way to run it."""

    @property
    def name(self) -> str:
        """`embedded` or `pulumi`."""
        ...

    def preview(self, on_event: OnEvent = ignore) -> Summary:
        """What `up` would do; does nothing."""
        ...

    def up(self, on_event: OnEvent = ignore, *, benchmark: bool = True) -> dict[str, Any]:
        """Bring the stack up, or up to date; its outputs, secrets as `[secret]`.

        Args:
            benchmark: False leaves the benchmark's resources as they are, there or not.
        """
        ...

    def destroy(self, on_event: OnEvent = ignore) -> None:
        """Destroy the stack; a stack that is not up: no-op."""
        ...

    def outputs(self) -> dict[str, Any] | None:
        """The outputs; None: the stack is not up."""
        ...


class EmbeddedRunner:
    """`infra.runner.embedded` as a `Runner`; it imports the SDK only where it must."""

    name = "embedded"

    def __init__(self, project_dir: Path, stack: str) -> None:
        self._project_dir = project_dir
        self._stack = stack

    def preview(self, on_event: OnEvent = ignore) -> Summary:
        from infra.runner import embedded

        return embedded.preview(self._project_dir, self._stack, on_event)

    def up(self, on_event: OnEvent = ignore, *, benchmark: bool = True) -> dict[str, Any]:
        from infra.runner import embedded

        return embedded.up(self._project_dir, self._stack, on_event, benchmark=benchmark)

    def destroy(self, on_event: OnEvent = ignore) -> None:
        from infra.runner import embedded

        embedded.destroy(self._project_dir, self._stack, on_event)

    def outputs(self) -> dict[str, Any] | None:
        from infra.runner import embedded

        return embedded.outputs(self._project_dir, self._stack)


def select(project_dir: Path, stack: str, provider: str, on_event: OnEvent = ignore) -> Runner:
    """The runner for a stack.

    A local cluster stays with whoever brought it up. A new one is the CLI's where there is a CLI with its
    command plugin, else the embedded runner's.

    Args:
        provider: `local`, `aws` or `gcp`.
        on_event: told of a choice that may surprise.

    Raises:
        UserError: exit 3; the stack needs the CLI and there is none, or its cluster belongs to a backend that
            is not the one in use.
    """
    cli = shutil.which("pulumi") is not None
    wish = os.environ.get(OVERRIDE, "")
    if wish not in ("", "embedded", "pulumi"):
        raise UserError(f"${OVERRIDE} is {wish!r}; it may be embedded or pulumi", EXIT_USAGE)
    if provider != "local" or wish == "pulumi":
        if not cli:
            raise UserError(f"stack {stack} needs the Pulumi CLI. {HOW_TO_INSTALL}", EXIT_REFUSED)
        return _pulumi(project_dir, stack, local=provider == "local")
    return _local(project_dir, stack, on_event, cli=cli and wish != "embedded")


def _local(project_dir: Path, stack: str, on_event: OnEvent, *, cli: bool) -> Runner:
    from infra.runner import embedded, owner

    holder = owner.read(project_dir, stack)
    if holder is None and embedded.remembers(project_dir, stack):
        # The run directory is gone, after a reboot perhaps, but the state is the embedded runner's.
        holder = owner.EMBEDDED
    if holder == owner.EMBEDDED:
        if cli:
            on_event(
                Message(
                    f"stack {stack} was brought up without the Pulumi CLI and stays so until "
                    f"`{hint('down', stack)}`"
                )
            )
        return EmbeddedRunner(project_dir, stack)
    if not cli:
        if holder is not None:
            raise UserError(owner.refusal(project_dir, stack, holder), EXIT_REFUSED)
        return EmbeddedRunner(project_dir, stack)
    runner = _pulumi(project_dir, stack, local=True)
    if holder is not None:
        owner.check(project_dir, stack, runner.backend)
        return runner
    from infra.runner.automation import command_plugin

    if why := command_plugin(on_event):
        on_event(
            Message(
                f"the Pulumi CLI cannot get its command plugin ({why}): the embedded runner takes over",
                "warning",
            )
        )
        return EmbeddedRunner(project_dir, stack)
    return runner


def _pulumi(project_dir: Path, stack: str, *, local: bool) -> PulumiRunner:
    from infra.runner.automation import PulumiRunner

    return PulumiRunner(project_dir, stack, local=local)
