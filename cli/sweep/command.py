"""`./cluster run`: begins a sweep or continues the one under way, watches and reports it, or cancels it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from cli import results, shared_cores
from cli.console.progress import Console
from cli.console.sweep import Board, show_summary
from cli.console.tables import output
from cli.runner import interrupt
from cli.sweep import summary
from cli.sweep.plan import Plan, SweepRequest
from cli.sweep.remote import Remote
from cli.sweep.store import Store
from cli.sweep.watch import Progress, SweepEndedError, SweepGoneError, gone, watch
from infra import os_errors
from infra.errors import EXIT_INTERRUPTED, EXIT_REFUSED, NotUpError, UserError
from infra.program.stack import Stack
from node import plurals
from operations.access import StackUp

if TYPE_CHECKING:
    from cli.sweep.begin import Benchmark
    from infra.config import StackConfig

BATCH = 10
"""Runs submitted in one call. Each takes Slurm some hundredths of a second, and a call has a time limit."""


class Sweep:
    """The sweep of one stack of one checkout."""

    def __init__(self, stack: Stack, config: StackConfig, console: Console) -> None:
        self._stack = stack
        self._config = config
        self._console = console
        self._store = Store(stack)
        self._remote = Remote(StackUp.of(stack, config))

    def run(
        self, nodes: str | None, repeat: int | None, partitions: str | None = None, gpus: str | None = None
    ) -> None:
        """Begin or continue the sweep, watch it, and report it.

        Raises:
            UserError: A run has no result, the arguments are wrong or differ from those of the sweep under
                way, or the user interrupted the watching.
        """
        given = (nodes, repeat, partitions, gpus)
        wanted = None if given == (None,) * len(given) else self._benchmark().request(*given)
        if hint := interrupt.background_hint():
            self._console.say(hint, "dim")
        with self._errors_in_words():
            with self._locked():
                plan = self._under_way(wanted) or self._begin(wanted)
                plan = self._submit(plan)
            progress = Progress(plan, self._stack.project)
            try:
                with Board(self._console, f"stack {self._stack.name}", plan.repeat) as board:
                    board.show(progress.rows())
                    watch(progress, self._remote, self._store, board)
            except SweepGoneError:
                with self._locked():
                    self._store.forget(plan)
                raise UserError(self._is_gone(progress)) from None
            except SweepEndedError:
                raise UserError(
                    f"the sweep was ended by another `{self._say('run --cancel')}`; {_have(progress)}"
                ) from None
            with self._locked():
                self._store.forget(plan)
        self._report(progress)

    def cancel(self) -> None:
        """End the jobs of the sweep and forget its plan.

        Raises:
            UserError: The cluster does not answer.
        """
        with self._errors_in_words(), self._locked():
            plan = self._store.load()
            if plan is None:
                self._console.say(f"no sweep of stack {self._stack.name} is under way")
                return
            progress = Progress(plan, self._stack.project)
            try:
                # Runs without a known job are included: a submit may have been cut off.
                ended = self._remote.cancel(progress.open)
                progress.take(progress.open, self._remote.show(progress.open))
            except (NotUpError, SweepGoneError):
                self._console.say(self._is_gone(progress))
            else:
                self._console.say(f"{plurals.count(len(ended), 'job')} ended; {_have(progress)}")
            self._store.forget(plan)

    # --- begin or continue ---

    def _benchmark(self) -> Benchmark:
        # Imported here, because continuing a sweep needs no Pulumi.
        from cli.sweep.begin import Benchmark

        return Benchmark.of(self._stack, self._config)

    def _under_way(self, wanted: SweepRequest | None) -> Plan | None:
        """Return the plan to continue. `None` means that a new sweep begins.

        Raises:
            UserError: The arguments differ from those of the plan; or its cluster is gone and there are no
                arguments for a new sweep.
        """
        plan = self._store.load()
        if plan is None:
            return None
        progress = Progress(plan, self._stack.project)
        if self._gone(progress):
            self._store.forget(plan)
            if wanted is None:
                raise UserError(self._is_gone(progress))
            self._console.say(self._is_gone(progress), "yellow")
            return None
        if wanted not in (None, plan.request):
            raise UserError(
                f"another sweep of stack {self._stack.name} is under way: {plan.request}, begun "
                f"{plan.began}; {_have(progress)}.\n"
                f"`{self._say('run')}` waits for it, `{self._say('run --cancel')}` ends it.",
                EXIT_REFUSED,
            )
        self._console.say(f"going on with {plan.request} of {plan.began}: {_have(progress)}", "bold")
        if self._changed(plan):
            text = "the stack file or the workload has changed since: the sweep goes on with the old ones"
            self._console.say(text, "yellow")
        return plan

    def _gone(self, progress: Progress) -> bool:
        looked_at = progress.open
        try:
            return gone(looked_at, self._remote.show(looked_at))
        except NotUpError:
            return True
        except UserError:
            return False  # watching waits longer for an answer

    def _changed(self, plan: Plan) -> bool:
        try:
            return self._benchmark().scripts(plan.request) != plan.scripts
        except UserError:
            return True

    def _begin(self, wanted: SweepRequest | None) -> Plan:
        """Return a new plan, which is written before anything is submitted.

        Raises:
            UserError: The cluster is not up, or it lacks what the runs need.
        """
        benchmark = self._benchmark()
        wanted = wanted or benchmark.request(None, None)
        plan = benchmark.plan(wanted)
        self._check(self._remote.submit(plan, [], None)[0])
        self._console.say(f"stack {self._stack.name}: {_announcement(plan)}", "bold")
        if text := benchmark.cost(wanted):
            self._console.say(text)
        for text in benchmark.shared_cores(plan):
            self._console.say(text, "yellow")
        self._console.say("They run one after another, watched or not. After Ctrl-C `run` watches again.")
        self._store.save(plan)
        return plan

    def _submit(self, plan: Plan) -> Plan:
        """Submit the runs that have no job yet. The plan is saved with the new jobs after every call."""
        count = len(plan.unsubmitted)
        if not count:
            return plan
        with self._console.waiting(f"submitting {plurals.count(count, 'job')}"):
            while batch := plan.unsubmitted[:BATCH]:
                before = [run.job for run in plan.runs[: batch[0].number - 1] if run.job is not None]
                try:
                    missing, answers = self._remote.submit(plan, batch, before[-1] if before else None)
                    self._check(missing)
                except UserError as error:
                    done = count - len(plan.unsubmitted)
                    have = f"{done} of {plurals.count(count, 'job is', 'jobs are')} submitted"
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
                f"the cluster of stack {self._stack.name} lacks what these runs need:{lines}\n"
                "The workload of this checkout has changed since the cluster came up, or it came up without "
                f"the benchmark. Run `{self._say('up')}` to bring it there; then run this again."
            )

    # --- the end ---

    def _report(self, progress: Progress) -> None:
        """Print the summary and the report, and raise an error that names the runs without a result."""
        kept = [progress.kept[number] for number in sorted(progress.kept)]
        for title, lines in summary.tables(kept, self._stack.name):
            show_summary(title, lines, output())
        provider = self._config.cluster.provider
        beside = shared_cores.after(self._stack, provider, [one.record for one in kept])
        if beside is not None:
            self._console.say(beside, "yellow")
        failures = _failures(progress)
        if kept:
            from cli import report

            try:
                made = report.make([self._stack.name], project=self._stack.project)
            except UserError as error:
                failures.insert(0, str(error))
            else:
                print(made.page)
                print(made.table)
        if failures:
            raise UserError("\n".join(failures))

    def _is_gone(self, progress: Progress) -> str:
        return (
            f"the sweep of {progress.plan.began} ended with its cluster: stack {self._stack.name} is down, "
            f"or was created again since; {_have(progress)}, in {results.folder(self._stack.name)}."
        )

    def _say(self, command: str) -> str:
        return f"./cluster {command} --stack {self._stack.name}"

    # --- interruptions and errors ---

    @contextmanager
    def _locked(self) -> Iterator[None]:
        def busy() -> None:
            self._console.say(
                f"another `./cluster run` of stack {self._stack.name} is submitting; waiting for it"
            )

        with self._store.locked(busy):
            yield

    @contextmanager
    def _errors_in_words(self) -> Iterator[None]:
        """Turn Ctrl-C and a state folder that cannot be written into messages."""
        try:
            yield
        except KeyboardInterrupt:
            raise UserError(self._interrupted(), EXIT_INTERRUPTED) from None
        except BrokenPipeError:  # the reader of our output has gone
            raise
        except OSError as error:
            raise os_errors.explain(error, self._store.file) from None

    def _interrupted(self) -> str:
        plan = self._store.load()
        if plan is None:
            return "interrupted: no sweep is under way"
        if plan.unsubmitted:
            all_runs = plurals.count(len(plan.runs), "job")
            left = f"{len(plan.unsubmitted)} of {all_runs} may not be submitted yet"
            then = f"{left}. `{self._say('run')}` submits them and watches"
        else:
            then = f"the jobs go on. `{self._say('run')}` watches again, `{self._say('status')}` looks"
        return f"not watching any longer: {then}, `{self._say('run --cancel')}` ends them."


def _announcement(plan: Plan) -> str:
    request = plan.request
    *few, most = request.nodes
    nodes = f"{', '.join(map(str, few))} and " * bool(few) + plurals.count(most, "node")
    gpus = f", with {_list(request.gpus)} of its GPUs each" if request.gpus else ""
    repeat = f", {plan.repeat} times each" if plan.repeat > 1 else ""
    where = _list(request.partitions or (plan.partition,))
    return f"{plurals.count(len(plan.runs), 'run')} on {nodes} of {where}{gpus}{repeat}"


def _list(values: Sequence[int | str]) -> str:
    *most, last = map(str, values)
    return f"{', '.join(most)} and {last}" if most else last


def _failures(progress: Progress) -> list[str]:
    """Return each failed run with the end of its output, and a line with their number."""
    plan = progress.plan
    texts = [
        f"run {run.number} ({plurals.count(run.nodes, 'node')}{run.case.where and f' of {run.case.where}'}, "
        f"{run.repetition} of {plan.repeat})"
        f"{'' if run.job is None else f', job {run.job}'}: {progress.failed[run.number]}"
        for run in plan.runs
        if run.number in progress.failed
    ]
    return (
        [*texts, f"{len(texts)} of {plurals.count(len(plan.runs), 'run')} without a result"] if texts else []
    )


def _have(progress: Progress) -> str:
    return f"{len(progress.kept)} of {plurals.count(len(progress.plan.runs), 'result')} kept"
