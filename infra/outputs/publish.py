"""A stack's outputs: `of` in a Pulumi program, `build` from plain values.

They contain no secrets: addresses, public host keys, sizes, prices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from pydantic import BaseModel, ConfigDict, Field

from infra.cost import Cost, cost
from infra.outputs import contract
from node.design.model import BenchmarkDesign, ClusterDesign, Partition, SharedPartition
from node.design.storage import Mount

if TYPE_CHECKING:
    # Only for types: a plain value needs no Pulumi.
    import pulumi

    from infra.inventory import Inventory


class Facts(BaseModel):
    """Base of what `build` is given. An unknown key is an error in this program."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Deployed(Facts):
    """What is known only when the cluster exists: the plain values of `infra.inventory.Inventory`."""

    id: str
    login_address: str | None = None
    controller_address: str | None = None
    login_machine: str | None = None
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
    """The part of `infra.slurm_cluster.Benchmark` that this module needs."""

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
    """Return the `cluster` output from plain values.

    Args:
        job: The benchmark's job; it is given only together with `benchmark`.
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
            address=deployed.login_address,
            ssh=deployed.login_ssh,
            host_keys=deployed.host_keys,
            access=_access(design, deployed.login_machine),
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
        partitions=[
            *(_partition(name, pools, design.most_nodes(name)) for name, pools in design.pools().items()),
            *(
                _shared(p, _partition(p.name, design.pools_of(p.name), design.most_nodes(p.name)))
                for p in design.shared_partitions
            ),
        ],
        mounts=[_mount(m) for m in design.mounts],
        shared=deployed.shared,
        benchmark=run,
        cost=contract.CostOutput(
            idle_usd_per_hour=spent["idle_usd_per_hour"],
            max_usd_per_hour=spent["max_usd_per_hour"],
            unknown=spent["unknown"],
            prices_of=spent["prices_of"],
            bill=_bill(design),
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
    """Return a stack's outputs: `cluster`, `login_ssh`, and `benchmark_result` if there is a benchmark.

    Args:
        kept: The former outputs of a benchmark that is not changed (`mode.of_benchmark`).
    """
    import pulumi

    from infra.benchmark import Workload

    # With AWS Batch there is no machine to log in to.
    outputs: dict[str, pulumi.Output[Any]] = {"login_ssh": inventory["login_ssh"]} if design.hosts else {}
    keys = list(Deployed.model_fields)
    known = {key: inventory[key] for key in keys}  # type: ignore[literal-required]
    if submitted is not None:
        known |= {"job_id": submitted.job_id, "result_path": submitted.result}
        outputs["benchmark_result"] = submitted.result
    if kept and "benchmark_result" in kept:
        outputs["benchmark_result"] = pulumi.Output.from_input(kept["benchmark_result"])
    digest = Workload.of(program=benchmark.staged if benchmark else ()).digest

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


def _bill(design: ClusterDesign) -> str | None:
    """Return the command that says what was spent: outputs are made at `up`, and a bill grows after it."""
    if not design.hosts:
        return None
    return f"slurm-stacks cost --by {'account' if design.slurm.accounting else 'partition'}"


def _access(design: ClusterDesign, machine: str | None) -> contract.LoginAccess | None:
    if machine is None:
        return None
    access = design.access
    return contract.LoginAccess(mode=access.mode, user=access.user, key=access.key, machine=machine)


def _partition(name: str, pools: Sequence[Partition], most: int) -> contract.PartitionOutput:
    """Return one of Slurm's partitions. What it says of a node is true of each of its pools' nodes.

    Args:
        most: How many nodes one job can have.
    """
    p = pools[0]
    a = p.accelerator
    return contract.PartitionOutput(
        name=name,
        machine=p.instance_type,
        cpus=min(pool.cpus for pool in pools),
        memory_mib=min(pool.memory_mib for pool in pools),
        accelerator=contract.AcceleratorOutput(
            type=a.type, count=a.units, gres=a.resource, simulated=a.simulated
        )
        if a
        else None,
        min=p.min,
        max=most,
        spot=p.spot,
        time_limit=p.time_limit,
        default=p.default,
        price_usd_per_hour=p.price_hour,
        pools=[] if p.pool is None else [_pool(pool) for pool in pools],
    )


def _pool(p: Partition) -> contract.PoolOutput:
    return contract.PoolOutput(
        name=p.pool or "",
        machine=p.instance_type,
        cpus=p.cpus,
        memory_mib=p.memory_mib,
        min=p.min,
        max=p.max,
        spot=p.spot,
        price_usd_per_hour=p.price_hour,
    )


def _shared(p: SharedPartition, nodes: contract.PartitionOutput) -> contract.PartitionOutput:
    """Return a partition with the nodes of another one.

    Args:
        nodes: What is said of these nodes.
    """
    terms = {"time_limit": p.time_limit, "default": p.default, "nodes_of": p.nodes_of}
    return nodes.model_copy(update=terms)


def _mount(m: Mount) -> contract.MountOutput:
    return contract.MountOutput(path=m.path, kind=m.kind, size_gib=m.size_gib, shared=m.kind != "nvme")
