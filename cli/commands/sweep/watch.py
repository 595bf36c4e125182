"""Watches a sweep: keeps each result as it arrives, and turns the state of each run into a row of a table."""

from __future__ import annotations

import dataclasses
import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cli import results
from cli.commands.report import programs, runs
from cli.commands.sweep.plan import Plan, PlannedRun
from cli.commands.sweep.table import Board, Row
from cli.console.jobs import ending, situation, values
from cli.console.progress import clock
from cli.providers import login_machine
from cli.results import Kept
from infra import os_errors
from infra.errors import NotUpError, UserError
from node.slurm.phases import Phase, phase
from node.system import foreign, plurals

if TYPE_CHECKING:
    from cli.providers.interface import HasLoginMachine
    from operations.access import StackUp


POLL_SECONDS = 2.0
"""Seconds between two questions. Each takes 0.1 s on the local stack, where it disturbs the measurement."""
PATIENCE_SECONDS = 300.0
"""How long the cluster may give no answer before watching ends with an error."""
LOOKS_AFTER_THE_END = 2
"""How often a job must be seen as over. Slurm may report this a moment before the last file is visible."""

Seen = Mapping[str, Any]


class SweepGoneError(Exception):
    """The cluster of the sweep does not exist any more, or is another one."""


class SweepEndedError(Exception):
    """Another process has ended the sweep."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a run will have no result.

    Attributes:
        output: Where the job's output is, and its last lines.
    """

    reason: str
    output: str = ""

    def __str__(self) -> str:
        return f"{self.reason}{self.output and f'; {self.output}'}"


@dataclass(slots=True)
class Progress:
    """What is known of a sweep's runs, by their numbers.

    Attributes:
        plan: The sweep's plan.
        project: The checkout that the sweep belongs to.
        kept: Results that are kept.
        failed: Runs that will have no result.
        seen: The cluster's last answer about each run.
    """

    plan: Plan
    project: Path | None = None
    kept: dict[int, Kept] = field(default_factory=dict)
    failed: dict[int, Failure] = field(default_factory=dict)
    seen: dict[int, Seen] = field(default_factory=dict)
    _ended: Counter[int] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        for run in self.plan.runs:
            if run.refused is not None:
                self.failed[run.number] = Failure(f"Slurm did not take it: {run.refused}")

    @property
    def open(self) -> list[PlannedRun]:
        """Runs that have no result yet and have not failed."""
        return [run for run in self.plan.runs if run.number not in self.kept | self.failed]

    def take(self, looked_at: Sequence[PlannedRun], seen: Sequence[Seen]) -> None:
        """Record what the cluster says of open runs, and keep the results of those that have one.

        Args:
            looked_at: The runs that the cluster was asked about.
            seen: Its answers, in the same order.

        Raises:
            SweepGoneError: The cluster knows none of these runs.
            UserError: A result cannot be kept.
        """
        if gone(looked_at, seen):
            raise SweepGoneError
        for run, state in zip(looked_at, seen, strict=True):
            self.seen[run.number] = state
            if state.get("owner") is not None:
                self.failed[run.number] = Failure(_theirs(state))
            elif state["result"] is not None:
                self._keep(run, state["result"])
            elif state["job"] is None or not state["job"]["alive"]:
                self._ended[run.number] += 1
                if self._ended[run.number] >= LOOKS_AFTER_THE_END:
                    self.failed[run.number] = _failure(state)
            else:
                self._ended[run.number] = 0

    def _keep(self, run: PlannedRun, record: dict[str, Any]) -> None:
        try:
            results.check(record)
        except UserError as error:
            self.failed[run.number] = Failure(str(error))
            return
        path = _kept(self.plan.stack, record, self.project)
        kept, wrong = results.load(self.plan.stack)
        mine = next((result for result in kept if result.path == path), None)
        if mine is None:
            why = next((line for line in wrong if line.startswith(str(path))), str(path))
            self.failed[run.number] = Failure(f"its result file is not valid: {why}")
            return
        self.kept[run.number] = mine

    def rows(self) -> list[Row]:
        return [dataclasses.replace(self._row(run), where=run.case.where) for run in self.plan.runs]

    def _row(self, run: PlannedRun) -> Row:
        base = (run.number, run.nodes, run.repetition)
        if run.number in self.kept:
            record = self.kept[run.number].record
            if self.kept[run.number].program:
                figures = values(record["values"])
                seconds, whole = programs.seconds(record)
                text = f"done: {seconds:.1f} s{figures and f', {figures}'}"
                return Row(*base, "done", "done", text, run.job, seconds, whole=whole)
            return Row(
                *base,
                "done",
                "done",
                f"done: {record['seconds_train']:.1f} s, loss {record['loss']:.4f}, "
                f"accuracy {record['accuracy']:.4f}{_cores(record)}",
                run.job,
                record["seconds_train"],
                record["images_per_second"],
                record["accuracy"],
            )
        if run.number in self.failed:
            return Row(*base, "failed", "failed", f"failed: {self.failed[run.number].reason}", run.job)
        seen = self.seen.get(run.number)
        if seen is None or seen["job"] is None:
            return Row(*base, "queued", "queued", job=run.job)
        return _live_row(run, seen)


def _cores(record: Mapping[str, Any]) -> str:
    """Say what makes a local run's time another one than that of nodes alike."""
    text = ""
    if record.get("cores_shared"):
        shared = plurals.count(record["cores"], "core")
        text += f", {plurals.count(record['workers'], 'worker')} on {shared}"
    if (others := record.get("cores_others")) is not None and others >= runs.MUCH:
        text += f", other programs took {100 * others:.0f} % of the cores' time"
    return text


def _live_row(run: PlannedRun, seen: Seen) -> Row:
    """Return the row of a run whose job Slurm knows."""
    base = (run.number, run.nodes, run.repetition)
    job, progress = seen["job"], seen["progress"]
    detail = situation(seen)
    if not job["alive"]:
        return Row(*base, "runs", "ends", f"over ({job['state']}): looking for its result", job["id"])
    doing = phase(job["state"], nodes=bool(job["nodes"]))
    if doing is Phase.WAITING:
        if job["cause"] == "Dependency":
            return Row(*base, "queued", "queued", job=job["id"])
        return Row(*base, "waits", detail, detail, job["id"])
    if doing is Phase.STARTING:
        return Row(*base, "starts", "nodes are starting", detail, job["id"])
    if progress is not None and "script" in progress:
        return Row(*base, "runs", values(progress.get("values") or {}) or "runs", detail, job["id"])
    if progress is None or not progress.get("epoch"):
        return Row(*base, "runs", "the training starts", detail, job["id"])
    text = f"epoch {progress['epoch']} of {progress['epochs']}, loss {progress['loss']:.4f}"
    return Row(*base, "runs", text, detail, job["id"], progress["seconds"], None, progress["accuracy"])


def _theirs(seen: Seen) -> str:
    return (
        f"{seen['folder']} is {seen['owner']}'s run, whose result is not yours: change a value of the "
        "benchmark (its seed, for example) for runs of your own"
    )


def _failure(seen: Seen) -> Failure:
    how = ending(seen, "Slurm no longer knows how")
    lines = "\n".join(f"  {line}" for line in seen["tail"]) or "  (no output)"
    return Failure(f"ended without a result ({how})", f"the end of its output, in {seen['folder']}:\n{lines}")


def gone(looked_at: Sequence[PlannedRun], seen: Sequence[Seen]) -> bool:
    """Return whether the cluster that answers is not the one to which the runs were submitted."""
    submitted = [state for run, state in zip(looked_at, seen, strict=True) if run.job is not None]
    return bool(submitted) and all(state["job"] is None and state["result"] is None for state in submitted)


def watch(
    progress: Progress,
    remote: Remote,
    board: Board,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Ask the cluster until no run is open. Each result is kept as it arrives.

    Args:
        progress: What is known of the runs; updated here.
        remote: The cluster.
        board: Where the rows are shown.
        sleep: Waits some seconds; tests give another one.

    Raises:
        SweepGoneError: The cluster does not exist any more.
        SweepEndedError: Another process has ended the sweep.
        UserError: The cluster has not answered for PATIENCE_SECONDS.
    """
    silent_since: float | None = None
    while True:
        looked_at = progress.open
        try:
            seen = remote.show(looked_at)
        except NotUpError:
            raise SweepGoneError from None
        except UserError as error:
            silent_since = silent_since or time.monotonic()
            left = silent_since + PATIENCE_SECONDS - time.monotonic()
            if left <= 0:
                raise UserError(_silent(progress.plan.stack, str(error)), code="sweep.silent") from None
            note = f"the cluster does not answer: {_last_line(error)}; trying for {clock(left)} more"
            board.show(progress.rows(), note)
            sleep(POLL_SECONDS)
            continue
        silent_since = None
        progress.take(looked_at, seen)
        board.show(progress.rows())
        if not progress.open:
            return
        if not any(state["open"] for state in seen):
            raise SweepEndedError
        sleep(POLL_SECONDS)


def _kept(stack: str, record: dict[str, Any], project: Path | None) -> Path:
    """Keep a result, and say that it stays on the cluster if it cannot be kept."""
    try:
        return results.keep(stack, record, project)
    except (UserError, OSError) as error:
        reason = os_errors.explain(error, results.folder(stack)) if isinstance(error, OSError) else error
        raise UserError(
            f"{reason}\nThe jobs go on and their results stay on the cluster: "
            f"`./cluster run --stack {stack}` collects them.",
            reason.exit_code,
            code="sweep.not-watched",
        ) from None


def _silent(stack: str, last: str) -> str:
    return (
        f"the cluster of stack {stack} has not answered for {PATIENCE_SECONDS / 60:.0f} minutes. "
        f"The last error was:\n  {last}\n"
        f"If it still runs, the jobs go on, and `./cluster run --stack {stack}` watches again; "
        f"`./cluster status --stack {stack}` and `./cluster doctor --stack {stack}` find out what is wrong."
    )


def _last_line(error: UserError) -> str:
    return (str(error).strip().splitlines() or [""])[-1][:200]


class Remote:
    """Calls the cluster's own `sweep` command (`node.sweep.Sweep`).

    Every method raises `NotUpError` if there is no cluster, and `UserError` if it does not answer.
    """

    def __init__(self, machine: HasLoginMachine, up: StackUp) -> None:
        self._machine = machine
        self._up = up

    def under_way(self) -> tuple[int, list[dict[str, Any]]]:
        """Return the number of the next sweep, and what is known of the runs of the one under way.

        Raises:
            UserError: The cluster does not answer, or has an earlier release's command.
        """
        try:
            answer = self._ask("open", None)
        except UserError as error:
            if "invalid choice" not in str(error):  # argparse's words
                raise
            raise UserError(
                f"the cluster of stack {self._up.stack.name} has an earlier release of this program: "
                f"`./cluster up --stack {self._up.stack.name}` brings this one there; then run this again",
                code="sweep.cluster-lacks",
            ) from None
        return answer["next"], answer["runs"]

    def prepare(self, preparation: Mapping[str, Any]) -> list[str]:
        """Write the runs' scripts and labels on the cluster.

        Returns:
            The paths that are missing on the cluster; if there are any, nothing was written.
        """
        return list(self._ask("prepare", preparation)["missing"])

    def submit(self, runs: Sequence[PlannedRun], after: int | None) -> list[dict[str, Any]]:
        """Submit prepared runs that are not submitted yet. Each depends on the one before it.

        Args:
            runs: The runs to submit.
            after: The job that the first run waits for. `None` means every benchmark under way.

        Returns:
            Each run's `job` or `error`.
        """
        return list(self._ask("submit", {"after": after, "folders": [run.folder for run in runs]}))

    def show(self, runs: Sequence[PlannedRun]) -> list[dict[str, Any]]:
        """Return what the cluster knows of each run (`node.sweep.Sweep.show`)."""
        return list(self._ask("show", [run.folder for run in runs])) if runs else []

    def cancel(self, runs: Sequence[PlannedRun]) -> list[int]:
        """End the jobs of these runs that are not over and the sweep with them, and return the jobs' ids."""
        return list(self._ask("cancel", [run.folder for run in runs]))

    def close(self, runs: Sequence[PlannedRun]) -> None:
        """Note on the cluster that the user was told how these runs ended."""
        self._ask("close", [run.folder for run in runs])

    def _ask(self, action: str, question: Any) -> Any:
        text = login_machine.tool(self._machine, self._up, "sweep", action, text=json.dumps(question))
        try:
            return foreign.parse(text)
        except ValueError:
            raise UserError(
                f"the cluster's answer is not JSON: {text[:200]!r}", code="sweep.answer"
            ) from None
