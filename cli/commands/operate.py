"""What `./cluster up`, `down` and `plan` do, apart from how they look."""

from __future__ import annotations

import dataclasses
import functools
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

import typer

from cli import results, slurm_release
from cli.commands import runs, shared_cores
from cli.console.jobs import ending, situation
from cli.console.progress import Console
from cli.engine import interrupt, preview
from cli.hints import hint, left_over
from cli.providers import login_machine, provider
from infra import cost
from infra.additions import additions, bake_time
from infra.benchmark import BenchmarkRun
from infra.config.advice import warnings
from infra.design import benchmark_design, design
from infra.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_REFUSED, NotUpError, UserError
from infra.instance_types.catalog import catalog
from infra.program.stack import Stack
from node.slurm.phases import Phase, phase
from node.system import plurals
from operations.access import StackUp
from operations.waiting import attempts

if TYPE_CHECKING:
    from cli.changes.decision import CheckedChanges
    from cli.changes.jobs import Job
    from cli.engine import Runner
    from cli.engine.plan import Plan
    from cli.providers.provider import Provider
    from infra.config import StackConfig
    from node.design.model import BenchmarkDesign, ClusterDesign
    from operations.access import Outputs

POLL_SECONDS = 2.0
SUBMIT = "-benchmark-job"
"""The end of the name of the resource that submits the benchmark."""
SETTLE_SECONDS = 15.0
PATIENCE_SECONDS = 60.0
"""How long a controller may fail to answer while this program waits for a job."""


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
    cluster: ClusterDesign
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


@dataclass(frozen=True, slots=True)
class Change:
    """The change of a stack that a request comes to.

    Attributes:
        engine: Makes the change.
        outputs: The outputs of the cluster that is up before the change.
        checked: What the change does to that cluster.
    """

    request: Request
    engine: Runner
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
    # From before the first look at jobs until all is made, nobody else changes the stack. Then others may.
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


def _designed(stack: Stack, config: StackConfig, *, replace: bool, benchmark: bool, quiet: bool) -> Request:
    """Design the stack, once for all steps."""
    cluster = design(config, catalog())
    return Request(
        up=StackUp.of(stack, config),
        cluster=cluster,
        training=benchmark_design(config, cluster) if benchmark else None,
        provider=provider.load(cluster.provider),
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
    from cli import engine as runner

    stack, cluster = request.stack, request.cluster
    check_program(stack, cluster)
    request.provider.check_host(cluster)
    engine = runner.select(stack, cluster.provider, console.on_event)
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
    from cli import engine as runner

    stack, cluster = request.stack, request.cluster
    outputs = runner.outputs_of(engine)
    if request.benchmark:
        former = runs.find(request.up, cluster, request.training, outputs)
        runs.keep(stack.name, former, console.say, replace=request.replace)
    checked = request.provider.check_changes(stack, cluster, outputs, console.say, replace=request.replace)
    if checked.recreate:
        engine.check_destroy()
    return Change(request, engine, outputs, checked)


def _prepared(change: Change, console: Console) -> Change:
    """Preview the change, install what is missing here, and then end the jobs that the change ends."""
    request = change.request

    def prepare() -> None:
        preview.check(request.stack, request.cluster, change.engine, console, benchmark=request.benchmark)
        request.provider.prepare(request.cluster, console.say)

    change.checked.begin(prepare)
    return change


def _without_old_cluster(change: Change, console: Console) -> Change:
    """Destroy the cluster that is up if the change makes another one in its place."""
    from cli import engine as runner

    if not change.checked.recreate:
        return change
    request = change.request
    console.say("this makes another cluster: the one that is up is destroyed first, with its files", "yellow")
    change.outputs()  # the destroy deletes them
    # Its jobs get time to save their state.
    request.provider.drain(request.stack, change.outputs, console.say, lambda _jobs: None)
    for line in _destroy(request.stack, request.provider, change.engine, change.outputs, console):
        console.say(line)
    engine = runner.select(request.stack, request.cluster.provider, console.on_event)
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
            request.provider.repair(request.stack, console.say)
        # slurmctld keeps the states of partitions when it restarts.
        change.checked.release()
    except BaseException as error:
        # Jobs were held back for a change that has not been made.
        change.checked.release()
        if not isinstance(error, UserError) or error.exit_code != EXIT_FAILED:
            raise
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
    """Wait for the benchmark's result, print and keep it; `None` if there is none, or another user's.

    Raises:
        UserError: The benchmark ended without a result; or the user does not wait any longer (exit 130).
    """
    from cli.console.tables import show_result

    stack, training = request.stack, request.training
    scheduler = provider.scheduler(stack, request.up.config, request.cluster) if request.benchmark else None
    if scheduler is not None:
        return scheduler.follow(console, quiet=request.quiet)
    if training is None:
        return None
    try:
        submitted = console.changed(SUBMIT)
        followed = follow(request.up, request.cluster, training, console, submitted=submitted)
    except KeyboardInterrupt:
        raise UserError(
            "not waiting any longer: the cluster and its job go on. "
            f"`./cluster up --stack {stack.name}` waits again, "
            f"`./cluster status --stack {stack.name}` looks, "
            f"`./cluster down --stack {stack.name}` ends both.",
            EXIT_INTERRUPTED,
            code="up.interrupted",
        ) from None
    if not request.quiet:
        show_result(followed.result, followed.owner)
        sys.stdout.flush()  # before the next line on standard error, because both may go to one file
    results.keep_own(stack, followed, outputs.get("benchmark_result"), console.say)
    return followed.own


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
    if (shared := shared_cores.after(stack, request.cluster.provider, [result])) is not None:
        console.say(shared, "yellow")


def _wait_for_nodes(request: Request, result: dict[str, Any] | None, console: Console) -> None:
    """Wait until the benchmark's nodes are gone.

    Raises:
        UserError: Exit 130; the user does not wait any longer.
    """
    try:
        wait_for_idle(request.up, request.cluster, console, result["job_id"] if result else None)
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


def follow(
    up: StackUp,
    cluster: ClusterDesign,
    training: BenchmarkDesign,
    console: Console,
    *,
    submitted: bool = False,
) -> results.Shown:
    """Wait for the benchmark's result, and say what it waits for.

    The submission is the same idempotent one as that of the stack's resource: it finds that job again, or
    submits a new one if an earlier one failed.

    Args:
        submitted: Whether the stack's resource has just submitted the job. Then a failure of that job is the
            answer, however soon it comes.

    Raises:
        UserError: The job ended without a result; the message has the end of its output.
    """
    layout = provider.load(cluster.provider).layout(cluster)
    run = BenchmarkRun.of(cluster, training, layout, up.stack.project)
    once = ["--no-retry"] if submitted else []
    job = _asked(up, console, "submit", "--run", run.folder, *once, text=run.script).strip()
    with console.waiting(f"job {job}"):
        while True:
            seen = json.loads(_asked(up, console, "benchmark", "--run", run.folder))
            if seen["result"] is not None:
                return results.shown(seen)
            if seen["job"] is None or not seen["job"]["alive"]:
                # Slurm may report the end of the job a moment before its last file is visible.
                time.sleep(POLL_SECONDS)
                seen = json.loads(_asked(up, console, "benchmark", "--run", run.folder))
                if seen["result"] is not None:
                    return results.shown(seen)
                raise UserError(_failed(up.stack.name, job, seen), code="benchmark.failed")
            console.now(situation(seen))
            time.sleep(POLL_SECONDS)


def _asked(up: StackUp, console: Console, *arguments: str, text: str = "") -> str:
    """Call `login_machine.tool` until it answers: a controller that is being restarted takes a moment.

    Raises:
        NotUpError: There is no cluster.
        UserError: Access is refused (exit 3), or the cluster has not answered for PATIENCE_SECONDS.
    """
    for left in attempts(PATIENCE_SECONDS, POLL_SECONDS):
        try:
            return login_machine.tool(up, *arguments, text=text)
        except NotUpError:
            raise
        except UserError as error:
            if error.exit_code == EXIT_REFUSED:
                raise  # access is refused, and will be
            if not left:
                raise UserError(
                    f"the cluster of stack {up.stack.name} has not answered for {PATIENCE_SECONDS:g} s. "
                    f"Its last words:\n  {error}\n`./cluster up --stack {up.stack.name}` waits again, "
                    f"`./cluster doctor --stack {up.stack.name}` looks for the cause.",
                    code="cluster.silent",
                ) from None
            console.now(f"the controller does not answer: {str(error).splitlines()[-1]}")
    raise AssertionError("the last attempt returns or raises")


def _failed(stack: str, job: str, seen: dict[str, Any]) -> str:
    lines = "\n".join(f"  {line}" for line in seen["tail"]) or "  (no output)"
    return (
        f"job {job} ended ({ending(seen)}) without a result. "
        f"The end of its output, in {seen['folder']}:\n{lines}\n"
        f"The cluster is up. Fix the cause and run `./cluster up --stack {stack}` again: it submits anew."
    )


def wait_for_idle(up: StackUp, cluster: ClusterDesign, console: Console, job: str | None = None) -> None:
    """Wait until the idle nodes are gone; after Ctrl-C they end without this program.

    The result of the benchmark's `job` is there a moment before Slurm knows that it has ended.
    """
    static = sum(p.min for p in cluster.partitions)
    seconds = cluster.slurm.suspend_time + cluster.slurm.suspend_timeout + SETTLE_SECONDS
    with console.waiting(f"nodes go back after {cluster.slurm.suspend_time} s without work"):
        for _ in attempts(seconds, POLL_SECONDS):
            try:
                status = login_machine.cluster_status(up)
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


def take_down(stack: Stack, provider_name: str, console: Console, *, yes: bool = False) -> None:
    """Destroy the stack and look for leftovers.

    This needs no valid stack file, because what is up must always come down.

    Args:
        yes: Whether to end jobs without a question. Without a terminal there is no question in any case.

    Raises:
        UserError: Something is left, and the message names it; or somebody wants to keep the jobs (exit 3).
    """
    from cli import engine as runner

    chosen = provider.load(provider_name)
    engine = runner.select(stack, provider_name, console.on_event)
    if hint := interrupt.background_hint():
        console.say(hint, "dim")
    known = runner.outputs_of(engine)
    with engine.changing("down", console.on_event):
        engine.check_destroy()
        # This reads the outputs if the search for leftovers needs them: the destroy deletes them.
        chosen.drain(stack, known, console.say, functools.partial(agree, stack.name, console, yes))
        kept = _destroy(stack, chosen, engine, known, console)
    for line in ["nothing else is left", *kept] if kept else ["nothing is left"]:
        console.say(line)


def _destroy(
    stack: Stack, chosen: Provider, engine: Runner, known: Outputs, console: Console
) -> Sequence[str]:
    """Destroy the stack, and look for leftovers. Returns the lines about what stays on purpose.

    Args:
        known: The stack's outputs from before the destroy.

    Raises:
        UserError: Something is left; the message names it.
    """
    from cli.engine import embedded
    from cli.engine.state import DamagedStateError

    damaged = False
    with console.waiting("taking the cluster down"), console.errors_once():
        try:
            engine.destroy(console.on_event, functools.partial(chosen.lost, stack, known, console.say))
        except DamagedStateError as error:
            console.say(f"{error.path} is damaged: the cluster is ended without it", "yellow")
            damaged = True
        kept = chosen.kept(stack, known)
        left = chosen.leftovers(stack, known)
        if damaged or left:
            # The engine did not know these: its state was lost, or is older than a kill.
            chosen.force_cleanup(stack, known)
            left = chosen.leftovers(stack, known)
    if damaged and not left:
        embedded.forget(stack)
    if left:
        raise UserError(
            left_over(stack.name, left, f"./cluster down --stack {stack.name}"), code="cluster.left-over"
        )
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
    from cli.engine.plan import plan

    cluster = design(config, catalog())
    training = benchmark_design(config, cluster)
    release, found = slurm_release.planned(cluster)
    found += slurm_release.without_pmix(cluster)
    found += warnings(config, cluster, catalog(), shared_cores.own_cores())
    found += shared_cores.of_benchmark(stack, cluster, training)
    found += provider.load(cluster.provider).limits_here(stack, cluster)
    result = plan(stack, annotate=lambda _: ({**cost.cost(cluster), "budget": cost.budget(cluster)}, found))
    result["additions"] = additions(cluster)
    result["slurm"] = release or None
    changes = provider.load(cluster.provider).changes(stack, cluster)
    result["changes"] = None if changes is None else table.described(*changes)
    if result["changes"] is not None:
        result["changes"] += runs.described(stack, cluster, training)
    return result
