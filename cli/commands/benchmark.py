"""Waits for the benchmark that `up` submits, and keeps its result."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cli import results
from cli.console.jobs import ending, situation
from cli.console.progress import Console
from cli.providers import login_machine
from infra import host_limits
from infra.benchmark import BenchmarkRun
from infra.errors import EXIT_INTERRUPTED, EXIT_REFUSED, NotUpError, UserError
from operations.waiting import attempts

if TYPE_CHECKING:
    from cli.providers.interface import HasLoginMachine
    from node.design.model import BenchmarkDesign
    from operations.access import StackUp

POLL_SECONDS = 2.0
SUBMIT = "-benchmark-job"
"""The end of the name of the resource that submits the benchmark."""
PATIENCE_SECONDS = 60.0
"""How long a controller may fail to answer while this program waits for a job."""


def result(
    machine: HasLoginMachine,
    up: StackUp,
    training: BenchmarkDesign,
    console: Console,
    *,
    outputs: Mapping[str, Any],
    quiet: bool,
) -> dict[str, Any] | None:
    """Wait for the benchmark's result, print and keep it; `None` if it is another user's.

    Raises:
        UserError: The benchmark ended without a result; or the user does not wait any longer (exit 130).
    """
    from cli.console.tables import show_result

    stack = up.stack
    try:
        submitted = console.changed(SUBMIT)
        followed = follow(machine, up, training, console, submitted=submitted)
    except KeyboardInterrupt:
        raise UserError(
            "not waiting any longer: the cluster and its job go on. "
            f"`./cluster up --stack {stack.name}` waits again, "
            f"`./cluster status --stack {stack.name}` looks, "
            f"`./cluster down --stack {stack.name}` ends both.",
            EXIT_INTERRUPTED,
            code="up.interrupted",
        ) from None
    if not quiet:
        show_result(followed.result, followed.owner)
        sys.stdout.flush()  # before the next line on standard error, because both may go to one file
    results.keep_own(stack, followed, outputs.get("benchmark_result"), console.say)
    return followed.own


def follow(
    machine: HasLoginMachine,
    up: StackUp,
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
    run = BenchmarkRun.of(up.design, training, machine.layout(up.design), up.stack.project)
    once = ["--no-retry"] if submitted else []
    job = _asked(machine, up, console, "submit", "--run", run.folder, *once, text=run.script).strip()
    with console.waiting(f"job {job}"):
        while True:
            seen = json.loads(_asked(machine, up, console, "benchmark", "--run", run.folder))
            if seen["result"] is not None:
                return results.shown(seen)
            if seen["job"] is None or not seen["job"]["alive"]:
                # Slurm may report the end of the job a moment before its last file is visible.
                time.sleep(POLL_SECONDS)
                seen = json.loads(_asked(machine, up, console, "benchmark", "--run", run.folder))
                if seen["result"] is not None:
                    return results.shown(seen)
                raise UserError(_failed(up.stack.name, job, seen), code="benchmark.failed")
            console.now(situation(seen))
            time.sleep(POLL_SECONDS)


def _asked(machine: HasLoginMachine, up: StackUp, console: Console, *arguments: str, text: str = "") -> str:
    """Call `login_machine.tool` until it answers: a controller that is being restarted takes a moment.

    Raises:
        NotUpError: There is no cluster.
        UserError: Access is refused (exit 3), or the cluster has not answered for PATIENCE_SECONDS.
    """
    before = ""
    for left in attempts(PATIENCE_SECONDS, POLL_SECONDS):
        try:
            return login_machine.tool(machine, up, *arguments, text=text)
        except NotUpError:
            raise
        except UserError as error:
            if error.exit_code == EXIT_REFUSED:
                raise  # access is refused, and will be
            if host_limits.named(str(error)):  # slurmctld may have ended by it, and only this answer says so
                before = f"\nand before that:\n  {error}"
            if not left:
                raise UserError(
                    f"the cluster of stack {up.stack.name} has not answered for {PATIENCE_SECONDS:g} s. "
                    f"Its last words:\n  {error}{before}\n"
                    f"`./cluster up --stack {up.stack.name}` waits again, "
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
