"""The embedded runner: `up` and `destroy` of the local stack without the Pulumi CLI.

It runs the same `__main__.py` as the CLI does, executes its local commands for real, and keeps their state
in the user's state folder. It is a convenience, not an engine: anything but local commands is refused.
Differences from the real one: `aliases` are ignored (a renamed resource is deleted and created), there is no
refresh, and a create that failed or was killed is recorded, so that it is done again or deleted, where the
real engine forgets it. Creates and deletes must therefore be idempotent.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from infra.errors import EXIT_INTERRUPTED, EXIT_REFUSED, UserError
from infra.runner import deletion, interrupt, locations, lock, mode, owner, project, wire
from infra.runner.events import Message, OnEvent, Summary, ignore
from infra.runner.lifecycle import Lifecycle
from infra.runner.refusal import HOW_TO_INSTALL
from infra.runner.state import State, boot_id

STATE_FILE = "state.json"


def up(
    project_dir: Path, stack: str, on_event: OnEvent = ignore, *, benchmark: bool = True
) -> dict[str, Any]:
    """Bring the stack up, or up to date; its outputs, secrets as `[secret]`.

    Args:
        benchmark: False leaves the benchmark's resources as they are: neither declared nor deleted.

    Raises:
        UserError: a command failed (exit 1; the state is kept and a second `up` continues), the stack file is
            wrong (2), or the program or the stack is not for this runner (3).
    """
    settings = _load(project_dir, stack)
    with lock.held(project_dir, stack, "up"):
        fresh = owner.read(project_dir, stack) is None
        owner.claim(project_dir, stack, owner.EMBEDDED)
        with _state(project_dir, settings.name, stack) as state:
            _forget_lost(state, fresh, on_event)
            life = Lifecycle(settings, state, on_event)
            with interrupt.forwarded(life, on_event):
                with _kept(None if benchmark else mode.of_benchmark(state.outputs)):
                    seen, outputs = _register(life, on_event)
                if not benchmark:
                    seen |= {urn for urn in state.records if mode.is_benchmarks(urn)}
                # After a failure what is known of them: the way in to a half-made cluster is worth having.
                state.outputs = {**state.outputs, **outputs} if life.failures else outputs
                state.save()
                if not life.failures and not life.stopping.is_set():
                    vanished = [r for urn, r in state.records.items() if urn not in seen]
                    _delete(life, [*state.doomed, *vanished], " is not in the program any more, but")
            _finish(
                life,
                on_event,
                f"`./cluster up --stack {stack}` continues where this stopped, "
                f"`./cluster down --stack {stack}` removes what is there",
            )
            return state.outputs


def preview(project_dir: Path, stack: str, on_event: OnEvent = ignore) -> Summary:
    """Say what `up` would do, by the same events, and do nothing.

    Raises:
        UserError: as `up`.
    """
    settings = _load(project_dir, stack)
    owner.check(project_dir, stack, owner.EMBEDDED)
    state = State.load(_path(project_dir, stack), settings.name, stack)
    life = Lifecycle(settings, state, on_event, preview=True)
    seen, _ = _register(life, on_event)
    vanished = [r for urn, r in state.records.items() if urn not in seen]
    for record in [*state.doomed, *vanished]:
        life.announce_deletion(record)
    on_event(life.summary())
    return life.summary()


def destroy(project_dir: Path, stack: str, on_event: OnEvent = ignore) -> None:
    """Delete everything that the state knows, in the reverse order of dependencies; nothing there: no-op.

    The program is not run: a stack whose program no longer works can still be destroyed.

    Raises:
        UserError: a delete command failed (exit 1; the state is kept), a resource is protected (1), or the
            stack belongs to someone else (3).
    """
    if owner.read(project_dir, stack) is None and not _path(project_dir, stack).exists():
        on_event(Summary())
        return
    settings = project.Project("", project_dir.resolve(), stack, {})
    with lock.held(project_dir, stack, "down"):
        owner.check(project_dir, stack, owner.EMBEDDED)
        with _state(project_dir, settings.name, stack) as state:
            state.forgiving = True
            life = Lifecycle(settings, state, on_event)
            with interrupt.forwarded(life, on_event):
                _delete(life, [*state.doomed, *state.records.values()], "")
            _finish(life, on_event, f"`./cluster down --stack {stack}` continues where this stopped")


def outputs(project_dir: Path, stack: str) -> dict[str, Any] | None:
    """The recorded outputs; None: the stack is not up."""
    state = State.load(_path(project_dir, stack), "", stack)
    return None if state.empty else state.outputs


def remembers(project_dir: Path, stack: str) -> bool:
    """Whether there is a state, damaged or not: something of the stack was up under this runner."""
    return _path(project_dir, stack).exists()


def abandon(project_dir: Path, stack: str) -> None:
    """Forget a stack of which nothing is left, whatever the state says."""
    with lock.held(project_dir, stack, "down"):
        State(_path(project_dir, stack), "", stack).erase()
        owner.release(project_dir, stack)


def _register(life: Lifecycle, on_event: OnEvent) -> tuple[set[str], dict[str, Any]]:
    """Run the program; the URNs that it registers and the outputs that it exports, secrets as `[secret]`."""
    # Here, because the SDK costs a quarter of a second, and `outputs` and `destroy` do without.
    from infra.runner import program
    from infra.runner.monitor import EmbeddedMonitor

    monitor = EmbeddedMonitor(life)
    program.run(monitor, mode_="embedded", preview=life.preview, on_event=on_event)
    return monitor.seen, wire.redacted(monitor.outputs)


@contextmanager
def _kept(benchmark: dict[str, Any] | None) -> Iterator[None]:
    token = mode.KEPT.set(benchmark)
    try:
        yield
    finally:
        mode.KEPT.reset(token)


def _path(project_dir: Path, stack: str) -> Path:
    return locations.state_dir(project_dir, stack) / STATE_FILE


def _load(project_dir: Path, stack: str) -> project.Project:
    settings = project.load(project_dir, stack)
    if settings.secure:
        keys = ", ".join(sorted(settings.secure))
        raise UserError(
            f"Pulumi.{stack}.yaml: {keys} is encrypted, and only Pulumi can decrypt it. {HOW_TO_INSTALL}",
            EXIT_REFUSED,
        )
    return settings


@contextmanager
def _state(project_dir: Path, name: str, stack: str) -> Iterator[State]:
    """The stack's state; a stack that is empty at the end leaves no state and no owner."""
    state = State.load(_path(project_dir, stack), name, stack)
    try:
        yield state
    except BaseException:
        # A program that failed at once leaves nothing but the records of its stack and components.
        if not state.doomed and not any(record.custom for record in state.records.values()):
            state.records.clear()
        raise
    finally:
        if state.empty:
            state.erase()
            owner.release(project_dir, stack)


def _forget_lost(state: State, fresh: bool, on_event: OnEvent) -> None:
    """After a reboot, or when the run directory was removed, what the state says is up is not: do it anew."""
    rebooted = state.boot != boot_id()
    if state.records and (fresh or rebooted):
        reason = "the machine was restarted" if rebooted else "the run directory is gone"
        on_event(Message(f"{reason} since this stack was brought up: all of it is created again", "warning"))
        for record in state.records.values():
            record.status, record.process = "creating", None
    state.boot = boot_id()


def _delete(life: Lifecycle, records: list[Any], why: str) -> None:
    if names := deletion.protected(records):
        raise UserError(
            f"{', '.join(names)}{why} is protected. Remove `protect` in the program, run `up`, and try again."
        )
    deletion.delete_all(life, records)


def _finish(life: Lifecycle, on_event: OnEvent, how_to_go_on: str) -> None:
    """Report the end.

    Raises:
        UserError: something failed, or the run was interrupted.
    """
    on_event(life.summary())
    if life.stopping.is_set():
        there = [r.name for r in life.state.records.values() if r.custom]
        if not there:
            raise UserError("interrupted; nothing of the stack is there.", EXIT_INTERRUPTED)
        raise UserError(
            f"interrupted; of the stack there is {', '.join(there)}. {how_to_go_on}.", EXIT_INTERRUPTED
        )
    if life.failures:
        raise UserError("\n".join([*life.failures, f"({how_to_go_on})"]))
