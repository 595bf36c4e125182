"""Read a cluster that another stack has made, choose a partition of it, and submit one job there."""

from pathlib import Path

import pulumi
from slurm_job import SlurmJob
from slurm_stacks import ClusterOutput, PartitionOutput, read


def gpus_of(partition: PartitionOutput) -> int:
    """GPUs of a node; on the local stack they are only counted (`accelerator.simulated`)."""
    accelerator = partition.accelerator
    return accelerator.count if accelerator and accelerator.gres == "gpu" else 0


def choose(cluster: ClusterOutput, nodes: int, gpus: int) -> PartitionOutput:
    """The partition for a job: with GPUs the one with the fewest that are enough, else the default one.

    Raises:
        pulumi.RunError: none fits; Pulumi shows the message.
    """
    fits = [p for p in cluster.partitions if p.max >= nodes and gpus_of(p) >= gpus]
    if not fits:
        have = ", ".join(f"{p.name} (nodes: {p.max}, GPUs of each: {gpus_of(p)})" for p in cluster.partitions)
        raise pulumi.RunError(
            f"cluster {cluster.name} has no partition with nodes: {nodes}, GPUs of each: {gpus}, "
            f"but: {have}. Ask for less (`pulumi config set nodes …`, `pulumi config set gpus …`) or "
            "for a larger cluster"
        )
    return min(fits, key=lambda p: (gpus_of(p) if gpus else 0, not p.default))


def options(partition: PartitionOutput, nodes: int, gpus: int) -> list[str]:
    """What `sbatch` is told beside the script."""
    wanted = [f"--partition={partition.name}", f"--nodes={nodes}"]
    return [*wanted, f"--gres=gpu:{gpus}"] if gpus else wanted


def main() -> None:
    """Declare the job."""
    config = pulumi.Config()
    nodes, gpus = config.get_int("nodes", 1), config.get_int("gpus", 0)
    cluster = read(pulumi.StackReference(config.require("cluster")))
    partition = cluster.apply(lambda found: choose(found, nodes, gpus))
    job = SlurmJob(
        "hello",
        cluster=cluster,
        script=(Path(__file__).parent / "job.sh").read_text(encoding="utf-8"),
        options=partition.apply(lambda found: options(found, nodes, gpus)),
    )
    pulumi.export("job_id", job.job_id)
    pulumi.export("output", job.output)
    pulumi.export("partition", partition.apply(lambda found: found.name))


main()
