"""The Pulumi program: stack file -> design -> cluster -> benchmark -> outputs."""

import pulumi

from infra import config
from infra.benchmark import BenchmarkRun
from infra.benchmark_component import Benchmark
from infra.config import placeholders
from infra.config.load import engine_values
from infra.design import benchmark_design, design
from infra.errors import UserError
from infra.instance_types.catalog import catalog
from infra.outputs import publish
from infra.program import mode
from infra.providers import create_cluster


def main() -> None:
    """Declare the stack's resources."""
    stack = config.parse(engine_values(), pulumi.get_stack())
    if mode.current() != "plan":
        placeholders.refuse(f"Pulumi.{stack.stack}.yaml", stack.placeholders)
    cluster_design = design(stack, catalog())
    cluster = create_cluster(cluster_design)
    training = benchmark_design(stack, cluster_design)
    benchmark, kept = None, mode.kept_benchmark()
    if training is not None and kept is None:
        shell = cluster.shell
        benchmark = Benchmark(
            f"{cluster_design.name}-benchmark",
            BenchmarkRun.of(cluster_design, training, shell),
            shell,
            cluster.head,
        )
    for name, value in publish.of(cluster_design, cluster.inventory, training, benchmark, kept).items():
        pulumi.export(name, value)


try:
    main()
except UserError as error:
    if mode.current() != "pulumi":
        raise
    # The engine prints this one as it is; any other with a traceback.
    raise pulumi.RunError(str(error)) from error
