"""The `cluster` output of a slurm-stacks stack: its fields, and how another program reads it.

This file needs only pydantic 2 and nothing else of slurm-stacks. A consumer in another repository copies it
(docs/consuming.md); within slurm-stacks it is `infra.outputs`.

    cluster = load(json.load(file))                                  # from JSON
    cluster = read(pulumi.StackReference("organization/slurm-stacks/local"))   # in a Pulumi program

The promise of v1: fields are only added. An existing field keeps its name, its type and its meaning, and a
reader ignores fields that it does not know.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

if TYPE_CHECKING:
    # Only for types: a reader of JSON needs no Pulumi.
    import pulumi

API_VERSION: Literal["slurm-stacks/v1"] = "slurm-stacks/v1"
LONGEST_VALUE = 60


class OutputError(ValueError):
    """The value is not a `cluster` output of this version. The text is for the user."""


class Part(BaseModel):
    """Base of every part. Unknown fields are ignored, because a newer version may have added them.

    A field that may be null may be missing, because Pulumi's SDK drops nulls between stacks.
    """

    model_config = ConfigDict(frozen=True)


def _whole(value: Any) -> Any:
    """Return a whole number as an int: in Pulumi all numbers are floats, such as 2.0."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = Annotated[int, BeforeValidator(_whole)]


class Scheduler(Part):
    """The scheduler."""

    name: Literal["slurm", "batch"] = Field(description="slurm or batch.")
    version: str = Field(description="Its version, e.g. slurm 23.11.4.")


class Endpoint(Part):
    """A machine that other programs may connect to."""

    address: str = Field(description="Host name or address.")


class LoginAccess(Part):
    """How a program connects to the login machine itself, as `./cluster --outputs` does."""

    mode: str = Field(
        description="ssh: to its address; ssm: by Session Manager; iap: by Identity-Aware Proxy; local: on "
        "this machine."
    )
    user: str | None = Field(
        default=None, description="The user there; null: everybody has a name of their own (OS Login)."
    )
    key: str | None = Field(
        default=None, description="The EC2 key pair; null: each connection by Session Manager brings a key."
    )
    machine: str = Field(
        description="The machine, as the mode takes it: an instance's id (AWS) or name (Google Cloud), or "
        "the id of the local cluster, with which its folder is named."
    )


class Login(Endpoint):
    """Where users log in."""

    ssh: str = Field(
        description="The command that opens a shell there; with another behind it, it runs that, as ssh does."
    )
    host_keys: list[str] = Field(description="Public SSH host keys, to pin; empty on the local stack.")
    access: LoginAccess | None = Field(
        default=None, description="How to connect there; missing where an older version made the cluster."
    )


class AcceleratorOutput(Part):
    """The accelerators of a node."""

    type: str = Field(description="v100, t4, a10g, a100, h100, trainium.")
    count: Whole = Field(ge=1, description="Devices a node; of neuroncore: cores a node.")
    gres: str = Field(description="Slurm's generic resource: gpu, neuron or neuroncore.")
    simulated: bool = Field(description="True on the local stack: Slurm counts devices that do not exist.")


class PoolOutput(Part):
    """Equal nodes of a partition that has several kinds of them."""

    name: str = Field(description="Its name in the partition; its nodes are <partition>-<name>-0, and so on.")
    machine: str = Field(description="Machine type.")
    cpus: Whole = Field(ge=1, description="CPUs a node.")
    memory_mib: Whole = Field(ge=1, description="MiB a node that jobs may use.")
    min: Whole = Field(ge=0, description="Static nodes: always up.")
    max: Whole = Field(ge=0, description="Static and dynamic nodes together.")
    spot: bool = Field(description="Whether the cloud may take nodes back.")
    price_usd_per_hour: float | None = Field(
        default=None, description="USD a node and hour; null: not known."
    )


class PartitionOutput(Part):
    """A partition, or AWS Batch's queue."""

    name: str = Field(description="Its name, as job scripts say it.")
    machine: str = Field(description="Machine type.")
    cpus: Whole = Field(ge=1, description="CPUs a node.")
    memory_mib: Whole = Field(ge=1, description="MiB a node that jobs may use.")
    accelerator: AcceleratorOutput | None = Field(
        default=None, description="Accelerators of a node; null: none."
    )
    min: Whole = Field(ge=0, description="Static nodes: always up.")
    max: Whole = Field(
        ge=0, description="Static and dynamic nodes together; with pools the most that one job can get."
    )
    spot: bool = Field(description="Whether the cloud may take nodes back.")
    time_limit: str = Field(description="[days-]hours:minutes:seconds or INFINITE.")
    default: bool = Field(description="Whether jobs that name no partition go here.")
    price_usd_per_hour: float | None = Field(
        default=None, description="USD a node and hour; null: not known."
    )
    nodes_of: str | None = Field(
        default=None, description="The partition whose nodes it has, and counts again; null: its own nodes."
    )
    pools: list[PoolOutput] = Field(
        default_factory=list,
        description="Its kinds of nodes, in the order in which jobs get them; empty: all are alike. "
        "Else cpus and memory_mib are the least of a node, and machine, price and spot the first pool's.",
    )


class MountOutput(Part):
    """A directory of the cluster."""

    path: str = Field(description="Where it is mounted.")
    kind: str = Field(
        description="nfs, efs, filestore, fsx_lustre, nvme, s3, gcs, or bind on the local stack."
    )
    size_gib: Whole | None = Field(default=None, description="GiB; null where it has no fixed size.")
    shared: bool = Field(description="False: each node has its own.")


class BenchmarkOutput(Part):
    """The training that was submitted after creation."""

    job_id: str = Field(description="The scheduler's id of the job.")
    workload_digest: str = Field(description="SHA-256 of the workload's files.")
    script: str = Field(description="Which training.")
    partition: str = Field(description="Where it runs.")
    nodes: Whole = Field(ge=1, description="On how many nodes.")
    result_path: str = Field(description="Where result.json will be, on the login machine.")


class CostOutput(Part):
    """USD an hour, from a dated snapshot of prices."""

    idle_usd_per_hour: float = Field(ge=0, description="While no job runs.")
    max_usd_per_hour: float = Field(ge=0, description="With every node up.")
    unknown: list[str] = Field(description="What both figures leave out: its price is not known.")
    prices_of: str = Field(description="Date of the prices.")
    bill: str | None = Field(
        default=None,
        description="The command that prints on the login machine, as JSON, what each account (without "
        "accounting each partition) has cost so far; null with AWS Batch.",
    )


class ClusterOutput(Part):
    """The `cluster` output of a stack."""

    api_version: Literal["slurm-stacks/v1"] = Field(
        alias="apiVersion", description="Version of this contract."
    )
    id: str = Field(
        description="Changes when the cluster is destroyed and made again: then the earlier one's jobs and "
        "files are gone."
    )
    name: str = Field(description="The cluster's name.")
    stack: str = Field(description="The stack's name.")
    provider: Literal["aws", "gcp", "local"] = Field(description="Where it runs.")
    region: str | None = Field(default=None, description="The cloud's region.")
    zone: str | None = Field(default=None, description="The zone (Google Cloud).")
    project: str | None = Field(default=None, description="The project (Google Cloud).")
    scheduler: Scheduler = Field(description="The scheduler.")
    login: Login | None = Field(default=None, description="Where users log in; null with AWS Batch.")
    controller: Endpoint | None = Field(default=None, description="The controller; null with AWS Batch.")
    partitions: list[PartitionOutput] = Field(description="Partitions.")
    mounts: list[MountOutput] = Field(description="Directories.")
    shared: str | None = Field(
        default=None,
        description="A folder that every machine sees and that goes with the cluster; null with AWS Batch.",
    )
    benchmark: BenchmarkOutput | None = Field(
        default=None, description="The benchmark; null: none was asked for."
    )
    cost: CostOutput = Field(description="What it costs.")


def load(value: object, *, source: str = "output `cluster`") -> ClusterOutput:
    """Read a `cluster` output.

    Args:
        value: The output as Pulumi gives it: from `StackReference.get_output`,
            `get_output_details(…).value`, or the JSON of `pulumi stack output cluster --json` and
            `./cluster outputs`.
        source: The name of the value in messages.

    Raises:
        OutputError: There is no output, it is of another version, or it does not have what v1 promises. The
            message has every mistake with its path.
    """
    if value is None:
        raise OutputError(
            f"{source}: there is no such output: that stack is not up, or is not one of slurm-stacks. Bring "
            "it up (`./cluster up --stack …` or `pulumi up`), or correct the stack's name"
        )
    if not isinstance(value, Mapping):
        raise OutputError(
            f"{source}: {_shown(value)} is no object. Give the output itself: in a Pulumi program "
            "`read(reference)`, of JSON text `json.loads(text)`"
        )
    version = value.get("apiVersion")
    if version is None and "cluster" in value:
        raise OutputError(f"{source}: these are all outputs of a stack. Give the one called `cluster`")
    if version != API_VERSION:
        raise OutputError(_other_version(source, version))
    try:
        # strict: "2" is not 2, as in the JSON Schema.
        return ClusterOutput.model_validate(dict(value), strict=True)
    except ValidationError as error:
        raise OutputError(_mistakes(source, error)) from None


def read(reference: pulumi.StackReference) -> pulumi.Output[ClusterOutput]:
    """Return the cluster of another stack, in a Pulumi program.

    In a preview it is unknown if that stack's outputs are unknown. If `load` refuses the output, the program
    ends with the message and without a traceback.
    """
    import pulumi

    def loaded(value: object) -> ClusterOutput:
        try:
            return load(value, source=f"stack {reference.pulumi_resource_name}, output `cluster`")
        except OutputError as error:
            raise pulumi.RunError(str(error)) from None

    return reference.get_output("cluster").apply(loaded)


def schema() -> dict[str, Any]:
    """Return the JSON Schema of the `cluster` output for readers. It allows fields that a newer v1 adds."""
    model_schema = ClusterOutput.model_json_schema(by_alias=True, mode="serialization")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema"} | model_schema


def _other_version(source: str, version: object) -> str:
    if isinstance(version, str) and version.startswith("slurm-stacks/v"):
        return (
            f"{source}: its apiVersion is {version}, and this reader knows {API_VERSION}. Update the reader: "
            "take infra/outputs/contract.py from the slurm-stacks that made the cluster"
        )
    given = "nothing" if version is None else _shown(version)
    return (
        f"{source}: its apiVersion is {given}, and {API_VERSION} is expected: this is no cluster of "
        "slurm-stacks. Correct the stack's or the output's name"
    )


def _mistakes(source: str, error: ValidationError) -> str:
    lines = [f"{source} is not as {API_VERSION} promises:"]
    for mistake in error.errors(include_url=False):
        path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in mistake["loc"])
        given = "missing" if mistake["type"] == "missing" else _shown(mistake["input"])
        lines.append(f"  {path.removeprefix('.')}: {given} ({mistake['msg']})")
    lines.append(
        "Something changed it on its way, or another program made it. Compare it with what "
        "`pulumi stack output cluster --json` prints, and bring that stack up again"
    )
    return "\n".join(lines)


def _shown(value: object) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        text = f"a value of type {type(value).__name__}"
    return text if len(text) <= LONGEST_VALUE else text[: LONGEST_VALUE - 1] + "…"
