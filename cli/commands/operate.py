"""What `./cluster up`, `down` and `plan` do, apart from how they look."""

from __future__ import annotations

import dataclasses
import functools
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

import typer

from cli import results, slurm_release
from cli.commands import runs, shared_cores
from cli.console.progress import Console
from cli.engine import interrupt, preview
from cli.hints import hint, left_over
from cli.providers import provider
from cli.providers.interface import (
    ChecksItsEnd,
    ExplainsFailures,
    InstallsHere,
    KeepsStorage,
    KnowsMachines,
    PlansChanges,
    SharesCores,
)
from infra import cost, host_limits
from infra.additions import additions, bake_time
from infra.config.advice import warnings
from infra.design import benchmark_design
from infra.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_REFUSED, UserError
from infra.instance_types.catalog import catalog
from infra.program.stack import Stack
from node.slurm.phases import Phase, phase
from node.system import plurals
from operations.access import StackUp
from operations.waiting import attempts

if TYPE_CHECKING:
    from cli.changes.decision import CheckedChanges
    from cli.changes.jobs import Job
    from cli.engine.plan import Plan
    from cli.engine.runner import Runner
    from cli.providers.interface import Provider
    from infra.config import StackConfig
    from node.design.model import BenchmarkDesign, ClusterDesign
    from operations.access import Outputs

POLL_SECONDS = 2.0
SETTLE_SECONDS = 15.0


class Made(TypedDict):
    """What `./cluster up --json` prints.

    Attributes:
        result: The benchmark's result record; null if none was waited for, or if it is another user's.
        changes: The number of created, updated, replaced and deleted resources; empty if nothing changed.
        seconds: The time until the result was there.
    """

    stack: str
    outputs: dict[str, Any]
    result: dict[str, Any] | None
    changes: dict[str, int]
    seconds: float


@dataclass(frozen=True, slots=True)
class Request:
    """What `up` was asked for, with the design of the stack file, which all steps share.

    Attributes:
        training: The benchmark to run; `None` if the stack file has none, or if it is left as it is.
        benchmark: False leaves the benchmark as it is; a running job of it goes on.
        replace: Whether to make changes, too, that end running jobs or delete files.
        quiet: Whether to print nothing on standard output.
        began: When the `up` began, in seconds since the epoch.
    """

    up: StackUp
    training: BenchmarkDesign | None
    provider: Provider
    benchmark: bool
    replace: bool
    quiet: bool
    began: float

    @property
    def stack(self) -> Stack:
        """The stack that is brought up."""
        return self.up.stack

    @property
    def cluster(self) -> ClusterDesign:
        """The design of its cluster."""
        return self.up.design


@dataclass(frozen=True, slots=True)
class Change:
    """The change of a stack that a request comes to.

    Attributes:
        engine: Makes the change.
        former: The provider of the cluster that is up before the change: the scheduler may change, too.
        outputs: The outputs of that cluster.
        checked: What the change does to it.
    """

    request: Request
    engine: Runner
    former: Provider
    outputs: Outputs
    checked: CheckedChanges


def bring_up(
    stack: Stack,
    config: StackConfig,
    console: Console,
    *,
    replace: bool = False,
    benchmark: bool = True,
    quiet: bool = False,
) -> Made:
    """Create or change the stack, wait for its benchmark's result, and print it.

    Args:
        replace: As in `Request`.
        benchmark: As in `Request`.
        quiet: As in `Request`.

    Raises:
        UserError: The cluster did not come up, or the benchmark ended without a result.
    """
    from cli.console.tables import show_outputs

    started = time.monotonic()
    request = _designed(stack, config, replace=replace, benchmark=benchmark, quiet=quiet)
    engine = _engine(request, console)
    with _limits_named(request.up):
        # From before the first look at jobs until all is made, nobody else changes the stack.
        with engine.changing("up", console.on_event):
            change = _prepared(_checked(request, engine, console), console)
            outputs = _applied(_without_old_cluster(change, console), console)
        result = _benchmark_result(request, outputs, console)
    if not quiet:
        show_outputs(outputs)
    seconds = time.monotonic() - started
    console.say(f"up after {seconds:.0f} s")
    if request.training is not None:
        _compare(request, result, console)
        _wait_for_nodes(request, result, console)
    return Made(
        stack=stack.name,
        outputs=outputs,
        result=result,
        changes=console.changes,
        seconds=round(seconds, 1),
    )


@contextmanager
def _limits_named(up: StackUp) -> Iterator[None]:
    """Name the limit of this machine that an error's words mean, where the cluster's machines are here."""
    try:
        yield
    except (UserError, OSError, RuntimeError) as error:
        if up.design.provider != "local" or (why := host_limits.named(str(error))) is None:
            raise
        if isinstance(error, UserError):
            raise UserError(f"{error}\n{why}", error.exit_code, code=error.code) from None
        raise UserError(f"{error}\n{why}", code="system.refused") from None


def _designed(stack: Stack, config: StackConfig, *, replace: bool, benchmark: bool, quiet: bool) -> Request:
    """Design the stack, once for all steps."""
    up = StackUp.of(stack, config)
    return Request(
        up=up,
        training=benchmark_design(config, up.design) if benchmark else None,
        provider=provider.of(up),
        benchmark=benchmark,
        replace=replace,
        quiet=quiet,
        began=time.time(),
    )


def _engine(request: Request, console: Console) -> Runner:
    """Check the program and this machine, and choose the engine. Nothing is installed or changed yet.

    Raises:
        UserError: This machine lacks something.
    """
    from cli.engine import select

    stack, cluster = request.stack, request.cluster
    check_program(stack, cluster)
    request.provider.check_host(cluster)
    engine = select(stack, cluster.provider, console.on_event)
    place = "this machine" if cluster.provider == "local" else cluster.provider
    console.say(f"stack {stack.name}: cluster {cluster.name} on {place}", "bold")
    if advice := interrupt.background_hint():
        console.say(advice, "dim")
    return engine


def _checked(request: Request, engine: Runner, console: Console) -> Change:
    """Check what the request changes. Nothing is installed or changed yet.

    Raises:
        UserError: A change is refused.
    """
    from cli.engine import outputs_of

    stack, cluster = request.stack, request.cluster
    outputs = outputs_of(engine)
    former = provider.of_what_is_up(request.up, outputs)
    if request.benchmark:
        former_run = runs.find(former, request.up, request.training, outputs)
        runs.keep(stack.name, former_run, console.say, replace=request.replace)
    another = type(former) is not type(request.provider)
    if another and isinstance(former, ChecksItsEnd) and not request.replace:
        former.check_end(cluster, outputs)
    checked = request.provider.check_changes(stack, cluster, outputs, console.say, replace=request.replace)
    if checked.recreate:
        engine.check_destroy()
    return Change(request, engine, former, outputs, checked)


def _prepared(change: Change, console: Console) -> Change:
    """Preview the change, install what is missing here, and then end the jobs that the change ends."""
    request = change.request

    def prepare() -> None:
        preview.check(request.stack, request.cluster, change.engine, console, benchmark=request.benchmark)
        if isinstance(request.provider, InstallsHere):
            request.provider.prepare(request.cluster, console.say)

    change.checked.begin(prepare)
    return change


def _without_old_cluster(change: Change, console: Console) -> Change:
    """Destroy the cluster that is up if the change makes another one in its place."""
    from cli.engine import select

    if not change.checked.recreate:
        return change
    request = change.request
    console.say("this makes another cluster: the one that is up is destroyed first, with its files", "yellow")
    change.outputs()  # the destroy deletes them
    # Its jobs get time to save their state.
    change.former.drain(request.up, change.outputs, console.say, lambda _jobs: None)
    for line in _destroy(request.up, change.former, change.engine, change.outputs, console):
        console.say(line)
    engine = select(request.stack, request.cluster.provider, console.on_event)
    return dataclasses.replace(change, engine=engine)


def _applied(change: Change, console: Console) -> dict[str, Any]:
    """Have the engine make the change, repair what it does not see, and return the outputs.

    Raises:
        UserError: The change failed; the message has what the machines report about it.
    """
    request = change.request
    if (time_needed := bake_time(request.cluster)) is not None and not change.outputs():
        console.say(f"images are baked first, which takes {time_needed}; nodes then boot from them")
    try:
        with console.waiting("bringing the cluster up"), console.errors_once():
            outputs = change.engine.up(
                console.on_event, benchmark=request.benchmark, lost=change.checked.lost
            )
            # Resources that the engine knows may have died since; it sees no change and does nothing.
            request.provider.repair(request.up, console.say)
        # slurmctld keeps the states of partitions when it restarts.
        change.checked.release()
    except BaseException as error:
        # Jobs were held back for a change that has not been made.
        change.checked.release()
        if not isinstance(error, UserError) or error.exit_code != EXIT_FAILED:
            raise
        reported = None
        if isinstance(request.provider, ExplainsFailures):
            reported = request.provider.explain(request.cluster, request.began)
        message = f"{error}\n{reported}" if reported else str(error)
        raise UserError(
            f"{message}\n`./cluster doctor --stack {request.stack.name}` looks for the cause.",
            code="up.failed",
        ) from None
    return outputs


def _benchmark_result(
    request: Request, outputs: Mapping[str, Any], console: Console
) -> dict[str, Any] | None:
    """Wait for the result of the stack's job, print and keep it; `None` if there is none, or another user's.

    Raises:
        UserError: The job ended without a result; or the user does not wait any longer (exit 130).
    """
    if not request.benchmark:
        return None
    return request.provider.follow(
        request.up, request.training, console, outputs=outputs, quiet=request.quiet
    )


def _compare(request: Request, result: dict[str, Any] | None, console: Console) -> None:
    """Say how a result compares with kept ones, and whether its nodes shared their cores."""
    from cli.commands.report import programs, words

    if result is None:
        return
    stack = request.stack
    kept, _ = results.load(stack.name)
    compare = programs.compared if results.is_program(result) else words.compared_with_one_node
    if (comparison := compare(result, kept, stack.name)) is not None:
        console.say(comparison)
    if (shared := shared_cores.after(request.provider, stack, [result])) is not None:
        console.say(shared, "yellow")


def _wait_for_nodes(request: Request, result: dict[str, Any] | None, console: Console) -> None:
    """Wait until the benchmark's nodes are gone.

    Raises:
        UserError: Exit 130; the user does not wait any longer.
    """
    try:
        wait_for_idle(request.provider, request.up, console, result["job_id"] if result else None)
    except KeyboardInterrupt:
        raise UserError(
            "the cluster is up and the result is kept; the nodes go back by themselves. "
            f"`./cluster down --stack {request.stack.name}` ends the cluster.",
            EXIT_INTERRUPTED,
            code="up.interrupted-after-result",
        ) from None


def check_program(stack: Stack, cluster: ClusterDesign) -> None:
    """Refuse what `plan` refuses, before a cloud is asked or anything is installed.

    The local stack's program needs no such check: it runs in this process and makes nothing before it has
    been checked.

    Raises:
        UserError: The program of the stack refuses; the message is that of `plan`.
    """
    from cli.engine.plan import plan

    if cluster.provider != "local":
        plan(stack)


def wait_for_idle(provider: Provider, up: StackUp, console: Console, job: str | None = None) -> None:
    """Wait until the idle nodes are gone; after Ctrl-C they end without this program.

    The result of the benchmark's `job` is there a moment before Slurm knows that it has ended.
    """
    cluster = up.design
    static = sum(p.min for p in cluster.partitions)
    seconds = cluster.slurm.suspend_time + cluster.slurm.suspend_timeout + SETTLE_SECONDS
    with console.waiting(f"nodes go back after {cluster.slurm.suspend_time} s without work"):
        for _ in attempts(seconds, POLL_SECONDS):
            try:
                status = provider.status(up)
            except UserError as error:  # the result is already kept
                console.say(f"the cluster does not answer just now: {error}", "yellow")
                return
            machines_up = status["machines"]["running"] + status["machines"]["pending"]
            if machines_up <= static:
                submit = hint("exec", up.stack.name, "-- sbatch …")
                console.say(f"back to {plurals.count(machines_up, 'node')}; `{submit}` brings them up again")
                return
            # Jobs that wait for nodes, and those that have just ended, keep none up.
            others = [entry for entry in status["jobs"] if _keeps_nodes(entry)]
            if any(job is None or str(entry.get("id")) != job for entry in others):
                console.say(f"other jobs keep nodes up: `{hint('status', up.stack.name)}` names them")
                return
            console.now(f"{machines_up} up")
    console.say(f"nodes are still up: `{hint('status', up.stack.name)}` says why", "yellow")


def _keeps_nodes(job: Mapping[str, Any]) -> bool:
    return phase(job["state"], nodes=bool(job.get("nodes"))) not in (Phase.WAITING, Phase.COMPLETING)


def take_down(up: StackUp, console: Console, *, yes: bool = False) -> None:
    """Destroy the stack and look for leftovers.

    Args:
        up: The stack, whose file need not be valid, because what is up must always come down.
        yes: Whether to end jobs without a question. Without a terminal there is no question in any case.

    Raises:
        UserError: Something is left, and the message names it; or somebody wants to keep the jobs (exit 3).
    """
    from cli.engine import outputs_of, select

    provider.of(up)  # This machine may not be able to run it.
    engine = select(up.stack, up.provider, console.on_event)
    if hint := interrupt.background_hint():
        console.say(hint, "dim")
    known = outputs_of(engine)
    with engine.changing("down", console.on_event):
        engine.check_destroy()
        chosen = provider.of_what_is_up(up, known)
        # This reads the outputs if the search for leftovers needs them: the destroy deletes them.
        chosen.drain(up, known, console.say, functools.partial(agree, up.stack.name, console, yes))
        kept = _destroy(up, chosen, engine, known, console)
    for line in ["nothing else is left", *kept] if kept else ["nothing is left"]:
        console.say(line)


def _destroy(
    up: StackUp, chosen: Provider, engine: Runner, known: Outputs, console: Console
) -> Sequence[str]:
    """Destroy the stack, and look for leftovers. Returns the lines about what stays on purpose.

    Args:
        known: The stack's outputs from before the destroy.

    Raises:
        UserError: Something is left; the message names it.
    """
    from cli.engine import embedded
    from cli.engine.runner import Look, nobody
    from cli.engine.state import DamagedStateError

    damaged = False
    look: Look = nobody
    if isinstance(chosen, KnowsMachines):
        look = functools.partial(chosen.lost, up, known, console.say)
    with console.waiting("taking the cluster down"), console.errors_once():
        try:
            engine.destroy(console.on_event, look)
        except DamagedStateError as error:
            console.say(f"{error.path} is damaged: the cluster is ended without it", "yellow")
            damaged = True
        kept = chosen.kept(up, known) if isinstance(chosen, KeepsStorage) else []
        left = chosen.leftovers(up, known)
        if damaged or left:
            # The engine did not know these: its state was lost, or is older than a kill.
            chosen.force_cleanup(up, known)
            left = chosen.leftovers(up, known)
    if damaged and not left:
        embedded.forget(up.stack)
    if left:
        name = up.stack.name
        raise UserError(left_over(name, left, f"./cluster down --stack {name}"), code="cluster.left-over")
    return kept


def agree(stack: str, console: Console, yes: bool, jobs: Sequence[Job]) -> None:
    """Name the jobs that end with the cluster, and ask for consent if there is a terminal.

    Raises:
        UserError: Exit 3; the user wants to keep them.
    """
    from cli.changes.jobs import listed

    if not jobs:
        return
    console.say(
        "\n".join(
            [f"{len(jobs)} {'job ends' if len(jobs) == 1 else 'jobs end'} with the cluster:", *listed(jobs)]
        )
    )
    if yes or not (console.live and sys.stdin.isatty()):
        return
    if not typer.confirm("End them, and destroy the cluster with its files?", err=True):
        raise UserError(
            f"nothing was changed: the cluster of stack {stack} and its jobs go on",
            EXIT_REFUSED,
            code="down.not-agreed",
        )


def make_plan(stack: Stack, config: StackConfig) -> Plan:
    """Return the plan contract (`./cluster plan --json`)."""
    from cli.changes import table
    from cli.engine import lazy_sdks

    lazy_sdks.install()  # before anything imports pulumi
    from cli.engine.plan import plan

    up = StackUp.of(stack, config)
    chosen, cluster = provider.of(up), up.design
    training = benchmark_design(config, cluster)
    release, advice = slurm_release.planned(cluster)
    advice += slurm_release.without_pmix(cluster)
    advice += warnings(config, cluster, catalog(), shared_cores.own_cores())
    advice += shared_cores.of_benchmark(chosen, stack, training)
    if isinstance(chosen, SharesCores):
        advice += chosen.limits_here(stack, cluster)
    result = plan(stack, annotate=lambda _: ({**cost.cost(cluster), "budget": cost.budget(cluster)}, advice))
    result["additions"] = additions(cluster)
    result["slurm"] = release or None
    changes = chosen.changes(stack, cluster) if isinstance(chosen, PlansChanges) else None
    result["changes"] = None if changes is None else table.described(*changes)
    if result["changes"] is not None:
        result["changes"] += runs.described(chosen, up, training)
    return result
