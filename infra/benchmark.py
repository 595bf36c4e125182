"""What a benchmark runs, by its content, and what it needs of a provider's login machine.

The component (`infra.slurm_cluster.Benchmark`) is apart, because commands that only ask about a run start
without Pulumi.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from infra import workload_files
from node.model import BenchmarkDesign, ClusterDesign
from workload.script import render, render_program

if TYPE_CHECKING:
    import pulumi


@dataclass(frozen=True, slots=True)
class BenchmarkRun:
    """What is to run, by its content: the digests name its folder.

    Attributes:
        script: The text of the `sbatch` script.
        workload_digest: The digest of the workload's files.
        own: The paths of a user's program, relative to the project. Empty means the built-in training.
    """

    script: str
    workload_digest: str
    own: tuple[str, ...] = ()

    @property
    def staged(self) -> str:
        """The staged workload's folder, relative to `<shared>/bench`."""
        return self.workload_digest[:16]

    @property
    def folder(self) -> str:
        """The run's folder, relative to `<shared>/bench`. Equal settings are one run."""
        return f"{self.staged}/{hashlib.sha256(self.script.encode()).hexdigest()[:12]}"

    @classmethod
    def of(
        cls, design: ClusterDesign, training: BenchmarkDesign, layout: Layout, project: Path | None = None
    ) -> BenchmarkRun:
        """Return the run that a stack file asks for, with the workload of this project.

        Args:
            project: The folder in which the stack file is; `None` means the program's.

        Raises:
            UserError: A file of the user's program is missing or cannot be staged.
        """
        digest = workload_files.read(project, training.staged).digest
        make = _program if training.own else _training
        return cls(make(design, training, layout, digest), digest, training.staged)


def _training(design: ClusterDesign, training: BenchmarkDesign, layout: Layout, digest: str) -> str:
    return render(
        epochs=training.epochs,
        profile=training.profile,
        data=training.data,
        batch=training.batch,
        seed=training.seed,
        learning_rate=training.learning_rate,
        average_every=training.average_every,
        cache=f"{layout.apps}/data",
        **_common(design, training, layout, digest),
    )


def _program(design: ClusterDesign, training: BenchmarkDesign, layout: Layout, digest: str) -> str:
    return render_program(
        command=(training.script, *training.arguments),
        tasks_per_node=training.tasks_per_node,
        container=training.container,
        **_common(design, training, layout, digest),
    )


def _common(design: ClusterDesign, training: BenchmarkDesign, layout: Layout, digest: str) -> dict[str, Any]:
    """Return what the scripts of all benchmarks say."""
    partition = design.partition(training.partition)
    return {
        "partition": partition.name,
        "nodes": training.nodes,
        "gpus_per_node": training.gpus_per_node,
        "python": interpreter(layout),
        "code": f"{layout.shared}/bench/{digest[:16]}",
        "stack": design.stack,
        "machine": partition.instance_type,
        "digest": digest,
        "price_hour": partition.price_hour,
    }


class Layout(Protocol):
    """The folders on a provider's login machine."""

    @property
    def apps(self) -> str:
        """The folder of shared software."""
        ...

    @property
    def shared(self) -> str:
        """The folder that every machine shares and that holds benchmark runs."""
        ...

    @property
    def environment(self) -> str:
        """The digest of the training environment's lock file."""
        ...


class Shell(Layout, Protocol):
    """The way to a provider's login machine. Each method declares a resource."""

    def prepare(self, name: str, opts: pulumi.ResourceOptions) -> pulumi.Resource:
        """Make the training environment if it is missing."""
        ...

    def stage(self, name: str, run: BenchmarkRun, opts: pulumi.ResourceOptions) -> pulumi.Resource:
        """Copy the workload to `<shared>/bench/<digest>`."""
        ...

    def submit(
        self, name: str, run: BenchmarkRun, opts: pulumi.ResourceOptions
    ) -> tuple[pulumi.Resource, pulumi.Output[str]]:
        """Submit on create, cancel on delete; the second value is the job's id."""
        ...

    def guard(self, name: str, queue: pulumi.Input[str], opts: pulumi.ResourceOptions) -> pulumi.Resource:
        """Refuse the deletion while there are jobs (`operations.guard`).

        Args:
            queue: The id of what holds the queue. Before it goes, the engine deletes this resource, because
                it cannot stay with another one.
        """
        ...


def interpreter(layout: Layout) -> str:
    """Return the training environment's Python, on the cluster."""
    return f"{layout.apps}/envs/{layout.environment}/bin/python"
