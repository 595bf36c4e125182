"""`./cluster run`: begin a sweep or go on with the one under way, watch it, report; or cancel it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from infra import results, trouble
from infra.console.progress import Console
from infra.console.sweep import Board, show_summary
from infra.console.tables import output
from infra.errors import EXIT_INTERRUPTED, EXIT_REFUSED, NotUpError, UserError
from infra.node import words
from infra.runner import interrupt
from infra.sweep import summary
from infra.sweep.plan import Plan, Wish
from infra.sweep.remote import Remote
from infra.sweep.store import Store
from infra.sweep.watch import Progress, SweepEnded, SweepGone, gone, watch

if TYPE_CHECKING:
    from infra.config import StackConfig
    from infra.sweep.begin import Benchmark

BATCH = 10
"""Runs submitted in one call: each takes Slurm some hundredths of a second, and a call has its limit."""


class Sweep:
    """The sweep of one stack of one checkout."""

    def __init__(self, project: Path, config: StackConfig, console: Console) -> None:
        self._project = project
        self._config = config
        self._stack = config.stack
        self._console = console
        self._store = Store(project, config.stack)
        self._remote = Remote(project, config)

    def run(self, nodes: str | None, repeat: int | None) -> None:
        """
        Raises:
            UserError: a run has no result, the arguments are wrong, others than those of the sweep under way,
                or the watching was interrupted.
        """
        wanted = None if nodes is None and repeat is None else self._benchmark().wish(nodes, repeat)
        if unheard := interrupt.unheard():
            self._console.say(unheard, "dim")
        with self._troubles():
            with self._locked():
                plan = self._under_way(wanted) or self._begin(wanted)
                plan = self._submit(plan)
            progress = Progress(plan, self._project)
            try:
                with Board(self._console, f"stack {self._stack}", plan.repeat) as board:
                    board.show(progress.rows())
                    watch(progress, self._remote, self._store, board)
            except SweepGone:
                with self._locked():
                    self._store.forget(plan)
                raise UserError(self._is_gone(progress)) from None
            except SweepEnded:
                raise UserError(
                    f"the sweep was ended by another `{self._say('run --cancel')}`; {_have(progress)}"
                ) from None
            with self._locked():
                self._store.forget(plan)
        self._report(progress)

    def cancel(self) -> None:
        """
        Raises:
            UserError: the cluster does not answer.
        """
        with self._troubles(), self._locked():
            plan = self._store.load()
            if plan is None:
                self._console.say(f"no sweep of stack {self._stack} is under way")
                return
            progress = Progress(plan, self._project)
            try:
                # Those of which we know no job, too: a submit may have been cut off.
                ended = self._remote.cancel(progress.open)
                progress.take(progress.open, self._remote.show(progress.open))
            except (NotUpError, SweepGone):
                self._console.say(self._is_gone(progress))
            else:
                self._console.say(f"{words.count(len(ended), 'job')} ended; {_have(progress)}")
            self._store.forget(plan)

    # --- beginning and going on ---

    def _benchmark(self) -> Benchmark:
        # Here, because going on with a sweep needs no Pulumi.
        from infra.sweep.begin import Benchmark

        return Benchmark.of(self._project, self._config)

    def _under_way(self, wanted: Wish | None) -> Plan | None:
        """The plan to go on with, None where there is none.

        Raises:
            UserError: other arguments are wanted; or its cluster is gone, and nothing says what is wanted.
        """
        plan = self._store.load()
        if plan is None:
            return None
        progress = Progress(plan, self._project)
        if self._gone(progress):
            self._store.forget(plan)
            if wanted is None:
                raise UserError(self._is_gone(progress))
            self._console.say(self._is_gone(progress), "yellow")
            return None
        if wanted not in (None, plan.wish):
            raise UserError(
                f"another sweep of stack {self._stack} is under way: {plan.wish}, begun {plan.began}; "
                f"{_have(progress)}.\n"
                f"`{self._say('run')}` waits for it, `{self._say('run --cancel')}` ends it.",
                EXIT_REFUSED,
            )
        self._console.say(f"going on with {plan.wish} of {plan.began}: {_have(progress)}", "bold")
        if self._changed(plan):
            text = "the stack file or the workload has changed since: the sweep ends as it began"
            self._console.say(text, "yellow")
        return plan

    def _gone(self, progress: Progress) -> bool:
        looked_at = progress.open
        try:
            return gone(looked_at, self._remote.show(looked_at))
        except NotUpError:
            return True
        except UserError:
            return False  # who watches has patience

    def _changed(self, plan: Plan) -> bool:
        try:
            return self._benchmark().scripts(plan.wish) != plan.scripts
        except UserError:
            return True

    def _begin(self, wanted: Wish | None) -> Plan:
        """A new plan, written before anything is submitted.

        Raises:
            UserError: the cluster is not up, or has not what the runs need.
        """
        benchmark = self._benchmark()
        wanted = wanted or benchmark.wish(None, None)
        plan = benchmark.plan(wanted)
        self._check(self._remote.submit(plan, [], None)[0])
        self._console.say(f"stack {self._stack}: {_announcement(plan)}", "bold")
        if text := benchmark.cost(wanted):
            self._console.say(text)
        self._console.say("They run in turn, watched or not: Ctrl-C leaves them, `run` watches again.")
        self._store.save(plan)
        return plan

    def _submit(self, plan: Plan) -> Plan:
        """Submit what is not submitted yet; the plan learns each job before the next are asked for."""
        count = len(plan.unsubmitted)
        if not count:
            return plan
        with self._console.waiting(f"submitting {words.count(count, 'job')}"):
            while batch := plan.unsubmitted[:BATCH]:
                before = [run.job for run in plan.runs[: batch[0].number - 1] if run.job is not None]
                try:
                    missing, answers = self._remote.submit(plan, batch, before[-1] if before else None)
                    self._check(missing)
                except UserError as error:
                    done = count - len(plan.unsubmitted)
                    have = f"{done} of {words.count(count, 'job is', 'jobs are')} submitted"
                    raise UserError(f"{error}\n{have}; `{self._say('run')}` goes on.") from None
                plan = plan.change(
                    *(
                        dataclasses.replace(run, job=answer["job"], refused=answer["error"])
                        for run, answer in zip(batch, answers, strict=True)
                    )
                )
                self._store.save(plan)
                if plan.unsubmitted:
                    self._console.now(f"{count - len(plan.unsubmitted)} of {count}")
        return plan

    def _check(self, missing: list[str]) -> None:
        if missing:
            lines = "".join(f"\n  {path}" for path in missing)
            raise UserError(
                f"the cluster of stack {self._stack} has not what these runs need:{lines}\n"
                "The workload of this checkout has changed since the cluster came up, or the stack had no "
                f"benchmark then. `{self._say('up')}` brings it there; then run this again."
            )

    # --- the end ---

    def _report(self, progress: Progress) -> None:
        """The summary, the report, and what is missing in both."""
        kept = [progress.kept[number] for number in sorted(progress.kept)]
        for title, lines in summary.tables(kept, self._stack):
            show_summary(title, lines, output())
        troubles = _failures(progress)
        if kept:
            from infra import report

            try:
                made = report.make([self._stack], project=self._project)
            except UserError as error:
                troubles.insert(0, str(error))
            else:
                print(made.page)
                print(made.table)
        if troubles:
            raise UserError("\n".join(troubles))

    def _is_gone(self, progress: Progress) -> str:
        return (
            f"the sweep of {progress.plan.began} ended with its cluster: stack {self._stack} is down, or was "
            f"made anew since; {_have(progress)}, in {results.folder(self._stack)}."
        )

    def _say(self, command: str) -> str:
        return f"./cluster {command} --stack {self._stack}"

    # --- what may come between ---

    @contextmanager
    def _locked(self) -> Iterator[None]:
        def busy() -> None:
            self._console.say(f"another `./cluster run` of stack {self._stack} is submitting; waiting for it")

        with self._store.locked(busy):
            yield

    @contextmanager
    def _troubles(self) -> Iterator[None]:
        """Ctrl-C, and a state folder that cannot be written, in words."""
        try:
            yield
        except KeyboardInterrupt:
            raise UserError(self._interrupted(), EXIT_INTERRUPTED) from None
        except BrokenPipeError:  # of our own output
            raise
        except OSError as error:
            raise trouble.explain(error, self._store.file) from None

    def _interrupted(self) -> str:
        plan = self._store.load()
        if plan is None:
            return "interrupted: no sweep is under way"
        if plan.unsubmitted:
            all_runs = words.count(len(plan.runs), "job")
            left = f"{len(plan.unsubmitted)} of {all_runs} may not be submitted yet"
            then = f"{left}. `{self._say('run')}` submits them and watches"
        else:
            then = f"the jobs go on. `{self._say('run')}` watches again, `{self._say('status')}` looks"
        return f"not watching any longer: {then}, `{self._say('run --cancel')}` ends them."


def _announcement(plan: Plan) -> str:
    *most, last = plan.wish.nodes
    nodes = f"{', '.join(map(str, most))} and {last} nodes" if most else words.count(last, "node")
    repeat = f", {plan.repeat} times each" if plan.repeat > 1 else ""
    return f"{words.count(len(plan.runs), 'run')} on {nodes} of {plan.partition}{repeat}"


def _failures(progress: Progress) -> list[str]:
    """Each failed run with the end of its output, and how many they are."""
    plan = progress.plan
    texts = [
        f"run {run.number} ({words.count(run.nodes, 'node')}, {run.repetition} of {plan.repeat})"
        f"{'' if run.job is None else f', job {run.job}'}: {progress.failed[run.number]}"
        for run in plan.runs
        if run.number in progress.failed
    ]
    return [*texts, f"{len(texts)} of {words.count(len(plan.runs), 'run')} without a result"] if texts else []


def _have(progress: Progress) -> str:
    return f"{len(progress.kept)} of {words.count(len(progress.plan.runs), 'result')} kept"
