"""The embedded runner: `up` and `destroy` of the local stack without the Pulumi CLI.

It runs the same `__main__.py` as the CLI, executes its local commands, and keeps their state in the
checkout. It is a convenience, not an engine: it refuses everything but local commands, and every option
that this project's program does not use.

It differs from the real engine in three points. It ignores `aliases`: a renamed resource is deleted and
created. It has no refresh. It records a create that failed or was killed, and repeats or deletes it, while
the real engine forgets it; creates and deletes must therefore be idempotent.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

from cli.console.events import Message, OnEvent, Summary, ignore
from cli.engine import interrupt, project
from cli.engine.lifecycle import Lifecycle, delete_all
from cli.engine.state import STATE_FILE, DamagedStateError, State, boot_id, locked
from cli.hints import HOW_TO_INSTALL
from infra.errors import EXIT_INTERRUPTED, EXIT_REFUSED, UserError
from infra.program import locations, mode, owner
from infra.program.stack import Stack


@contextmanager
def changing(stack: Stack, verb: Literal["up", "down"]) -> Iterator[None]:
    """See `cli.engine.Runner.changing`."""
    with locked(stack, verb):
        if verb == "up":
            settings = _load(stack)
            owner.check_claim(stack, owner.EMBEDDED)
            state = State.load(_path(stack), settings.name, stack.name)
            if not state.empty:
                state.save()  # there is room for it, and a right to write it
        elif _path(stack).exists():
            owner.check(stack, owner.EMBEDDED)
            with suppress(DamagedStateError):  # `down` ends the cluster without it
                State.load(_path(stack), "", stack.name)
        yield


def up(stack: Stack, on_event: OnEvent = ignore, *, benchmark: bool = True) -> dict[str, Any]:
    """Bring the stack up, or up to date, and return its outputs.

    Args:
        benchmark: Whether to include the benchmark's resources; False neither declares nor deletes them.

    Raises:
        UserError: A command failed (exit 1; the state is kept and a second `up` continues), the stack file is
            wrong (exit 2), or this runner cannot run the program or the stack (exit 3).
    """
    settings = _load(stack)
    with locked(stack, "up"):
        fresh = owner.read(stack) is None
        owner.claim(stack, owner.EMBEDDED)
        with _state(stack, settings.name) as state:
            _forget_lost(state, fresh, on_event)
            life = Lifecycle(settings, state, on_event)
            with interrupt.forwarded(life, on_event):
                with _kept(None if benchmark else mode.of_benchmark(state.outputs)):
                    seen, outputs = _register(life, on_event)
                if not benchmark:
                    seen |= {urn for urn in state.records if mode.is_benchmarks(urn)}
                # After a failure, keep the known outputs: they tell how to log in to an incomplete cluster.
                state.outputs = {**state.outputs, **outputs} if life.failures else outputs
                state.save()
                if not life.failures and not life.stopping.is_set():
                    vanished = [r for urn, r in state.records.items() if urn not in seen]
                    delete_all(life, [*state.to_delete, *vanished])
            _finish(
                life,
                on_event,
                f"`./cluster up --stack {stack.name}` continues where this stopped, "
                f"`./cluster down --stack {stack.name}` removes what is there",
            )
            return state.outputs


def preview(stack: Stack, on_event: OnEvent = ignore, *, benchmark: bool = True) -> Summary:
    """Report what `up` would do, with the same events, and change nothing.

    Args:
        benchmark: As for `up`.

    Raises:
        UserError: As for `up`.
    """
    settings = _load(stack)
    owner.check(stack, owner.EMBEDDED)
    state = State.load(_path(stack), settings.name, stack.name)
    life = Lifecycle(settings, state, on_event, preview=True)
    with _kept(None if benchmark else mode.of_benchmark(state.outputs)):
        seen, _ = _register(life, on_event)
    if not benchmark:
        seen |= {urn for urn in state.records if mode.is_benchmarks(urn)}
    vanished = [r for urn, r in state.records.items() if urn not in seen]
    for record in [*state.to_delete, *vanished]:
        life.announce_deletion(record)
    on_event(life.summary())
    return life.summary()


def destroy(stack: Stack, on_event: OnEvent = ignore) -> None:
    """Delete all recorded resources, in the reverse order of their dependencies.

    The program does not run, so a stack whose program no longer works can still be destroyed. A stack without
    a state is no error.

    Raises:
        UserError: A delete command failed (exit 1; the state is kept), or the stack belongs to another runner
            (exit 3).
    """
    if owner.read(stack) is None and not _path(stack).exists():
        # An `up` that was killed at once may have left folders: `release` and the lock remove them.
        if locations.run_dir(stack).exists() or locations.state_dir(stack).exists():
            with locked(stack, "down"):
                owner.release(stack)
        on_event(Summary())
        return
    settings = project.Project("", stack.project.resolve(), stack.name, {})
    with locked(stack, "down"):
        owner.check(stack, owner.EMBEDDED)
        with _state(stack, settings.name) as state:
            state.ignore_full_disk = True
            life = Lifecycle(settings, state, on_event)
            with interrupt.forwarded(life, on_event):
                delete_all(life, [*state.to_delete, *state.records.values()])
            _finish(life, on_event, f"`./cluster down --stack {stack.name}` continues where this stopped")


def outputs(stack: Stack) -> dict[str, Any] | None:
    """Return the recorded outputs; `None` if the stack is not up."""
    state = State.load(_path(stack), "", stack.name)
    return None if state.empty else state.outputs


def has_state(stack: Stack) -> bool:
    """Return whether there is a state, even a damaged one: then this runner has brought the stack up."""
    return _path(stack).exists()


def forget(stack: Stack) -> None:
    """Remove the state of a stack of which nothing is left."""
    with locked(stack, "down"):
        State(_path(stack), "", stack.name).erase()
        owner.release(stack)


def _register(life: Lifecycle, on_event: OnEvent) -> tuple[set[str], dict[str, Any]]:
    """Run the program. Returns the URNs that it registers, and its outputs."""
    # Imported here, because the SDK takes a quarter of a second, and `outputs` and `destroy` do not need it.
    from cli.engine import program
    from cli.engine.monitor import EmbeddedMonitor

    monitor = EmbeddedMonitor(life)
    program.run(monitor, mode_="embedded", preview=life.preview, on_event=on_event)
    return monitor.seen, monitor.outputs


@contextmanager
def _kept(benchmark: dict[str, Any] | None) -> Iterator[None]:
    token = mode.KEPT.set(benchmark)
    try:
        yield
    finally:
        mode.KEPT.reset(token)


def _path(stack: Stack) -> Path:
    return locations.state_dir(stack) / STATE_FILE


def _load(stack: Stack) -> project.Project:
    settings = project.load(stack)
    if settings.secure:
        keys = ", ".join(sorted(settings.secure))
        raise UserError(
            f"{stack.file.name}: {keys} is encrypted, and only Pulumi can decrypt it. {HOW_TO_INSTALL}",
            EXIT_REFUSED,
            code="runner.encrypted",
        )
    return settings


@contextmanager
def _state(stack: Stack, name: str) -> Iterator[State]:
    """Load the stack's state for the body. A stack without resources at the end has no state and no owner."""
    state = State.load(_path(stack), name, stack.name)
    try:
        yield state
    except BaseException:
        # If the program failed at once, there are only records of the stack and its components.
        if not state.to_delete and not any(record.custom for record in state.records.values()):
            state.records.clear()
        raise
    finally:
        if state.empty:
            state.erase()
            owner.release(stack)


def _forget_lost(state: State, fresh: bool, on_event: OnEvent) -> None:
    """Mark all resources as not created, after a reboot or if the run directory was removed."""
    rebooted = state.boot != boot_id()
    if state.records and (fresh or rebooted):
        reason = "the machine was restarted" if rebooted else "the run directory is gone"
        on_event(Message(f"{reason} since this stack was brought up: all of it is created again", "warning"))
        for record in state.records.values():
            record.status, record.process = "creating", None
    state.boot = boot_id()


def _finish(life: Lifecycle, on_event: OnEvent, how_to_go_on: str) -> None:
    """Report the end of the run.

    Raises:
        UserError: An operation failed, or the run was interrupted.
    """
    on_event(life.summary())
    if life.stopping.is_set():
        names = [r.name for r in life.state.records.values() if r.custom]
        if not names:
            raise UserError(
                "interrupted; nothing of the stack is there.",
                EXIT_INTERRUPTED,
                code="runner.interrupted-empty",
            )
        raise UserError(
            f"interrupted; of the stack there is {', '.join(names)}. {how_to_go_on}.",
            EXIT_INTERRUPTED,
            code="runner.interrupted",
        )
    if life.failures:
        raise UserError("\n".join([*life.failures, f"({how_to_go_on})"]), code="runner.resources-failed")
