"""Brings the local stack up and down without the Pulumi CLI, by the verbs of its commands.

It runs the same `__main__.py` as the CLI, against the SDK's mock monitor. All that the program declares are
commands whose verbs can run again at any time (`operations.local`). So there is no plan, no refresh and no
comparison of resources: what was begun is listed in the checkout, `up` runs what is not whole or was given
something else, and `down` runs the verbs of the list backwards.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Literal

from cli.console.events import Message, OnEvent, Summary, ignore
from cli.engine import interrupt, project, state
from cli.engine.lock import locked
from cli.engine.runner import Look, nobody
from cli.engine.state import DamagedStateError, State
from cli.engine.verbs import Verbs
from cli.hints import HOW_TO_INSTALL
from infra.errors import EXIT_INTERRUPTED, EXIT_REFUSED, UserError
from infra.program import mode, owner
from infra.program.stack import Stack
from node.system.processes import boot_id


class EmbeddedRunner:
    """A local stack of one checkout (`cli.engine.runner.Runner`)."""

    name = "embedded"

    def __init__(self, stack: Stack) -> None:
        self._stack = stack

    @contextmanager
    def changing(self, verb: Literal["up", "down"], on_event: OnEvent = ignore) -> Iterator[None]:
        with locked(self._stack, verb):
            if verb == "up":
                self._project()
                owner.check_claim(self._stack, owner.EMBEDDED)
                known = State.load(self._stack)
                if known.made:
                    known.save()  # there is room for it, and a right to write it
            elif state.has_state(self._stack):
                owner.check(self._stack, owner.EMBEDDED)
                with suppress(DamagedStateError):  # `down` ends the cluster without it
                    State.load(self._stack)
            yield

    def preview(self, on_event: OnEvent = ignore, *, benchmark: bool = True) -> Summary:
        """Do nothing: there is no cloud whose provider could refuse a value."""
        return Summary()

    def up(
        self, on_event: OnEvent = ignore, *, benchmark: bool = True, lost: Collection[str] = ()
    ) -> dict[str, Any]:
        """Bring the stack up, or up to date, and return its outputs.

        Args:
            benchmark: Whether to include the benchmark's commands; False neither declares nor deletes them.

        Raises:
            UserError: A verb failed (exit 1; a second `up` continues), the stack file is wrong (exit 2), or
                the program or the stack needs the CLI (exit 3).
        """
        assert not lost, "the provider of local stacks starts their machines again"
        # Imported here, because the SDK takes a quarter of a second, and a destroy does not need it.
        from cli.engine import program
        from cli.engine.monitor import CommandMonitor

        settings = self._project()
        with locked(self._stack, "up"):
            fresh = owner.read(self._stack) is None
            owner.claim(self._stack, owner.EMBEDDED)
            known = State.load(self._stack)
            _forget_lost(known, fresh, on_event)
            with self._running("up", known, on_event) as verbs:
                monitor = CommandMonitor(settings, verbs)
                kept = None if benchmark else mode.of_benchmark(known.outputs)
                program.run(monitor, mode_="embedded", preview=False, on_event=on_event, kept=kept)
                # Those that were known before tell how to log in to a part of a cluster.
                known.outputs = {**({} if verbs.whole else known.outputs), **monitor.outputs}
                if verbs.whole:  # what another one needs now may have been made after it
                    known.sort(monitor.seen)
                known.save()
                if verbs.whole:
                    gone = [urn for urn in known.made if urn not in monitor.seen]
                    verbs.delete([urn for urn in gone if benchmark or not mode.is_benchmarks(urn)])
            return known.outputs

    def check_destroy(self) -> None:
        """Do nothing: it brings up nothing that is protected."""

    def destroy(self, on_event: OnEvent = ignore, look: Look = nobody) -> None:
        """Delete what is listed, the last first. A stack without a state is no error.

        The program does not run, so a stack whose program no longer works can still be destroyed.

        Raises:
            UserError: A verb failed (exit 1; a second `down` continues), or the stack belongs to another
                runner (exit 3).
        """
        with locked(self._stack, "down"):
            owner.check(self._stack, owner.EMBEDDED)
            known = State.load(self._stack)
            known.ignore_full_disk = True
            with self._running("down", known, on_event) as verbs:
                verbs.delete(list(known.made))

    def outputs(self) -> dict[str, Any] | None:
        return state.outputs(self._stack)

    def _project(self) -> project.Project:
        settings = project.load(self._stack)
        if settings.secure:
            keys = ", ".join(sorted(settings.secure))
            raise UserError(
                f"{self._stack.file.name}: {keys} is encrypted, and only Pulumi can decrypt it. "
                f"{HOW_TO_INSTALL}",
                EXIT_REFUSED,
                code="runner.encrypted",
            )
        return settings

    @contextmanager
    def _running(self, verb: str, known: State, on_event: OnEvent) -> Iterator[Verbs]:
        """Run verbs in the body, and report its end. What has nothing listed then has no state and no owner.

        Raises:
            UserError: A verb failed, or the run was interrupted.
        """
        verbs = Verbs(self._stack.project.resolve(), known, on_event)
        try:
            with interrupt.forwarded(verbs, on_event):
                verbs.end_leftovers()
                yield verbs
        finally:
            if not known.made:
                known.erase()
                owner.release(self._stack)
        on_event(verbs.summary())
        goes_on = f"`./cluster {verb} --stack {self._stack.name}` continues where this stopped"
        if verb == "up":
            goes_on += f", `./cluster down --stack {self._stack.name}` removes what is there"
        if verbs.stopping.is_set():
            raise _interrupted(known, goes_on)
        if verbs.failures:
            raise UserError("\n".join([*verbs.failures, f"({goes_on})"]), code="runner.resources-failed")


def forget(stack: Stack) -> None:
    """Remove the state of a stack of which nothing is left."""
    with locked(stack, "down"):
        State(stack).erase()
        owner.release(stack)


def _forget_lost(known: State, fresh: bool, on_event: OnEvent) -> None:
    """Have all verbs run again after a reboot, or if the run directory was removed."""
    rebooted = known.boot != boot_id()
    if known.made and (fresh or rebooted):
        reason = "the machine was restarted" if rebooted else "the run directory is gone"
        on_event(Message(f"{reason} since this stack was brought up: all of it is created again", "warning"))
        for made in known.made.values():
            made.outputs, made.whole, made.process = {}, False, None
    known.boot = boot_id()


def _interrupted(known: State, goes_on: str) -> UserError:
    if not known.made:
        text = "interrupted; nothing of the stack is there."
        return UserError(text, EXIT_INTERRUPTED, code="runner.interrupted-empty")
    names = ", ".join(urn.rpartition("::")[2] for urn in known.made)
    text = f"interrupted; of the stack there is {names}. {goes_on}."
    return UserError(text, EXIT_INTERRUPTED, code="runner.interrupted")
