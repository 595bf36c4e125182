"""The benchmark as a component: it stages the workload by its digest and submits it once."""

from __future__ import annotations

import pulumi

from infra.benchmark import BenchmarkRun, Shell


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
