"""Finds what `up` would do with a benchmark whose settings changed: cancel a run, or submit another one."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from cli.hints import hint
from cli.providers import login_machine
from cli.providers.interface import HasLoginMachine, Provider, need
from infra.benchmark import BenchmarkRun
from infra.errors import EXIT_REFUSED, NotUpError, UserError

if TYPE_CHECKING:
    from node.design.model import BenchmarkDesign
    from operations.access import Outputs, StackUp


RESULT = "benchmark_result"
CONSEQUENCE = "its run that is not over is cancelled, which `up` does with --replace only"
OTHER = "other settings, or other workload code"
SUBMITTED = "`up` submits a run of it, which starts its nodes"
SECONDS = 40.0
"""The time limit of the question to the login machine, which may be dead."""


@dataclass(frozen=True, slots=True)
class FormerRun:
    """A benchmark's run of the stack that is up, which the stack file no longer asks for.

    Attributes:
        folder: The run's folder on the cluster, relative to `bench`.
        following: The folder of the run that the stack file asks for; `None` if it asks for none.
        job: Slurm's job that has not ended; `None` if the cluster does not answer.
    """

    folder: str
    following: str | None
    job: Mapping[str, Any] | None

    @property
    def why(self) -> str:
        """What the stack file asks for instead."""
        return "it is off now" if self.following is None else OTHER

    def sentence(self, verb: str) -> str:
        """Return what becomes of its job.

        Args:
            verb: `is`, or `would be`.
        """
        if self.job is None:
            return (
                f"benchmark: {self.why}, and its present run {verb} cancelled if it is not over, which is "
                "not known, because the cluster does not answer"
            )
        where = f" on {self.job['nodes']}" if self.job["nodes"] else ""
        job = f"job {self.job['id']} ({self.job['state']}{where})"
        return f"benchmark: {self.why}, so {job} {verb} cancelled"

    def refusal(self, stack: str) -> str:
        """Say why `up` does not go on, and what to do."""
        return (
            f"{self.sentence('would be')}.\n"
            f"Let it end first: `{hint('status', stack)}` shows it. `{hint('up', stack, '--no-benchmark')}` "
            f"changes the cluster and leaves the run. `{hint('up', stack, '--replace')}` cancels it."
        )

    def described(self) -> dict[str, Any]:
        """Return the change in the form of `./cluster plan --json`."""
        job = self.job
        return {
            "key": "benchmark",
            "part": "",
            "was": self.folder,
            "will": self.following or "none",
            "kind": "ends",
            "consequence": CONSEQUENCE,
            "line": f"benchmark: {self.why}: {CONSEQUENCE}",
            "jobs": None
            if job is None
            else [
                {
                    "id": str(job["id"]), "name": "benchmark",
                    "user": job["user"], "partition": job["partition"],
                    "state": job["state"], "nodes": job["nodes"], "consequence": "ends",
                }
            ],
        }  # fmt: skip


def find(
    provider: Provider, up: StackUp, training: BenchmarkDesign | None, outputs: Outputs
) -> FormerRun | None:
    """Find the run that `up` would cancel. The cluster is asked only if the run changes.

    Args:
        provider: That of the cluster that is up.
        training: The benchmark of the stack file; `None` if it is off.
        outputs: The outputs of the stack that is up.

    Returns:
        None if there is no such run, or if its job has ended.
    """
    folder = _present(outputs())
    if folder is None:
        return None
    following = _following(provider, up, training)
    if folder == following:
        return None
    try:
        machine = need(provider, HasLoginMachine, up, "benchmark")
        seen = json.loads(login_machine.tool(machine, up, "benchmark", "--run", folder, seconds=SECONDS))
    except NotUpError:
        return None
    except UserError:
        return FormerRun(folder, following, None)
    job = seen["job"]
    return FormerRun(folder, following, job) if job is not None and job["alive"] else None


def planned(provider: Provider, up: StackUp, training: BenchmarkDesign | None) -> FormerRun | None:
    """Return what `find` returns, for a plan. It is also `None` if `up` would refuse to run at all."""
    outputs = _outputs(up)
    return None if outputs is None else find(provider, up, training, outputs)


def described(provider: Provider, up: StackUp, training: BenchmarkDesign | None) -> list[dict[str, Any]]:
    """Return what `up` does with the benchmark of a running cluster, as in `./cluster plan --json`."""
    outputs = _outputs(up)
    if outputs is None:
        return []
    if (former := find(provider, up, training, outputs)) is not None:
        return [former.described()]
    if training is None:
        return []
    was, will = _present(outputs()), _following(provider, up, training)
    if was == will:
        return []
    why = "new" if was is None else OTHER
    return [
        {
            "key": "benchmark", "part": "", "was": was or "none", "will": will or "none", "kind": "live",
            "consequence": SUBMITTED, "line": f"benchmark: {why}: {SUBMITTED}", "jobs": [],
        }
    ]  # fmt: skip


def _outputs(up: StackUp) -> Outputs | None:
    """Return the outputs of the stack that is up; `None` if `up` would refuse to run at all."""
    from cli import engine

    try:
        return engine.outputs_of(engine.select(up.stack, up.provider))
    except UserError:
        return None


def _present(outputs: Mapping[str, Any]) -> str | None:
    """Return the folder of the present run, relative to `bench`; `None` if the stack has none."""
    result = outputs.get(RESULT)
    return "/".join(PurePosixPath(result).parts[-3:-1]) if isinstance(result, str) else None


def _following(provider: Provider, up: StackUp, training: BenchmarkDesign | None) -> str | None:
    """Return the folder of the run that the stack file asks for, relative to `bench`; `None` without one."""
    if training is None or not isinstance(provider, HasLoginMachine):
        return None
    layout = provider.layout(up.design)
    return BenchmarkRun.of(up.design, training, layout, up.stack.project).folder


def keep(stack: str, former: FormerRun | None, say: Callable[[str], None], *, replace: bool) -> None:
    """Refuse to cancel a benchmark's run unless the user asks for it.

    Raises:
        UserError: Exit 3; the message names the job.
    """
    if former is None:
        return
    if replace:
        say(former.sentence("is"))
        return
    raise UserError(
        f"nothing was changed: {former.refusal(stack)}", EXIT_REFUSED, code="change.ends-benchmark"
    )
