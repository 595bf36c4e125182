"""Brings a stack up and down: with the Pulumi CLI if there is one, else with the embedded runner.

`select` chooses the runner. A local cluster stays with the runner that brought it up.
"""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from cli.console.events import Message, OnEvent, ignore
from cli.engine.runner import Runner
from cli.hints import HOW_TO_INSTALL, hint
from infra.errors import EXIT_REFUSED, UserError
from infra.program.stack import Stack

if TYPE_CHECKING:
    from cli.engine.automation import PulumiRunner


def outputs_of(engine: Runner) -> Callable[[], Mapping[str, Any]]:
    """Return the engine's outputs, read on first use as the engine takes a second; empty if it cannot say."""

    @functools.cache
    def ask() -> Mapping[str, Any]:
        try:
            return engine.outputs() or {}
        except UserError:
            return {}

    return ask


def select(stack: Stack, provider: str, on_event: OnEvent = ignore) -> Runner:
    """Choose the runner for a stack.

    A local cluster stays with the runner that brought it up. A new local cluster gets the CLI if that is
    installed and has its command plugin, else the embedded runner.

    Args:
        provider: `local`, `aws` or `gcp`.
        on_event: Gets a message about a choice that may surprise the user.

    Raises:
        UserError: Exit 3; the stack needs the CLI and there is none, or its cluster belongs to another
            backend than the one in use.
    """
    # Imported here, because messages and `--version` need the names of this package only.
    from cli.engine import organization

    asked, stack = stack, organization.resolved(stack)
    if stack != asked:
        on_event(Message(f"stack {stack.engine_name}, which was brought up from here"))
    cli = shutil.which("pulumi") is not None
    if provider == "local":
        return _local(stack, on_event, cli=cli)
    if not cli:
        raise UserError(
            f"stack {stack.name} needs the Pulumi CLI. {HOW_TO_INSTALL}",
            EXIT_REFUSED,
            code="runner.needs-pulumi",
        )
    return _pulumi(stack, provider)


def _local(stack: Stack, on_event: OnEvent, *, cli: bool) -> Runner:
    from cli.engine import organization
    from cli.engine.embedded import EmbeddedRunner
    from cli.engine.state import has_state
    from infra.program import owner

    holder = owner.read(stack)
    if holder is None and has_state(stack):
        # The run directory is gone, perhaps after a reboot, but there is a state of the embedded runner.
        holder = owner.EMBEDDED
    if holder == owner.EMBEDDED:
        if cli:
            on_event(
                Message(
                    f"stack {stack.name} was brought up without the Pulumi CLI and stays so until "
                    f"`{hint('down', stack.name)}`"
                )
            )
        organization.refuse_without_cli(stack)
        return EmbeddedRunner(stack)
    if not cli:
        organization.refuse_without_cli(stack)
        if holder is not None:
            raise UserError(owner.refusal(stack, holder), EXIT_REFUSED, code="runner.other-owner")
        return EmbeddedRunner(stack)
    runner = _pulumi(stack, "local")
    if holder is not None:
        owner.check(stack, runner.backend)
        return runner
    from cli.engine.automation import command_plugin

    if why := command_plugin(on_event):
        organization.refuse_without_cli(stack)
        on_event(
            Message(
                f"the Pulumi CLI cannot get its command plugin ({why}): the embedded runner takes over",
                "warning",
            )
        )
        return EmbeddedRunner(stack)
    return runner


def _pulumi(stack: Stack, provider: str) -> PulumiRunner:
    from cli.engine.automation import PLUGIN, PulumiRunner

    local = provider == "local"
    return PulumiRunner(stack, local=local, packages=(PLUGIN,) if local else (PLUGIN, provider))
