"""Component: stage the workload by its digest, submit it once, know where its result will be."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pulumi

from infra import bundle
from infra.node.model import BenchmarkDesign, ClusterDesign
from workload.script import render


@dataclass(frozen=True, slots=True)
class BenchmarkRun:
    """What is to be run, as content: the digests name its folder.

    Attributes:
        script: the `sbatch` script's text.
        workload_digest: of the workload's files.
    """

    script: str
    workload_digest: str

    @property
    def staged(self) -> str:
        """The staged workload's folder, relative to `<shared>/bench`."""
        return self.workload_digest[:16]

    @property
    def folder(self) -> str:
        """The run's folder, relative to `<shared>/bench`: the same wish is the same run."""
        return f"{self.staged}/{hashlib.sha256(self.script.encode()).hexdigest()[:12]}"

    @classmethod
    def of(
        cls, design: ClusterDesign, training: BenchmarkDesign, shell: Shell, root: Path = bundle.ROOT
    ) -> BenchmarkRun:
        """The run that a stack's file asks for, with the workload as it lies in the project."""
        digest = bundle.tree_digest(root / "workload")
        partition = design.partition(training.partition)
        script = render(
            partition=partition.name,
            nodes=training.nodes,
            gpus_per_node=training.gpus_per_node,
            python=interpreter(shell),
            code=f"{shell.shared}/bench/{digest[:16]}",
            epochs=training.epochs,
            profile=training.profile,
            data=training.data,
            batch=training.batch,
            cache=f"{shell.apps}/data",
            stack=design.stack,
            machine=partition.machine,
            digest=digest,
            price_hour=partition.price_hour,
        )
        return cls(script, digest)


class Shell(Protocol):
    """How a provider's login machine is reached, and what lies where on it.

    Each method declares a resource.
    """

    @property
    def apps(self) -> str:
        """The folder of shared software."""
        ...

    @property
    def shared(self) -> str:
        """The folder that every machine sees, below which benchmark runs lie."""
        ...

    @property
    def environment(self) -> str:
        """The digest of the training environment's lock file."""
        ...

    def prepare(self, name: str, opts: pulumi.ResourceOptions) -> pulumi.Resource:
        """Have the training environment."""
        ...

    def stage(self, name: str, run: BenchmarkRun, opts: pulumi.ResourceOptions) -> pulumi.Resource:
        """Copy the workload to `<shared>/bench/<digest>`."""
        ...

    def submit(
        self, name: str, run: BenchmarkRun, opts: pulumi.ResourceOptions
    ) -> tuple[pulumi.Resource, pulumi.Output[str]]:
        """Submit on create, cancel on delete; the second value is the job's id."""
        ...


def interpreter(shell: Shell) -> str:
    """The training environment's Python, on the cluster."""
    return f"{shell.apps}/envs/{shell.environment}/bin/python"


class Benchmark(pulumi.ComponentResource):
    """The training that follows creation.

    Creating it takes seconds: it submits and does not wait. A change of the workload or of its settings is a
    new run; a change of the connection is not.

    Args:
        head: the machine that holds the queue; when it is destroyed nobody needs to cancel anything.
    """

    def __init__(
        self,
        name: str,
        run: BenchmarkRun,
        shell: Shell,
        head: pulumi.Resource,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("slurm-stacks:index:Benchmark", name, None, opts)
        environment = shell.prepare(f"{name}-environment", pulumi.ResourceOptions(parent=self))
        staged = shell.stage(f"{name}-stage", run, pulumi.ResourceOptions(parent=self, depends_on=[head]))
        _, self.job_id = shell.submit(
            f"{name}-job",
            run,
            pulumi.ResourceOptions(
                parent=self,
                depends_on=[environment, staged, head],
                deleted_with=head,
                delete_before_replace=True,
            ),
        )
        folder = f"{shell.shared}/bench/{run.folder}"
        # Known before the job is, but a result without a job would promise too much.
        self.result = self.job_id.apply(lambda _: f"{folder}/result.json")
        self.register_outputs({"job_id": self.job_id, "result": self.result})
