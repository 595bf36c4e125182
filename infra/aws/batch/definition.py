"""The job of a Batch stack: its container image, which the stack may build, and its multi-node definition.

A job cannot name an image, only its definition can. So the push is a resource, and the definition names its
output, the digest.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pulumi
import pulumi_aws as aws
import pulumi_command as command

from infra import bundle
from infra.aws.batch import access
from infra.aws.batch.identity import BatchIdentity
from infra.aws.tags import tags
from infra.clouds import commands
from infra.program.launcher import INTERPRETER
from node.design.model import ClusterDesign

LEFT_OUT = {"__pycache__", ".venv"}
LARGE = ("batch/Dockerfile", "envs/gpu/pyproject.toml", "envs/gpu/uv.lock")
"""The files below `workload/` that determine the large layers of the image: none of them is our own code."""
TAG_DIGITS = 16
STREAM = "job"
"""The prefix of the log streams: each node's is `job/default/<id of its task>`."""
DEVICE = "/dev/infiniband/uverbs{number}"
"""The device files of EFA, which the container needs (Batch user guide, "Elastic Fabric Adapter")."""
MANIFEST = "Ref::manifest"


@dataclass(frozen=True, slots=True)
class ImageRequest:
    """Which image a command has to provide.

    Attributes:
        repository: The repository's address, without a tag.
        tag: Names the image by what it is built from.
        layers: A second tag, which the first image with these large layers gets; empty for none.
        provider_settings: As in `ClusterRef`.
    """

    region: str
    repository: str
    tag: str
    layers: str = ""
    provider_settings: str | None = None

    @classmethod
    def parse(cls, text: str) -> ImageRequest:
        return cls(**json.loads(text))

    def text(self) -> str:
        fields = dataclasses.asdict(self)
        given = {key: value for key, value in fields.items() if value is not None}
        return json.dumps(given, sort_keys=True)


class BatchRepository(pulumi.ComponentResource):
    """A private repository that scans what is pushed, and the image in it.

    Attributes:
        arn: The repository's ARN.
        image: The image's address by digest. A tag could be another image at each pull of each node.
        layers: The address of an image with the same large layers, which does not change with our code. A
            baked image of machines holds this one: otherwise each change of the code would need a new bake.
    """

    def __init__(self, name: str, design: ClusterDesign, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("slurm-stacks:index:BatchRepository", name, None, opts)
        repository = str(access.of(design).repository)
        ecr_repository = aws.ecr.Repository(
            f"{name}-images",
            name=repository,
            # Images can be built again, and a destroy leaves nothing.
            force_delete=True,
            image_tag_mutability="IMMUTABLE",
            image_scanning_configuration={"scan_on_push": True},
            encryption_configurations=[
                {"encryption_type": "KMS", "kms_key": design.aws.kms_key}
                if design.aws.kms_key
                else {"encryption_type": "AES256"}
            ],
            tags=tags(design, repository),
            opts=pulumi.ResourceOptions(parent=self),
        )
        line = commands.line(access.OPERATIONS, "image", design)
        tag, region = content_tag(bundle.ROOT), str(design.region)
        layers = layers_tag(bundle.ROOT) if access.of(design).cached else ""
        pushed = command.local.Command(
            f"{name}-push",
            create=line,
            update=line,
            interpreter=INTERPRETER,
            stdin=ecr_repository.repository_url.apply(
                lambda url: ImageRequest(region, url, tag, layers, design.provider_settings).text()
            ),
            opts=pulumi.ResourceOptions(parent=self),
        )
        self.arn: pulumi.Output[str] = ecr_repository.arn
        self.image: pulumi.Output[str] = pulumi.Output.all(
            ecr_repository.repository_url, pushed.stdout
        ).apply(lambda known: image_address(*known))
        self.layers: pulumi.Output[str] = pulumi.Output.all(
            ecr_repository.repository_url, pushed.stdout
        ).apply(lambda known: f"{known[0]}:{layers}")
        self.register_outputs({"image": self.image})


def image_address(repository: str, printed: str) -> str:
    """Return the image's address from what the command printed.

    A plan pushes nothing and gets a placeholder.
    """
    digest = "<digest>" if printed.startswith("<") else json.loads(printed)["digest"]
    return f"{repository}@{digest}"


def content_tag(root: Path) -> str:
    """Return the tag of the image that this checkout's files give: a digest of names and contents."""
    folder = root / access.CONTEXT
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return _digest(
        folder, [path for path in files if not LEFT_OUT.intersection(path.relative_to(folder).parts)]
    )


def layers_tag(root: Path) -> str:
    """Return the tag of the first image with the large layers that this checkout's files give."""
    folder = root / access.CONTEXT
    return f"layers-{_digest(folder, [folder / name for name in LARGE])}"


def _digest(folder: Path, paths: list[Path]) -> str:
    total = hashlib.sha256()
    for path in paths:
        content = path.read_bytes()
        total.update(f"{path.relative_to(folder)}\0{len(content)}\0".encode())
        total.update(content)
    return total.hexdigest()[:TAG_DIGITS]


class BatchDefinition(pulumi.ComponentResource):
    """The job definition.

    Attributes:
        arn: The ARN of its current revision.

    Args:
        image: The container image, by digest where the stack has built it.
    """

    def __init__(
        self,
        name: str,
        design: ClusterDesign,
        image: pulumi.Input[str],
        identity: BatchIdentity,
        log_group: pulumi.Output[str],
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("slurm-stacks:index:BatchDefinition", name, None, opts)
        batch = access.of(design)
        manifest = {"manifest": ""} if MANIFEST in batch.command else {}
        known = pulumi.Output.all(image, identity.job, log_group)
        definition = aws.batch.JobDefinition(
            f"{name}-job",
            name=batch.job_definition,
            type="multinode",
            node_properties=known.apply(lambda parts: json.dumps(node_properties(design, *parts))),
            # A placeholder in the command without a value would be passed as it is.
            parameters={**batch.parameters, **manifest} or None,
            retry_strategy={"attempts": batch.attempts},
            timeout={"attempt_duration_seconds": batch.timeout} if batch.timeout else None,
            propagate_tags=True,
            tags=tags(design, batch.job_definition),
            opts=pulumi.ResourceOptions(parent=self),
        )
        self.arn: pulumi.Output[str] = definition.arn
        self.register_outputs({"arn": self.arn})


def node_properties(design: ClusterDesign, image: str, role: str, log_group: str) -> dict[str, Any]:
    """Return the node properties of the job definition, as Batch's API takes them.

    The published range was 0:19. It is open here: Batch lets a job have another number of nodes only if the
    range ends nowhere (botocore, batch: NodeOverrides), and `./cluster run` asks for several.
    """
    batch = access.of(design)
    return {
        "numNodes": batch.nodes,
        "mainNode": 0,
        "nodeRangeProperties": [
            {"targetNodes": "0:", "container": _container(design, image, role, log_group)}
        ],
    }


def _container(design: ClusterDesign, image: str, role: str, log_group: str) -> dict[str, Any]:
    batch = access.of(design)
    names: dict[str, str] = {}
    for number, source in enumerate(batch.volumes):
        name = source.strip("/").replace("/", "-").replace(".", "-")
        names[source] = f"{name}-{number}" if name in names.values() else name
    resources = {
        "VCPU": batch.container_vcpus,
        "MEMORY": batch.container_memory_mib,
        "GPU": batch.container_gpus,
    }
    device = {"permissions": ["READ", "WRITE", "MKNOD"]}
    paths = [DEVICE.format(number=number) for number in range(batch.efa)]
    environment = {"SLURM_STACKS_STACK": design.stack, **batch.environment}
    return {
        "image": image,
        "command": list(batch.command),
        "jobRoleArn": role,
        "instanceType": batch.machines[0],
        # The former fields `vcpus` and `memory` are deprecated and know no GPUs.
        "resourceRequirements": [
            {"type": kind, "value": str(count)} for kind, count in resources.items() if count
        ],
        "environment": [{"name": key, "value": value} for key, value in sorted(environment.items())],
        "volumes": [{"name": name, "host": {"sourcePath": source}} for source, name in names.items()],
        "mountPoints": [
            {"sourceVolume": names[source], "containerPath": path, "readOnly": False}
            for source, path in batch.volumes.items()
        ],
        # NCCL and libfabric pin memory; Docker's own limit is 64 KiB.
        "ulimits": [{"name": "memlock", "hardLimit": -1, "softLimit": -1}],
        "linuxParameters": {
            "sharedMemorySize": batch.shared_memory_mib,
            "devices": [{"hostPath": path, "containerPath": path, **device} for path in paths],
        },
        "logConfiguration": {
            "logDriver": "awslogs",
            "options": {
                "awslogs-group": log_group,
                "awslogs-region": str(design.region),
                "awslogs-stream-prefix": STREAM,
            },
        },
        "privileged": False,
    }
