"""Making a stack's outputs: `of` in a Pulumi program, `build` from plain values.

Nothing in them is secret: addresses, public host keys, sizes, prices.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from pydantic import BaseModel, ConfigDict, Field

from infra.cost import Cost, cost
from infra.node.model import BenchmarkDesign, ClusterDesign, Mount, Partition
from infra.outputs import contract

if TYPE_CHECKING:
    # Only for types: a plain value needs no Pulumi.
    import pulumi

    from infra.provider import Inventory


class Facts(BaseModel):
    """Base of what is given to `build`: an unknown key is a mistake of ours."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Deployed(Facts):
    """What is known only once the cluster is there; plain values of `infra.provider.Inventory`."""

    id: str
    login_address: str | None = None
    controller_address: str | None = None
    login_ssh: str | None = None
    scheduler_version: str
    host_keys: list[str] = Field(default_factory=list)
    shared: str | None = None


class Job(Facts):
    """A submitted benchmark."""

    job_id: str
    workload_digest: str
    result_path: str


class SubmittedBenchmark(Protocol):
    """What this module needs of `infra.benchmark.Benchmark`."""

    @property
    def job_id(self) -> pulumi.Output[str]: ...
    @property
    def result(self) -> pulumi.Output[str]: ...


def build(
    design: ClusterDesign,
    deployed: Deployed,
    benchmark: BenchmarkDesign | None = None,
    job: Job | None = None,
) -> dict[str, Any]:
    """The `cluster` output from plain values.

    Args:
        job: the benchmark's job; with `benchmark` or not at all.
    """
    spent: Cost = cost(design)
    run = None
    if benchmark is not None and job is not None:
        run = contract.BenchmarkOutput(
            job_id=job.job_id,
            workload_digest=job.workload_digest,
            script=benchmark.script,
            partition=benchmark.partition,
            nodes=benchmark.nodes,
            result_path=job.result_path,
        )
    login = controller = None
    if deployed.login_address is not None and deployed.login_ssh is not None:
        login = contract.Login(
            address=deployed.login_address, ssh=deployed.login_ssh, host_keys=deployed.host_keys
        )
    if deployed.controller_address is not None:
        controller = contract.Endpoint(address=deployed.controller_address)
    output = contract.ClusterOutput(
        apiVersion=contract.API_VERSION,
        id=deployed.id,
        name=design.name,
        stack=design.stack,
        provider=design.provider,
        region=design.region,
        zone=design.zone,
        project=design.project,
        scheduler=contract.Scheduler(name=design.scheduler, version=deployed.scheduler_version),
        login=login,
        controller=controller,
        partitions=[_partition(p) for p in design.partitions],
        mounts=[_mount(m) for m in design.mounts],
        shared=deployed.shared,
        benchmark=run,
        cost=contract.CostOutput(
            idle_usd_per_hour=spent["idle_usd_per_hour"],
            max_usd_per_hour=spent["max_usd_per_hour"],
            unknown=spent["unknown"],
            prices_of=spent["prices_of"],
        ),
    )
    return output.model_dump(by_alias=True, mode="json")


def of(
    design: ClusterDesign,
    inventory: Inventory,
    benchmark: BenchmarkDesign | None,
    submitted: SubmittedBenchmark | None,
    kept: Mapping[str, Any] | None = None,
) -> dict[str, pulumi.Output[Any]]:
    """A stack's outputs: `cluster`, `login_ssh`, and `benchmark_result` where there is a benchmark.

    Args:
        kept: what they said of a benchmark that is left as it is (`mode.of_benchmark`).
    """
    import pulumi

    from infra import bundle

    outputs: dict[str, pulumi.Output[Any]] = {"login_ssh": inventory["login_ssh"]}
    keys = list(Deployed.model_fields)
    known = {key: inventory[key] for key in keys}  # type: ignore[literal-required]
    if submitted is not None:
        known |= {"job_id": submitted.job_id, "result_path": submitted.result}
        outputs["benchmark_result"] = submitted.result
    if kept and "benchmark_result" in kept:
        outputs["benchmark_result"] = pulumi.Output.from_input(kept["benchmark_result"])
    digest = bundle.tree_digest(bundle.ROOT / "workload")

    def made(values: dict[str, Any]) -> dict[str, Any]:
        job = None
        if submitted is not None:
            job = Job(
                job_id=values.pop("job_id"),
                result_path=values.pop("result_path"),
                workload_digest=digest,
            )
        output = build(design, Deployed(**values), benchmark, job)
        return {**output, "benchmark": kept["benchmark"]} if kept and "benchmark" in kept else output

    outputs["cluster"] = pulumi.Output.all(**known).apply(made)
    return outputs


def _partition(p: Partition) -> contract.PartitionOutput:
    a = p.accelerator
    return contract.PartitionOutput(
        name=p.name,
        machine=p.machine,
        cpus=p.cpus,
        memory_mib=p.memory_mib,
        accelerator=contract.AcceleratorOutput(type=a.type, count=a.count, gres=a.gres, simulated=a.simulated)
        if a
        else None,
        min=p.min,
        max=p.max,
        spot=p.spot,
        time_limit=p.time_limit,
        default=p.default,
        price_usd_per_hour=p.price_hour,
    )


def _mount(m: Mount) -> contract.MountOutput:
    return contract.MountOutput(path=m.path, kind=m.kind, size_gib=m.size_gib, shared=m.kind != "nvme")
