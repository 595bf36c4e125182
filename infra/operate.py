"""What `./cluster up`, `down` and `plan` do, apart from how they look."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infra import access, cost, providers, results
from infra.benchmark import BenchmarkRun
from infra.config.advice import warnings
from infra.console.progress import Console
from infra.design import benchmark_design, design
from infra.errors import EXIT_INTERRUPTED, UserError
from infra.machines import catalog

if TYPE_CHECKING:
    from infra.config import StackConfig
    from infra.node.model import BenchmarkDesign, ClusterDesign
    from infra.runner.plan import Plan

POLL_SECONDS = 1.0
SETTLE_SECONDS = 15.0


def bring_up(project: Path, config: StackConfig, console: Console) -> None:
    """Create or change the stack, wait for its benchmark's result, print it.

    Raises:
        UserError: it did not come up, or the benchmark ended without a result.
    """
    from infra import runner
    from infra.console.tables import show_outputs, show_result

    started = time.monotonic()
    cluster = design(config, catalog())
    training = benchmark_design(config, cluster)
    chosen = providers.load(cluster.provider)
    chosen.prepare(console.say)
    engine = runner.select(project, config.stack, cluster.provider, console.on_event)
    console.say(f"stack {config.stack}: {cluster.name} on {cluster.provider}", "bold")
    with console.waiting("bringing the cluster up"):
        outputs = engine.up(console.on_event)
    if training is not None:
        try:
            result = follow(project, config, cluster, training, console)
        except KeyboardInterrupt:
            raise UserError(
                "\nnot waiting any longer: the cluster and its job go on. `./cluster up` waits again, "
                "`./cluster status` looks, `./cluster down` ends both.",
                EXIT_INTERRUPTED,
            ) from None
        kept = results.keep(config.stack, result)
        show_result(result)
        console.say(f"kept as {kept}", "dim")
    show_outputs(outputs)
    console.say(f"up after {time.monotonic() - started:.0f} s")
    if training is not None:
        try:
            wait_for_idle(project, config, cluster, console)
        except KeyboardInterrupt:
            console.say("\nthe nodes go back by themselves")


def follow(
    project: Path, config: StackConfig, cluster: ClusterDesign, training: BenchmarkDesign, console: Console
) -> dict[str, Any]:
    """Wait for the benchmark's result and say what it waits for.

    The submit is the same idempotent one that the stack's resource made: it finds that job again, or submits
    anew where an earlier one failed.

    Raises:
        UserError: the job ended without a result; the message has the end of its output.
    """
    shell = providers.load(cluster.provider).shell(cluster)
    run = BenchmarkRun.of(cluster, training, shell, project)
    job = access.tool(project, config, "submit", "--run", run.folder, text=run.script).strip()
    with console.waiting(f"job {job}"):
        while True:
            seen = json.loads(access.tool(project, config, "benchmark", "--run", run.folder))
            if seen["result"] is not None:
                return dict(seen["result"])
            if seen["job"] is None or not seen["job"]["alive"]:
                # Slurm may call the job over a moment before its last file is to be seen.
                time.sleep(POLL_SECONDS)
                seen = json.loads(access.tool(project, config, "benchmark", "--run", run.folder))
                if seen["result"] is not None:
                    return dict(seen["result"])
                raise UserError(_failed(config.stack, job, seen))
            console.now(_situation(seen))
            time.sleep(POLL_SECONDS)


def _situation(seen: dict[str, Any]) -> str:
    """One line on where a job is."""
    job, progress = seen["job"], seen["progress"]
    nodes = f" on {job['nodes']}" if job["nodes"] else ""
    if job["state"] == "PENDING":
        return f"waits: {job['cause'] or 'for the scheduler'}"
    if job["state"] == "CONFIGURING":
        return f"nodes are starting: {job['nodes']}"
    if progress is None or not progress.get("epoch"):
        return f"{job['state'].lower()}{nodes}: the training starts"
    return (
        f"{job['state'].lower()}{nodes}: epoch {progress['epoch']} of {progress['epochs']}, "
        f"loss {progress['loss']:.4f}, accuracy {progress['accuracy']:.4f}"
    )


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
            status = access.cluster_status(project, config)
            machines_up = status["machines"]["running"] + status["machines"]["pending"]
            if machines_up <= static:
                console.say(f"back to {machines_up} nodes; `./cluster exec -- sbatch …` brings them up again")
                return
            if any(job["state"] not in ("COMPLETING",) for job in status["jobs"]):
                console.say("other jobs keep nodes up: ./cluster status")
                return
            console.now(f"{machines_up} up")
            time.sleep(POLL_SECONDS)
    console.say("nodes are still up: ./cluster status says why", "yellow")


def take_down(project: Path, stack: str, provider_name: str, console: Console) -> None:
    """Destroy the stack and audit. Needs no valid stack file: what is up must always come down.

    Raises:
        UserError: something is left; the message names it.
    """
    from infra import runner

    chosen = providers.load(provider_name)
    engine = runner.select(project, stack, provider_name, console.on_event)
    with console.waiting("taking the cluster down"):
        engine.destroy(console.on_event)
    if left := chosen.leftovers(project, stack):
        lines = "\n".join(f"  {line}" for line in left)
        raise UserError(
            f"these are left of stack {stack}:\n{lines}\nRun `./cluster down --stack {stack}` again."
        )
    console.say("nothing is left")


def make_plan(project: Path, config: StackConfig) -> Plan:
    """The plan contract (`./cluster plan --json`)."""
    from infra.runner.plan import plan

    cluster = design(config, catalog())
    found = warnings(config, cluster, catalog())
    return plan(project, config.stack, annotate=lambda _: (dict(cost.cost(cluster)), found))
