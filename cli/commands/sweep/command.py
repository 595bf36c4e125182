"""`./cluster run`: begins a sweep or continues the one under way, watches and reports it, or cancels it."""

from __future__ import annotations

import dataclasses
import hashlib
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cli import results
from cli.commands import shared_cores
from cli.commands.sweep import plan as plans
from cli.commands.sweep import table
from cli.commands.sweep.plan import Case, PartitionLimits, Plan, PlannedRun, SweepRequest
from cli.commands.sweep.table import Board, show_summary
from cli.commands.sweep.watch import Progress, Remote, SweepEndedError, SweepGoneError, watch
from cli.console.progress import Console
from cli.console.tables import output
from cli.engine import interrupt, lock
from cli.providers.interface import HasLoginMachine, Runs
from infra.benchmark import BenchmarkRun, interpreter
from infra.design import benchmark_design
from infra.errors import EXIT_INTERRUPTED, EXIT_REFUSED, EXIT_USAGE, UserError
from infra.program.stack import Stack
from node.system import plurals

if TYPE_CHECKING:
    from infra.config import StackConfig
    from node.design.model import BenchmarkDesign, ClusterDesign, Partition
    from operations.access import StackUp


BATCH = 10
"""Runs submitted in one call. Each takes Slurm some hundredths of a second, and a call has a time limit."""


class Sweep:
    """The sweep of one stack of one checkout.

    Args:
        machine: The cluster's login machine.
    """

    def __init__(self, machine: HasLoginMachine, up: StackUp, console: Console) -> None:
        self._machine = machine
        self._up = up
        self._stack = up.stack
        self._console = console
        self._remote = Remote(machine, up)
        self._known: Plan | None = None

    def run(self, asked: Runs) -> None:
        """Begin or continue the sweep, watch it to its end, and print its summary and the report.

        Args:
            asked: If all is None, the sweep that is under way continues, whatever its arguments were.

        Raises:
            UserError: A run has no result, the arguments are wrong or differ from those of the sweep under
                way, or the user interrupted the watching.
        """
        wanted = None
        if asked != Runs():
            wanted = self._benchmark().request(asked.nodes, asked.repeat, asked.partitions, asked.gpus)
        if hint := interrupt.background_hint():
            self._console.say(hint, "dim")
        with self._interruption_in_words():
            number, plan = self._under_way(wanted)
            if plan is None or plan.unsubmitted:
                # Watching needs no lock. No `up` or `down` changes the cluster while jobs are submitted.
                with lock.locked(self._stack, "run", shared=True):
                    plan = self._submit(plan or self._begin(wanted, number))
            progress = Progress(plan, self._stack.project)
            try:
                with Board(self._console, f"stack {self._stack.name}", plan.repeat) as board:
                    board.show(progress.rows())
                    watch(progress, self._remote, board)
            except SweepGoneError:
                raise UserError(self._is_gone(progress), code="sweep.gone") from None
            except SweepEndedError:
                raise UserError(
                    f"the sweep was ended by another `{self._say('run --cancel')}`; {_have(progress)}",
                    code="sweep.cancelled",
                ) from None
            with suppress(UserError):  # otherwise the next `run` tells it again
                self._remote.close(plan.runs)
        self._report(progress)

    def cancel(self) -> None:
        """End the jobs of the sweep, and keep the results that have come.

        Raises:
            UserError: The cluster is not up or does not answer.
        """
        with self._interruption_in_words():
            _, seen = self._remote.under_way()
            if not seen:
                self._console.say(f"no sweep of stack {self._stack.name} is under way")
                return
            progress = Progress(self._plan(seen), self._stack.project)
            with lock.locked(self._stack, "run --cancel", shared=True):
                ended = self._remote.cancel(progress.plan.runs)
            progress.take(progress.open, self._remote.show(progress.open))
            self._console.say(f"{plurals.count(len(ended), 'job')} ended; {_have(progress)}")

    # --- begin or continue ---

    def _benchmark(self) -> Benchmark:
        return Benchmark.of(self._machine, self._up)

    def _under_way(self, wanted: SweepRequest | None) -> tuple[int, Plan | None]:
        """Return the next sweep's number, and the plan to continue. `None` means that a new sweep begins.

        Raises:
            UserError: The arguments differ from those of the sweep under way; or the cluster is not up.
        """
        number, seen = self._remote.under_way()
        if not seen:
            return number, None
        plan = self._known = self._plan(seen)
        progress = Progress(plan, self._stack.project)
        progress.take(plan.runs, seen)
        if wanted not in (None, plan.request):
            raise UserError(
                f"another sweep of stack {self._stack.name} is under way: {plan.request}, begun "
                f"{plan.began}; {_have(progress)}.\n"
                f"`{self._say('run')}` waits for it, `{self._say('run --cancel')}` ends it.",
                EXIT_REFUSED,
                code="sweep.other-under-way",
            )
        self._console.say(f"going on with {plan.request} of {plan.began}: {_have(progress)}", "bold")
        if self._changed(plan):
            text = "the stack file or the workload has changed since: the sweep goes on with the old ones"
            self._console.say(text, "yellow")
        return number, plan

    def _plan(self, seen: list[dict[str, Any]]) -> Plan:
        try:
            return Plan.of(self._stack.name, seen)
        except ValueError as error:
            raise UserError(
                f"another release of this program has begun the sweep that is under way ({error}): wait for "
                f"its jobs, which `{self._say('exec -- squeue')}` lists, or remove {seen[0]['folder']}",
                EXIT_REFUSED,
                code="sweep.plan-version",
            ) from None

    def _changed(self, plan: Plan) -> bool:
        try:
            return not self._benchmark().made(plan)
        except UserError:
            return True

    def _begin(self, wanted: SweepRequest | None, number: int) -> Plan:
        """Return a new plan, whose runs are prepared before anything is submitted.

        Raises:
            UserError: The cluster lacks what the runs need.
        """
        benchmark = self._benchmark()
        wanted = wanted or benchmark.request(None, None)
        plan = benchmark.plan(wanted, number)
        self._check(self._remote.prepare(benchmark.preparation(plan)))
        self._known = plan
        self._console.say(f"stack {self._stack.name}: {_announcement(plan)}", "bold")
        if text := benchmark.cost(wanted):
            self._console.say(text)
        for text in benchmark.shared_cores(plan):
            self._console.say(text, "yellow")
        self._console.say("They run one after another, watched or not. After Ctrl-C `run` watches again.")
        return plan

    def _submit(self, plan: Plan) -> Plan:
        """Submit the runs that have no job yet, some in each call, behind those that have one."""
        count = len(plan.unsubmitted)
        with self._console.waiting(f"submitting {plurals.count(count, 'job')}"):
            while batch := plan.unsubmitted[:BATCH]:
                last = max((run.job for run in plan.runs if run.job is not None), default=None)
                try:
                    answers = self._remote.submit(batch, last)
                except UserError as error:
                    done = count - len(plan.unsubmitted)
                    have = f"{done} of {plurals.count(count, 'job is', 'jobs are')} submitted"
                    raise UserError(
                        f"{error}\n{have}; `{self._say('run')}` goes on.", code="sweep.not-told"
                    ) from None
                plan = self._known = plan.change(
                    *(
                        dataclasses.replace(run, job=answer["job"], refused=answer["error"])
                        for run, answer in zip(batch, answers, strict=True)
                    )
                )
                if plan.unsubmitted:
                    self._console.now(f"{count - len(plan.unsubmitted)} of {count}")
        return plan

    def _check(self, missing: list[str]) -> None:
        if missing:
            lines = "".join(f"\n  {path}" for path in missing)
            raise UserError(
                f"the cluster of stack {self._stack.name} lacks what these runs need:{lines}\n"
                "The workload of this checkout has changed since the cluster came up, or it came up without "
                f"the benchmark. Run `{self._say('up')}` to bring it there; then run this again.",
                code="sweep.cluster-lacks",
            )

    # --- the end ---

    def _report(self, progress: Progress) -> None:
        """Print the summary and the report, and raise an error that names the runs without a result."""
        kept = [progress.kept[number] for number in sorted(progress.kept)]
        for title, lines in table.summary_tables(kept, self._stack.name):
            show_summary(title, lines, output())
        beside = shared_cores.after(self._machine, self._stack, [result.record for result in kept])
        if beside is not None:
            self._console.say(beside, "yellow")
        failures = _failures(progress)
        if kept:
            from cli.commands import report

            try:
                files = report.make([self._stack.name], project=self._stack.project)
            except UserError as error:
                failures.insert(0, str(error))
            else:
                print(files.page)
                print(files.table)
        if failures:
            raise UserError("\n".join(failures), code="sweep.runs-failed")

    def _is_gone(self, progress: Progress) -> str:
        return (
            f"the sweep of {progress.plan.began} ended with its cluster: stack {self._stack.name} is down, "
            f"or was created again since; {_have(progress)}, in {results.folder(self._stack.name)}."
        )

    def _say(self, command: str) -> str:
        return f"./cluster {command} --stack {self._stack.name}"

    @contextmanager
    def _interruption_in_words(self) -> Iterator[None]:
        try:
            yield
        except KeyboardInterrupt:
            raise UserError(self._interrupted(), EXIT_INTERRUPTED, code="sweep.interrupted") from None

    def _interrupted(self) -> str:
        plan = self._known
        if plan is None:
            return f"interrupted: `{self._say('run')}` goes on with a sweep if one is under way"
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


@dataclass(frozen=True, slots=True)
class Benchmark:
    """The benchmark as the stack file and the checkout describe it now."""

    machine: HasLoginMachine
    stack: Stack
    config: StackConfig
    cluster: ClusterDesign
    training: BenchmarkDesign

    @classmethod
    def of(cls, machine: HasLoginMachine, up: StackUp) -> Benchmark:
        """Read the benchmark of a stack.

        Raises:
            UserError: The stack has no benchmark (exit 2).
        """
        stack, config = up.stack, up.config
        training = None if config is None else benchmark_design(config, up.design)
        if config is None or training is None:
            raise UserError(
                f"{stack.file}: `run` repeats the stack's benchmark, and it has none. Set "
                f"slurm-stacks:benchmark.enabled to true, run `./cluster up --stack {stack.name}`, "
                "then this again.",
                EXIT_USAGE,
                code="sweep.no-benchmark",
            )
        return cls(machine, stack, config, up.design, training)

    @property
    def partition(self) -> Partition:
        return self.cluster.partition(self.training.partition)

    def request(
        self, nodes: str | None, repeat: int | None, partitions: str | None = None, gpus: str | None = None
    ) -> SweepRequest:
        """Return the checked arguments (`cli.commands.sweep.plan.parse_request`).

        Args:
            partitions: Names with commas between them. `None` means the benchmark's partition.

        Raises:
            UserError: The arguments are wrong (exit 2).
        """
        given = () if partitions is None else self._names(partitions)
        limits = [self._limits(name) for name in given or (self.training.partition,)]
        return plans.parse_request(nodes, repeat, limits, partitions=given, gpus=gpus)

    def _names(self, text: str) -> tuple[str, ...]:
        partitions = list(self.cluster.slurm_partitions())
        names = [name.strip() for name in text.split(",")]
        wrong = [f"{name[:40]!r} is none of them" for name in names if name not in partitions]
        wrong += [f"{name} is given twice" for name in partitions if names.count(name) > 1]
        if wrong:
            raise UserError(
                f"--partition {text[:60]}: {'; '.join(dict.fromkeys(wrong))}. "
                f"The partitions of stack {self.stack.name}: {', '.join(partitions)}",
                EXIT_USAGE,
                code="sweep.partition",
            )
        return tuple(names)

    def _limits(self, name: str) -> PartitionLimits:
        first = self.cluster.pools_of(name)[0]
        names = [partition.name for partition in self.config.cluster.partitions]
        index = names.index(first.slurm_name)
        key = f"slurm-stacks:cluster.partitions[{index}].nodes.max in {self.stack.file}"
        return PartitionLimits(name, self.cluster.most_nodes(name), first.usable_gpus, key)

    def plan(self, wanted: SweepRequest, number: int) -> Plan:
        """Return a plan. Only the same request with the same number has the same folders.

        Args:
            number: The number of the sweep on its cluster.
        """
        name = f"{number}-{hashlib.sha256(str(wanted).encode()).hexdigest()[:8]}"
        runs = tuple(
            PlannedRun(
                place,
                case.nodes,
                repetition,
                f"{self._run(case).folder}-{name}-{place}",
                partition=case.partition,
                gpus=case.gpus,
            )
            for place, (case, repetition) in enumerate(plans.order(wanted), 1)
        )
        began = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
        return Plan(self.stack.name, self.training.partition, began, wanted.repeat, runs)

    def preparation(self, plan: Plan) -> dict[str, Any]:
        """Return what the cluster needs to prepare the runs of a plan (`node.sweep.Sweep.prepare`)."""
        layout = self.machine.layout(self.cluster)
        cases = {run.case.key: self._run(run.case) for run in plan.runs}
        staged = next(iter(cases.values())).staged
        return {
            "needs": [f"{layout.shared}/bench/{staged}/workload", interpreter(layout)],
            "scripts": {key: run.script for key, run in cases.items()},
            "runs": [
                {"folder": run.folder, "script": run.case.key, "label": plan.label(run)} for run in plan.runs
            ],
        }

    def made(self, plan: Plan) -> bool:
        """Return whether a plan has the scripts and files that it would have now."""
        return all(run.folder.startswith(f"{self._run(run.case).folder}-") for run in plan.runs)

    def cost(self, wanted: SweepRequest) -> str | None:
        """Return a sentence on what the runs will cost, a line for each kind of node.

        `None` means that the machines are free.
        """
        earlier = results.load(self.stack.name)[0]
        kinds = dict.fromkeys(case._replace(nodes=wanted.nodes[0]) for case, _ in plans.order(wanted))
        costs = []
        for case in kinds:
            training = self._training(case)
            for pool in self.cluster.pools_of(training.partition):
                text = table.cost(wanted, pool.price_hour, self._like(case, training, pool), earlier)
                where = [case.where] * (len(kinds) > 1) + [f"pool {pool.pool}"] * (pool.pool is not None)
                if text is not None:
                    costs.append(": ".join([*where, text]))
        if not costs:
            return None
        pretended = " (the stack file's pretended price)" if self.cluster.provider == "local" else ""
        return "\n".join(f"{text}{pretended}" for text in costs)

    def shared_cores(self, plan: Plan) -> list[str]:
        """Say which runs' nodes share cores, and with whom: local nodes do where too few are free."""
        runs = [(run.case.partition or self.training.partition, run.nodes) for run in plan.runs]
        return shared_cores.of_runs(self.machine, self.stack, self.cluster, runs)

    def _like(self, case: Case, training: BenchmarkDesign, pool: Partition) -> dict[str, Any]:
        """Return the values that an earlier result must have to tell how long the runs of a case take."""
        like: dict[str, Any] = {
            "partition": training.partition,
            "pool": pool.pool,
            "machine": pool.instance_type,
            "gpus_per_node": training.gpus_per_node,
            "digest": self._run(case).workload_digest,
        }
        if training.own:
            return like | {"script": training.script, "arguments": list(training.arguments)}
        return like | {"profile": training.profile, "epochs": training.epochs}

    def _training(self, case: Case) -> BenchmarkDesign:
        """Return the benchmark with a case's values in place of its own."""
        name = case.partition or self.training.partition
        gpus = case.gpus
        if gpus is None:
            most = self.cluster.partition(name).usable_gpus
            requested = self.config.benchmark.gpus_per_node if self.config.benchmark else None
            gpus = most if requested is None else min(requested, most)
        return dataclasses.replace(self.training, nodes=case.nodes, partition=name, gpus_per_node=gpus)

    def _run(self, case: Case) -> BenchmarkRun:
        layout = self.machine.layout(self.cluster)
        return BenchmarkRun.of(self.cluster, self._training(case), layout, self.stack.project)
