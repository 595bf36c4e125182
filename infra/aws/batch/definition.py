"""The multi-node parallel job definition: a pure function of the design makes its node properties."""

from __future__ import annotations

import json
from typing import Any

import pulumi
import pulumi_aws as aws

from infra.aws.batch import access
from infra.aws.batch.identity import BatchIdentity
from infra.aws.tags import tags
from node.model import ClusterDesign

STREAM = "job"
"""The prefix of the log streams: each node's is `job/default/<id of its task>`."""
DEVICE = "/dev/infiniband/uverbs{number}"
"""The device files of EFA, which the container needs (Batch user guide, "Elastic Fabric Adapter")."""
MANIFEST = "Ref::manifest"


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
        made = aws.batch.JobDefinition(
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
        self.arn: pulumi.Output[str] = made.arn
        self.register_outputs({"arn": self.arn})


def node_properties(design: ClusterDesign, image: str, role: str, log_group: str) -> dict[str, Any]:
    """The node properties of the job definition, as Batch's API takes them.

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
