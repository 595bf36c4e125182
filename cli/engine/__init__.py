"""Brings a stack up and down: with the Pulumi CLI if there is one, else with the embedded runner.

`select` chooses the runner. A local cluster stays with the runner that brought it up.
"""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Literal, Protocol

from cli.console.events import Message, OnEvent, Summary, ignore
from cli.hints import HOW_TO_INSTALL, hint
from infra.errors import EXIT_REFUSED, EXIT_USAGE, UserError
from infra.program.stack import Stack

if TYPE_CHECKING:
    from cli.engine.automation import PulumiRunner

OVERRIDE = "SLURM_STACKS_RUNNER"
"""Environment variable that forces the runner: `embedded` or `pulumi`."""


Look = Callable[[Sequence[str]], Collection[str] | None]
"""Returns which of some hosts' machines are gone; `None` if that cannot be told."""


def nobody(_hosts: Sequence[str]) -> Collection[str]:
    """Return that no machine is gone."""
    return ()


class Runner(Protocol):
    """One stack of one checkout, and a way to run it."""

    @property
    def name(self) -> str:
        """`embedded` or `pulumi`."""
        ...

    def changing(
        self, verb: Literal["up", "down"], on_event: OnEvent = ignore
    ) -> AbstractContextManager[None]:
        """Have the right to change the stack for the body: a command enters this before it touches anything.

        All that this engine refuses and that can be known is refused here.

        Raises:
            UserError: Exit 3; another command works on the stack, from this checkout or by its backend's
                word from elsewhere, or the cluster is another engine's. Or the state cannot be used.
        """
        ...

    def preview(self, on_event: OnEvent = ignore, *, benchmark: bool = True) -> Summary:
        """Report what `up` would do, and change nothing.

        Args:
            benchmark: As for `up`.

        Raises:
            UserError: The program fails, or a cloud's provider refuses a value.
        """
        ...

    def up(
        self, on_event: OnEvent = ignore, *, benchmark: bool = True, lost: Collection[str] = ()
    ) -> dict[str, Any]:
        """Bring the stack up, or up to date, and return its outputs; secrets are `[secret]`.

        Args:
            benchmark: Whether to include the benchmark's resources; False leaves them as they are.
            lost: The hosts on a cloud whose machines are gone, which the engine does not notice by itself.
        """
        ...

    def check_destroy(self) -> None:
        """Refuse what `destroy` could only do in part. A command asks before it ends a job.

        Raises:
            UserError: Exit 3; the engine may not delete a resource, because it is protected.
        """
        ...

    def destroy(self, on_event: OnEvent = ignore, look: Look = nobody) -> None:
        """Destroy the stack. A stack that is not up is no error.

        Args:
            look: Tells which of the stack's hosts on a cloud are gone, which the engine does not notice.
        """
        ...

    def outputs(self) -> dict[str, Any] | None:
        """Return the outputs; `None` if the stack is not up."""
        ...


class EmbeddedRunner:
    """`cli.engine.embedded` as a `Runner`."""

    name = "embedded"

    def __init__(self, stack: Stack) -> None:
        # Imported here, because stacks that the Pulumi CLI runs do not need it.
        from cli.engine import embedded

        self._stack = stack
        self._engine = embedded

    def changing(
        self, verb: Literal["up", "down"], on_event: OnEvent = ignore
    ) -> AbstractContextManager[None]:
        return self._engine.changing(self._stack, verb)

    def preview(self, on_event: OnEvent = ignore, *, benchmark: bool = True) -> Summary:
        return self._engine.preview(self._stack, on_event, benchmark=benchmark)

    def up(
        self, on_event: OnEvent = ignore, *, benchmark: bool = True, lost: Collection[str] = ()
    ) -> dict[str, Any]:
        assert not lost, "it runs local stacks, whose provider starts their machines again"
        return self._engine.up(self._stack, on_event, benchmark=benchmark)

    def check_destroy(self) -> None:
        """Do nothing: it knows no protection."""

    def destroy(self, on_event: OnEvent = ignore, look: Look = nobody) -> None:
        # It runs local stacks, whose provider ends what is left of their machines.
        self._engine.destroy(self._stack, on_event)

    def outputs(self) -> dict[str, Any] | None:
        return self._engine.outputs(self._stack)


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
    wish = os.environ.get(OVERRIDE, "")
    if wish not in ("", "embedded", "pulumi"):
        raise UserError(
            f"${OVERRIDE} is {wish!r}; it may be embedded or pulumi", EXIT_USAGE, code="runner.override"
        )
    if provider != "local" or wish == "pulumi":
        if not cli:
            raise UserError(
                f"stack {stack.name} needs the Pulumi CLI. {HOW_TO_INSTALL}",
                EXIT_REFUSED,
                code="runner.needs-pulumi",
            )
        return _pulumi(stack, provider)
    return _local(stack, on_event, cli=cli and wish != "embedded")


def _local(stack: Stack, on_event: OnEvent, *, cli: bool) -> Runner:
    from cli.engine import embedded, organization
    from infra.program import owner

    holder = owner.read(stack)
    if holder is None and embedded.has_state(stack):
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
