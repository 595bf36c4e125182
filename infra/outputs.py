"""What other stacks consume: one versioned object, with a JSON Schema (`infra/schema/outputs.json`).

`of` makes a Pulumi program's outputs, `build` the object from plain values, `validate` checks one. Nothing in
it is secret: addresses, public host keys, sizes, prices. `python -m infra.outputs` writes the schema.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field

from infra.cost import Cost, cost
from infra.node.model import BenchmarkDesign, ClusterDesign, Mount, Partition

if TYPE_CHECKING:
    # Only for types: who reads outputs must not wait for the import of Pulumi.
    import pulumi

    from infra.provider import Inventory

API_VERSION: Literal["slurm-stacks/v1"] = "slurm-stacks/v1"
SCHEMA = Path(__file__).with_name("schema") / "outputs.json"


class Part(BaseModel):
    """Base of every part: what is not described is not published."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class Scheduler(Part):
    """The scheduler."""

    name: Literal["slurm", "batch"] = Field(description="slurm or batch.")
    version: str = Field(description="Its version, e.g. 23.11.4.")


class Endpoint(Part):
    """A machine that others may talk to."""

    address: str = Field(description="Host name or address.")


class Login(Endpoint):
    """Where users log in."""

    ssh: str = Field(description="The command that opens a shell there.")
    host_keys: list[str] = Field(description="Public SSH host keys, to pin; empty where it is this machine.")


class AcceleratorOutput(Part):
    """What a node carries beside its CPUs."""

    type: str = Field(description="v100, t4, a10g, a100, h100, trainium.")
    count: int = Field(ge=1, description="Devices a node.")
    gres: str = Field(description="Slurm's generic resource: gpu or neuron.")
    simulated: bool = Field(description="True on the local stack: counted, not there.")


class PartitionOutput(Part):
    """A partition, or AWS Batch's queue."""

    name: str = Field(description="Its name, as job scripts say it.")
    machine: str = Field(description="Machine type.")
    cpus: int = Field(ge=1, description="CPUs a node.")
    memory_mib: int = Field(ge=1, description="MiB a node that jobs may use.")
    accelerator: AcceleratorOutput | None = Field(description="Accelerators of a node.")
    min: int = Field(ge=0, description="Static nodes.")
    max: int = Field(ge=0, description="Static and dynamic nodes together.")
    spot: bool = Field(description="Whether the cloud may take nodes back.")
    time_limit: str = Field(description="[days-]hours:minutes:seconds or INFINITE.")
    default: bool = Field(description="Whether jobs go here that name no partition.")
    price_usd_per_hour: float | None = Field(description="USD a node and hour; null: not known.")


class MountOutput(Part):
    """A directory of the cluster."""

    path: str = Field(description="Where it is mounted.")
    kind: str = Field(description="nfs, efs, filestore, fsx_lustre or nvme.")
    size_gib: int | None = Field(description="GiB; null where it has no fixed size.")
    shared: bool = Field(description="False: each node has its own.")


class BenchmarkOutput(Part):
    """The training that was submitted after creation."""

    job_id: str = Field(description="The scheduler's id of the job.")
    workload_digest: str = Field(description="SHA-256 of the workload's files.")
    script: str = Field(description="Which training.")
    partition: str = Field(description="Where it runs.")
    nodes: int = Field(ge=1, description="On how many nodes.")
    result_path: str = Field(description="Where result.json will be, on the login machine.")


class CostOutput(Part):
    """USD an hour, from a dated snapshot of prices."""

    idle_usd_per_hour: float = Field(ge=0, description="While no job runs.")
    max_usd_per_hour: float = Field(ge=0, description="With every node up.")
    unknown: list[str] = Field(description="What both figures leave out: its price is not known.")
    prices_of: str = Field(description="Date of the prices.")


class ClusterOutput(Part):
    """The `cluster` output of a stack."""

    api_version: Literal["slurm-stacks/v1"] = Field(
        alias="apiVersion", description="Version of this contract."
    )
    name: str = Field(description="The cluster's name.")
    stack: str = Field(description="The stack's name.")
    provider: Literal["aws", "gcp", "local"] = Field(description="Where it runs.")
    region: str | None = Field(description="The cloud's region.")
    zone: str | None = Field(description="The zone (Google Cloud).")
    scheduler: Scheduler = Field(description="The scheduler.")
    login: Login | None = Field(description="Where users log in; null with AWS Batch.")
    controller: Endpoint | None = Field(description="The controller; null with AWS Batch.")
    partitions: list[PartitionOutput] = Field(description="Partitions.")
    mounts: list[MountOutput] = Field(description="Directories.")
    benchmark: BenchmarkOutput | None = Field(description="The benchmark; null: none was asked for.")
    cost: CostOutput = Field(description="What it costs.")


class Deployed(Part):
    """What is known only once the cluster is there; plain values of `infra.provider.Inventory`."""

    login_address: str | None = None
    controller_address: str | None = None
    login_ssh: str | None = None
    scheduler_version: str
    host_keys: list[str] = Field(default_factory=list)


class Job(Part):
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
        run = BenchmarkOutput(
            job_id=job.job_id,
            workload_digest=job.workload_digest,
            script=benchmark.script,
            partition=benchmark.partition,
            nodes=benchmark.nodes,
            result_path=job.result_path,
        )
    login = controller = None
    if deployed.login_address is not None and deployed.login_ssh is not None:
        login = Login(address=deployed.login_address, ssh=deployed.login_ssh, host_keys=deployed.host_keys)
    if deployed.controller_address is not None:
        controller = Endpoint(address=deployed.controller_address)
    output = ClusterOutput(
        api_version=API_VERSION,
        name=design.name,
        stack=design.stack,
        provider=design.provider,
        region=design.region,
        zone=design.zone,
        scheduler=Scheduler(name=design.scheduler, version=deployed.scheduler_version),
        login=login,
        controller=controller,
        partitions=[_partition(p) for p in design.partitions],
        mounts=[_mount(m) for m in design.mounts],
        benchmark=run,
        cost=CostOutput(
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
) -> dict[str, pulumi.Output[Any]]:
    """A stack's outputs: `cluster`, `login_ssh`, and `benchmark_result` where there is a benchmark."""
    import pulumi

    from infra import bundle

    outputs: dict[str, pulumi.Output[Any]] = {"login_ssh": inventory["login_ssh"]}
    keys = list(Deployed.model_fields)
    known = {key: inventory[key] for key in keys}  # type: ignore[literal-required]
    if submitted is not None:
        known |= {"job_id": submitted.job_id, "result_path": submitted.result}
        outputs["benchmark_result"] = submitted.result
    digest = bundle.tree_digest(bundle.ROOT / "workload")

    def made(values: dict[str, Any]) -> dict[str, Any]:
        job = None
        if submitted is not None:
            job = Job(
                job_id=values.pop("job_id"),
                result_path=values.pop("result_path"),
                workload_digest=digest,
            )
        return build(design, Deployed(**values), benchmark, job)

    outputs["cluster"] = pulumi.Output.all(**known).apply(made)
    return outputs


def validate(value: Mapping[str, Any]) -> ClusterOutput:
    """Read a `cluster` output of this version.

    Raises:
        ValueError: it is none; pydantic's message has the paths.
    """
    return ClusterOutput.model_validate(dict(value), by_name=False, by_alias=True)


def schema() -> dict[str, Any]:
    """The JSON Schema of the `cluster` output."""
    made = ClusterOutput.model_json_schema(by_alias=True, mode="serialization")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema"} | made


def text() -> str:
    """The schema as it is checked in."""
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"


def _partition(p: Partition) -> PartitionOutput:
    a = p.accelerator
    return PartitionOutput(
        name=p.name,
        machine=p.machine,
        cpus=p.cpus,
        memory_mib=p.memory_mib,
        accelerator=AcceleratorOutput(type=a.type, count=a.count, gres=a.gres, simulated=a.simulated)
        if a
        else None,
        min=p.min,
        max=p.max,
        spot=p.spot,
        time_limit=p.time_limit,
        default=p.default,
        price_usd_per_hour=p.price_hour,
    )


def _mount(m: Mount) -> MountOutput:
    return MountOutput(path=m.path, kind=m.kind, size_gib=m.size_gib, shared=m.kind != "nvme")


if __name__ == "__main__":
    SCHEMA.write_text(text(), encoding="utf-8")
