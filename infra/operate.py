"""What `./cluster up`, `down` and `plan` do, apart from how they look."""

from __future__ import annotations

import functools
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import typer

from infra import access, cost, providers, results
from infra.benchmark import BenchmarkRun
from infra.config.advice import warnings
from infra.console.jobs import situation
from infra.console.progress import Console
from infra.design import benchmark_design, design
from infra.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_REFUSED, NotUpError, UserError
from infra.hints import hint
from infra.machines import catalog
from infra.node import words
from infra.runner import interrupt

if TYPE_CHECKING:
    from infra.changes.jobs import Job
    from infra.config import StackConfig
    from infra.node.model import BenchmarkDesign, ClusterDesign
    from infra.provider import Outputs, Provider
    from infra.runner import Runner
    from infra.runner.plan import Plan

POLL_SECONDS = 1.0
SUBMIT = "-benchmark-job"
"""How the name of the resource ends that submits the benchmark."""
SETTLE_SECONDS = 15.0
PATIENCE_SECONDS = 60.0
"""How long a controller may be silent while a job is waited for."""


class Made(TypedDict):
    """What `./cluster up --json` prints.

    Attributes:
        result: the benchmark's result record; null where none was waited for.
        changes: how many resources were created, updated, replaced, deleted; empty: nothing was to be done.
        seconds: until the result was there.
    """

    stack: str
    outputs: dict[str, Any]
    result: dict[str, Any] | None
    changes: dict[str, int]
    seconds: float


def bring_up(
    project: Path,
    config: StackConfig,
    console: Console,
    *,
    replace: bool = False,
    benchmark: bool = True,
    quiet: bool = False,
) -> Made:
    """Create or change the stack, wait for its benchmark's result, print it.

    Args:
        replace: make changes too that end jobs that run, or delete files.
        benchmark: False leaves the benchmark as it is: a job of it that runs goes on.
        quiet: print nothing on standard output.

    Raises:
        UserError: it did not come up, or the benchmark ended without a result.
    """
    from infra import runner
    from infra.console.tables import show_outputs, show_result

    started, began = time.monotonic(), time.time()
    cluster = design(config, catalog())
    training = benchmark_design(config, cluster) if benchmark else None
    chosen = providers.load(cluster.provider)
    rehearse(project, config.stack, cluster)
    chosen.prepare(cluster, console.say)
    engine = runner.select(project, config.stack, cluster.provider, console.on_event)
    place = "this machine" if cluster.provider == "local" else cluster.provider
    console.say(f"stack {config.stack}: cluster {cluster.name} on {place}", "bold")
    if unheard := interrupt.unheard():
        console.say(unheard, "dim")
    weighed = chosen.weigh(project, config.stack, cluster, _outputs(engine), console.say, replace=replace)
    if weighed.anew:
        console.say(
            "the cluster that is up is destroyed first, with its files: this makes another one", "yellow"
        )
        known = _outputs(engine)
        known()  # afterwards nobody knows them any more
        # Its jobs have their time to save what they have.
        chosen.drain(project, config.stack, known, console.say, lambda _jobs: None)
        _destroy(project, config.stack, chosen, engine, known, console)
        engine = runner.select(project, config.stack, cluster.provider, console.on_event)
    try:
        with console.waiting("bringing the cluster up"):
            outputs = engine.up(console.on_event, benchmark=benchmark)
            # What the engine knows to be there may have died since: that is no change, so it did nothing.
            chosen.mend(project, config.stack, console.say)
    except BaseException as failed:
        # What was kept from starting for a change that has not been made.
        weighed.release()
        if not isinstance(failed, UserError) or failed.exit_code != EXIT_FAILED:
            raise
        error = failed
        more = chosen.explain(cluster, began)
        told = f"{error}\n{more}" if more else str(error)
        raise UserError(f"{told}\n`./cluster doctor --stack {config.stack}` looks for the cause.") from None
    result: dict[str, Any] | None = None
    if training is not None:
        try:
            submitted = console.changed(SUBMIT)
            result = follow(project, config, cluster, training, console, submitted=submitted)
        except KeyboardInterrupt:
            raise UserError(
                "not waiting any longer: the cluster and its job go on. "
                f"`./cluster up --stack {config.stack}` waits again, "
                f"`./cluster status --stack {config.stack}` looks, "
                f"`./cluster down --stack {config.stack}` ends both.",
                EXIT_INTERRUPTED,
            ) from None
        if not quiet:
            show_result(result)
            sys.stdout.flush()  # before the next line of the other stream, where both go to one file
        _keep(project, config.stack, result, outputs.get("benchmark_result"), console)
    if not quiet:
        show_outputs(outputs)
    seconds = time.monotonic() - started
    console.say(f"up after {seconds:.0f} s")
    if training is not None:
        try:
            wait_for_idle(project, config, cluster, console)
        except KeyboardInterrupt:
            raise UserError(
                "the cluster is up and the result is kept; the nodes go back by themselves. "
                f"`./cluster down --stack {config.stack}` ends the cluster.",
                EXIT_INTERRUPTED,
            ) from None
    return Made(
        stack=config.stack,
        outputs=outputs,
        result=result,
        changes=console.changes,
        seconds=round(seconds, 1),
    )


def rehearse(project: Path, stack: str, cluster: ClusterDesign) -> None:
    """Refuse what `plan` refuses, before anything is asked of a cloud or installed.

    The local stack's program runs in this process and makes nothing before it has been checked, so there the
    run itself is the rehearsal.

    Raises:
        UserError: the program of the stack refuses it; the words are those of `plan`.
    """
    from infra.runner.plan import plan

    if cluster.provider != "local":
        plan(project, stack)


def _keep(project: Path, stack: str, result: dict[str, Any], where: object, console: Console) -> None:
    """Keep a result where it outlives the cluster, or say where it lies until then."""
    try:
        console.say(f"kept as {results.keep(stack, result, project)}", "dim")
    except UserError as error:
        console.say(
            f"the result is not kept: {error}\nUntil `{hint('down', stack)}` it lies in {where}.", "yellow"
        )


def follow(
    project: Path,
    config: StackConfig,
    cluster: ClusterDesign,
    training: BenchmarkDesign,
    console: Console,
    *,
    submitted: bool = False,
) -> dict[str, Any]:
    """Wait for the benchmark's result and say what it waits for.

    The submit is the same idempotent one that the stack's resource made: it finds that job again, or submits
    anew where an earlier one failed.

    Args:
        submitted: the stack's resource has submitted the job a moment ago: its failure is the answer, however
            soon it comes.

    Raises:
        UserError: the job ended without a result; the message has the end of its output.
    """
    shell = providers.load(cluster.provider).shell(cluster)
    run = BenchmarkRun.of(cluster, training, shell, project)
    once = ["--no-retry"] if submitted else []
    job = _asked(project, config, console, "submit", "--run", run.folder, *once, text=run.script).strip()
    with console.waiting(f"job {job}"):
        while True:
            seen = json.loads(_asked(project, config, console, "benchmark", "--run", run.folder))
            if seen["result"] is not None:
                return dict(seen["result"])
            if seen["job"] is None or not seen["job"]["alive"]:
                # Slurm may call the job over a moment before its last file is to be seen.
                time.sleep(POLL_SECONDS)
                seen = json.loads(_asked(project, config, console, "benchmark", "--run", run.folder))
                if seen["result"] is not None:
                    return dict(seen["result"])
                raise UserError(_failed(config.stack, job, seen))
            console.now(situation(seen))
            time.sleep(POLL_SECONDS)


def _asked(project: Path, config: StackConfig, console: Console, *arguments: str, text: str = "") -> str:
    """`access.tool` with patience: a controller that is restarted answers a moment later.

    Raises:
        NotUpError: there is no cluster.
        UserError: the way there is refused (exit 3), or it has not answered for PATIENCE_SECONDS.
    """
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return access.tool(project, config, *arguments, text=text)
        except NotUpError:
            raise
        except UserError as error:
            if error.exit_code == EXIT_REFUSED:
                raise  # nobody has been asked, and nobody will be
            if time.monotonic() > deadline:
                raise UserError(
                    f"the cluster of stack {config.stack} has not answered for {PATIENCE_SECONDS:g} s. "
                    f"Its last words:\n  {error}\n`./cluster up --stack {config.stack}` waits again, "
                    f"`./cluster doctor --stack {config.stack}` looks for the cause."
                ) from None
            console.now(f"the controller does not answer: {str(error).splitlines()[-1]}")
        time.sleep(POLL_SECONDS)


def _failed(stack: str, job: str, seen: dict[str, Any]) -> str:
    state = seen["job"]["state"] if seen["job"] else "GONE"
    lines = "\n".join(f"  {line}" for line in seen["tail"]) or "  (no output)"
    return (
        f"job {job} ended ({state}) without a result. The end of its output, in {seen['folder']}:\n{lines}\n"
        f"The cluster is up. Mend the cause and run `./cluster up --stack {stack}` again: it submits anew."
    )


def wait_for_idle(project: Path, config: StackConfig, cluster: ClusterDesign, console: Console) -> None:
    """Until the nodes are given back; Ctrl-C leaves them to do so alone."""
    static = sum(p.min for p in cluster.partitions)
    deadline = time.monotonic() + cluster.slurm.suspend_time + cluster.slurm.suspend_timeout + SETTLE_SECONDS
    with console.waiting(f"nodes go back after {cluster.slurm.suspend_time} s without work"):
        while time.monotonic() < deadline:
            try:
                status = access.cluster_status(project, config)
            except UserError as error:  # the result is there: nothing of it is lost
                console.say(f"the cluster does not answer just now: {error}", "yellow")
                return
            machines_up = status["machines"]["running"] + status["machines"]["pending"]
            if machines_up <= static:
                submit = hint("exec", config.stack, "-- sbatch …")
                console.say(f"back to {words.count(machines_up, 'node')}; `{submit}` brings them up again")
                return
            if any(job["state"] not in ("COMPLETING",) for job in status["jobs"]):
                console.say(f"other jobs keep nodes up: `{hint('status', config.stack)}` names them")
                return
            console.now(f"{machines_up} up")
            time.sleep(POLL_SECONDS)
    console.say(f"nodes are still up: `{hint('status', config.stack)}` says why", "yellow")


def take_down(project: Path, stack: str, provider_name: str, console: Console, *, yes: bool = False) -> None:
    """Destroy the stack and audit. Needs no valid stack file: what is up must always come down.

    Args:
        yes: end jobs without a question. Where nobody could answer there is none in any case.

    Raises:
        UserError: something is left; the message names it. Or somebody wants to keep the jobs: exit 3.
    """
    from infra import runner

    chosen = providers.load(provider_name)
    engine = runner.select(project, stack, provider_name, console.on_event)
    if unheard := interrupt.unheard():
        console.say(unheard, "dim")
    known = _outputs(engine)
    # Asks for the outputs where the audit needs them: afterwards nobody knows them any more.
    chosen.drain(project, stack, known, console.say, functools.partial(_agree, stack, console, yes))
    _destroy(project, stack, chosen, engine, known, console)
    console.say("nothing is left")


def _destroy(
    project: Path, stack: str, chosen: Provider, engine: Runner, known: Outputs, console: Console
) -> None:
    """Destroy the stack, and look for leftovers.

    Args:
        known: the stack's outputs of before.

    Raises:
        UserError: something is left; the message names it.
    """
    from infra.runner import embedded
    from infra.runner.state import DamagedStateError

    damaged = False
    with console.waiting("taking the cluster down"):
        try:
            engine.destroy(console.on_event)
        except DamagedStateError as error:
            console.say(f"{error.path} is damaged: the cluster is ended without it", "yellow")
            damaged = True
        left = chosen.leftovers(project, stack, known)
        if damaged or left:
            # The engine did not know of it: its state was lost, or written before a kill.
            chosen.clear(project, stack, known)
            left = chosen.leftovers(project, stack, known)
    if damaged and not left:
        embedded.abandon(project, stack)
    if left:
        lines = "\n".join(f"  {line}" for line in left)
        raise UserError(
            f"these are left of stack {stack}:\n{lines}\nRun `./cluster down --stack {stack}` again."
        )


def _agree(stack: str, console: Console, yes: bool, jobs: Sequence[Job]) -> None:
    """Name the jobs that end with the cluster, and ask whether they may, where somebody can answer.

    Raises:
        UserError: exit 3; they may not.
    """
    from infra.changes.jobs import listed

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
        raise UserError(f"nothing was changed: the cluster of stack {stack} and its jobs go on", EXIT_REFUSED)


def _outputs(engine: Runner) -> Outputs:
    """Not asked for before somebody needs them: the engine takes a second."""

    @functools.cache
    def ask() -> Mapping[str, Any]:
        try:
            return engine.outputs() or {}
        except UserError:
            return {}

    return ask


def make_plan(project: Path, config: StackConfig) -> Plan:
    """The plan contract (`./cluster plan --json`)."""
    from infra.changes import table
    from infra.runner.plan import plan

    cluster = design(config, catalog())
    found = warnings(config, cluster, catalog())
    costs = {**cost.cost(cluster), "budget": cost.budget(cluster)}
    made = plan(project, config.stack, annotate=lambda _: (costs, found))
    there = providers.load(cluster.provider).changes(project, config.stack, cluster)
    made["changes"] = None if there is None else table.described(*there)
    return made
