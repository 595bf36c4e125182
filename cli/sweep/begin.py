"""Makes a sweep's plan from the stack file and the arguments. Nothing is submitted or written here."""

from __future__ import annotations

import dataclasses
import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cli import provider, results, shared_cores
from cli.sweep import plan as plans
from cli.sweep import summary
from cli.sweep.plan import Case, PartitionLimits, Plan, PlannedRun, SweepRequest
from infra.benchmark import BenchmarkRun, interpreter
from infra.design import benchmark_design, design
from infra.errors import EXIT_USAGE, UserError
from infra.instance_types.catalog import catalog
from infra.program.stack import Stack

if TYPE_CHECKING:
    from infra.config import StackConfig
    from node.model import BenchmarkDesign, ClusterDesign, Partition


@dataclass(frozen=True, slots=True)
class Benchmark:
    """The benchmark as the stack file and the checkout describe it now."""

    stack: Stack
    config: StackConfig
    cluster: ClusterDesign
    training: BenchmarkDesign

    @classmethod
    def of(cls, stack: Stack, config: StackConfig) -> Benchmark:
        """Read the benchmark of a stack.

        Raises:
            UserError: The stack has no benchmark (exit 2).
        """
        cluster = design(config, catalog())
        training = benchmark_design(config, cluster)
        if training is None:
            raise UserError(
                f"{stack.file}: `run` repeats the stack's benchmark, and it has none. Set "
                f"slurm-stacks:benchmark.enabled to true, run `./cluster up --stack {stack.name}`, "
                "then this again.",
                EXIT_USAGE,
            )
        return cls(stack, config, cluster, training)

    @property
    def partition(self) -> Partition:
        return self.cluster.partition(self.training.partition)

    def request(
        self, nodes: str | None, repeat: int | None, partitions: str | None = None, gpus: str | None = None
    ) -> SweepRequest:
        """Return the checked arguments (`cli.sweep.plan.parse_request`).

        Args:
            partitions: Names with commas between them. `None` means the benchmark's partition.

        Raises:
            UserError: The arguments are wrong (exit 2).
        """
        given = () if partitions is None else self._names(partitions)
        limits = [self._limits(name) for name in given or (self.partition.name,)]
        return plans.parse_request(nodes, repeat, limits, partitions=given, gpus=gpus)

    def _names(self, text: str) -> tuple[str, ...]:
        there = [partition.name for partition in self.cluster.partitions]
        names = [name.strip() for name in text.split(",")]
        wrong = [f"{name[:40]!r} is none of them" for name in names if name not in there]
        wrong += [f"{name} is given twice" for name in there if names.count(name) > 1]
        if wrong:
            raise UserError(
                f"--partition {text[:60]}: {'; '.join(dict.fromkeys(wrong))}. "
                f"The partitions of stack {self.stack.name}: {', '.join(there)}",
                EXIT_USAGE,
            )
        return tuple(names)

    def _limits(self, name: str) -> PartitionLimits:
        names = [partition.name for partition in self.cluster.partitions]
        key = f"slurm-stacks:cluster.partitions[{names.index(name)}].nodes.max in {self.stack.file}"
        partition = self.cluster.partition(name)
        return PartitionLimits(name, partition.max, partition.usable_gpus, key)

    def scripts(self, wanted: SweepRequest) -> dict[str, str]:
        """Return the `sbatch` script of each case, by its key."""
        return {case.key: self._run(case).script for case, _ in plans.order(wanted)}

    def plan(self, wanted: SweepRequest) -> Plan:
        """Return a new plan. No other plan uses the folders of its runs."""
        name = secrets.token_hex(4)
        layout = provider.load(self.cluster.provider).layout(self.cluster)
        runs = {case: self._run(case) for case, _ in plans.order(wanted)}
        staged = next(iter(runs.values())).staged
        return Plan(
            id=name,
            stack=self.stack.name,
            partition=self.partition.name,
            began=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
            repeat=wanted.repeat,
            needs=(f"{layout.shared}/bench/{staged}/workload", interpreter(layout)),
            scripts={case.key: run.script for case, run in runs.items()},
            runs=tuple(
                PlannedRun(
                    number,
                    case.nodes,
                    repetition,
                    f"{runs[case].folder}-{name}-{number}",
                    partition=case.partition,
                    gpus=case.gpus,
                )
                for number, (case, repetition) in enumerate(plans.order(wanted), 1)
            ),
        )

    def cost(self, wanted: SweepRequest) -> str | None:
        """Return a sentence on what the runs will cost, a line for each kind of node.

        `None` means that the machines are free.
        """
        earlier = results.load(self.stack.name)[0]
        kinds = dict.fromkeys(case._replace(nodes=wanted.nodes[0]) for case, _ in plans.order(wanted))
        found = []
        for case in kinds:
            training = self._training(case)
            partition = self.cluster.partition(training.partition)
            text = summary.cost(wanted, partition.price_hour, self._like(case, training), earlier)
            if text is not None:
                found.append(f"{case.where}: {text}" if len(kinds) > 1 else text)
        if not found:
            return None
        pretended = " (the stack file's pretended price)" if self.cluster.provider == "local" else ""
        return "\n".join(f"{text}{pretended}" for text in found)

    def shared_cores(self, plan: Plan) -> list[str]:
        """Say which runs' nodes share cores, and with whom: local nodes do where too few are free."""
        runs = [(run.case.partition or self.partition.name, run.nodes) for run in plan.runs]
        return shared_cores.of_runs(self.stack, self.cluster, runs)

    def _like(self, case: Case, training: BenchmarkDesign) -> dict[str, Any]:
        """The values that an earlier result must have to tell how long the runs of a case take."""
        like: dict[str, Any] = {
            "partition": training.partition,
            "machine": self.cluster.partition(training.partition).instance_type,
            "gpus_per_node": training.gpus_per_node,
            "digest": self._run(case).workload_digest,
        }
        if training.own:
            return like | {"script": training.script, "arguments": list(training.arguments)}
        return like | {"profile": training.profile, "epochs": training.epochs}

    def _training(self, case: Case) -> BenchmarkDesign:
        """The benchmark with a case's values in place of its own."""
        partition = self.cluster.partition(case.partition) if case.partition else self.partition
        gpus = case.gpus
        if gpus is None:
            most = partition.usable_gpus
            asked = self.config.benchmark.gpus_per_node if self.config.benchmark else None
            gpus = most if asked is None else min(asked, most)
        return dataclasses.replace(
            self.training, nodes=case.nodes, partition=partition.name, gpus_per_node=gpus
        )

    def _run(self, case: Case) -> BenchmarkRun:
        layout = provider.load(self.cluster.provider).layout(self.cluster)
        return BenchmarkRun.of(self.cluster, self._training(case), layout, self.stack.project)
