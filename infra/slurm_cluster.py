"""A cluster and its benchmark as components: of this project's own program, and of anybody's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pulumi

from infra.benchmark import BenchmarkRun, Shell
from infra.config import StackConfig
from infra.config.argument_names import arguments
from infra.design import benchmark_design, design
from infra.instance_types.catalog import catalog
from infra.outputs import publish
from infra.program import stand_ins
from infra.program.stand_ins import StandIns
from infra.providers import create_cluster

OUTPUTS = {"cluster": "cluster", "login_ssh": "loginSsh", "benchmark_result": "benchmarkResult"}
"""Name of an output in a stack file's stack -> its name in the component's package."""


class SlurmCluster(pulumi.ComponentResource):
    """A cluster of one provider, and the training that follows its creation.

    Every resource's name begins with the component's. A program may have several such components.

    Attributes:
        outputs: The outputs of `infra.outputs.publish`: `cluster`, `login_ssh`, `benchmark_result`.

    Args:
        config: A configuration without mistakes.
        values: What stands in the configuration for values of other resources.
        kept: The former outputs of a benchmark that is not changed (`mode.of_benchmark`).
        guarded: Whether a plain `pulumi up` or `pulumi destroy` that would end jobs is refused. `./cluster`
            asks for jobs itself.

    Raises:
        UserError: This version, or this machine, cannot make such a cluster, or a file of the user's is
            missing.
    """

    outputs: dict[str, pulumi.Output[Any]]

    def __init__(
        self,
        name: str,
        config: StackConfig,
        values: StandIns = stand_ins.NONE,
        kept: Mapping[str, Any] | None = None,
        *,
        guarded: bool = False,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        # The state and policies see what the cluster was given, as with any component.
        given = arguments(config)
        super().__init__("slurm-stacks:index:SlurmCluster", name, given, _filling(opts, values))
        child_opts = pulumi.ResourceOptions(parent=self)
        cluster_design = design(config, catalog())
        cluster = create_cluster(name, cluster_design, values, child_opts)
        training = benchmark_design(config, cluster_design)
        benchmark = None
        if training is not None and kept is None:
            shell = cluster.shell
            run = BenchmarkRun.of(cluster_design, training, shell)
            benchmark = Benchmark(f"{name}-benchmark", run, shell, cluster.head, child_opts)
        if guarded and cluster_design.hosts:
            # It goes before the benchmark's job is cancelled, too.
            needed = [cluster.head, *([] if benchmark is None else [benchmark])]
            guard_opts = pulumi.ResourceOptions(parent=self, depends_on=needed, delete_before_replace=True)
            cluster.shell.guard(f"{name}-guard", cluster.inventory["id"], guard_opts)
        self.outputs = publish.of(cluster_design, cluster.inventory, training, benchmark, kept)
        self.register_outputs({OUTPUTS[key]: value for key, value in self.outputs.items()})


def _filling(opts: pulumi.ResourceOptions | None, values: StandIns) -> pulumi.ResourceOptions | None:
    """Return the options of the component with the transformation that fills in values of other resources."""
    if not values.all:
        return opts
    filling = pulumi.ResourceOptions(transformations=[values.fill_resource])
    return pulumi.ResourceOptions.merge(opts, filling)


class Benchmark(pulumi.ComponentResource):
    """The training that follows the creation of the cluster.

    Creating the component takes seconds, because it submits the job and does not wait for its end. A change
    of the workload or of its settings is a new run; a change of the connection is not.

    Args:
        head: The machine that holds the queue. When it is destroyed, the job need not be cancelled.
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
        # The path is known earlier, but without a job there will be no result.
        self.result = self.job_id.apply(lambda _: f"{folder}/result.json")
        self.register_outputs({"job_id": self.job_id, "result": self.result})
