"""A sweep's beginning: from the stack file and the arguments to a plan. Nothing is submitted or written."""

from __future__ import annotations

import dataclasses
import secrets
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from infra import providers, results
from infra.benchmark import BenchmarkRun, interpreter
from infra.design import benchmark_design, design
from infra.errors import EXIT_USAGE, UserError
from infra.machines import catalog
from infra.sweep import plan as plans
from infra.sweep import summary
from infra.sweep.plan import Plan, PlannedRun, Wish

if TYPE_CHECKING:
    from infra.config import StackConfig
    from infra.node.model import BenchmarkDesign, ClusterDesign, Partition


@dataclass(frozen=True, slots=True)
class Benchmark:
    """What the stack file and the checkout say now."""

    project: Path
    config: StackConfig
    cluster: ClusterDesign
    training: BenchmarkDesign

    @classmethod
    def of(cls, project: Path, config: StackConfig) -> Benchmark:
        """
        Raises:
            UserError: exit 2; the stack has no benchmark.
        """
        cluster = design(config, catalog())
        training = benchmark_design(config, cluster)
        if training is None:
            raise UserError(
                f"{_file(project, config)}: `run` repeats the stack's benchmark, and it has none. Set "
                f"slurm-stacks:benchmark.enabled to true, run `./cluster up --stack {config.stack}`, "
                "then this again.",
                EXIT_USAGE,
            )
        return cls(project, config, cluster, training)

    @property
    def partition(self) -> Partition:
        return self.cluster.partition(self.training.partition)

    def wish(self, nodes: str | None, repeat: int | None) -> Wish:
        """The arguments, checked (`infra.sweep.plan.wish`)."""
        names = [partition.name for partition in self.cluster.partitions]
        path = f"slurm-stacks:cluster.partitions[{names.index(self.partition.name)}].nodes.max"
        return plans.wish(
            nodes,
            repeat,
            most=self.partition.max,
            partition=self.partition.name,
            limit=f"{path} in {_file(self.project, self.config)}",
        )

    def scripts(self, wanted: Wish) -> dict[str, str]:
        """Number of nodes -> `sbatch` script."""
        return {str(nodes): self._run(nodes).script for nodes in wanted.nodes}

    def plan(self, wanted: Wish) -> Plan:
        """A new plan: its runs' folders are its own."""
        name = secrets.token_hex(4)
        shell = providers.load(self.cluster.provider).shell(self.cluster)
        runs = {nodes: self._run(nodes) for nodes in wanted.nodes}
        staged = next(iter(runs.values())).staged
        return Plan(
            id=name,
            stack=self.config.stack,
            partition=self.partition.name,
            began=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
            repeat=wanted.repeat,
            needs=(f"{shell.shared}/bench/{staged}/workload", interpreter(shell)),
            scripts={str(nodes): run.script for nodes, run in runs.items()},
            runs=tuple(
                PlannedRun(number, nodes, repetition, f"{runs[nodes].folder}-{name}-{number}")
                for number, (nodes, repetition) in enumerate(plans.order(wanted), 1)
            ),
        )

    def cost(self, wanted: Wish) -> str | None:
        """A sentence on what the runs will cost, as far as it is known; None where nothing is."""
        like = {
            "partition": self.partition.name,
            "machine": self.partition.machine,
            "gpus_per_node": self.training.gpus_per_node,
            "profile": self.training.profile,
            "epochs": self.training.epochs,
            "digest": self._run(wanted.nodes[0]).workload_digest,
        }
        text = summary.cost(wanted, self.partition.price_hour, like, results.load(self.config.stack)[0])
        pretended = text is not None and self.cluster.provider == "local"
        return f"{text} (the stack file's pretended price)" if pretended else text

    def _run(self, nodes: int) -> BenchmarkRun:
        shell = providers.load(self.cluster.provider).shell(self.cluster)
        training = dataclasses.replace(self.training, nodes=nodes)
        return BenchmarkRun.of(self.cluster, training, shell, self.project)


def _file(project: Path, config: StackConfig) -> Path:
    return project / f"Pulumi.{config.stack}.yaml"
