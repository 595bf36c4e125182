"""What every command asks of an engine, whichever it is: the Pulumi CLI, or the embedded runner."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, Protocol

from cli.console.events import OnEvent, Summary, ignore

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
