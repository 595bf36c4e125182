"""The image of Batch's machines, built like those of Slurm's nodes, with the ECS agent added at the end.

The boot's own steps place the driver and the Lustre client (`node.bootstrap.vm.baking`). A script adds
Docker, NVIDIA's runtime and the ECS agent (`ecs_image.sh`). Batch's own images have no driver for V100s.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pulumi
import pulumi_aws as aws

from infra.aws import bake, policies
from infra.aws.bake import AwsImages
from infra.aws.batch import access
from infra.aws.batch import policies as batch_policies
from infra.aws.batch.identity import BatchIdentity, role
from infra.aws.identity import physical_name
from infra.aws.logs import AwsLogs
from infra.aws.network import AwsNetwork
from infra.aws.policies import Document
from infra.aws.storage import AwsBucket
from infra.aws.tags import tags
from infra.clouds.publishing import Bundle
from infra.program import stand_ins
from infra.program.stand_ins import StandIns
from node.bootstrap.vm.images import ROLE
from node.design.model import ClusterDesign

SCRIPT = Path(__file__).with_name("ecs_image.sh")
STEP = "ecs"


class BatchBake(pulumi.ComponentResource):
    """The role of the machine that becomes the image, what it fetches, and the image.

    Attributes:
        image: The image's id.

    Args:
        cached: The container image that the image holds in Docker's cache; empty for none.
        values: What stands in the design for values of other resources.
    """

    def __init__(
        self,
        name: str,
        design: ClusterDesign,
        network: AwsNetwork,
        identity: BatchIdentity,
        bucket: AwsBucket,
        logs: AwsLogs,
        cached: pulumi.Input[str] = "",
        values: StandIns = stand_ins.NONE,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("slurm-stacks:index:BatchBake", name, None, opts)
        child_opts = pulumi.ResourceOptions(parent=self)
        image_role = role(name, design, ROLE, "ec2", self)
        policy = aws.iam.RolePolicy(
            f"{name}-image-policy",
            name="slurm-stacks",
            role=image_role.id,
            policy=pulumi.Output.all(identity.scope, bucket.arn, logs.arn).apply(
                lambda known: json.dumps(_may(design, *known))
            ),
            opts=child_opts,
        )
        profile = aws.iam.InstanceProfile(
            f"{name}-image-profile",
            name=physical_name(design, ROLE),
            role=image_role.name,
            path=design.aws.role_path,
            tags=tags(design, f"{design.name}-{ROLE}"),
            opts=child_opts,
        )
        published = Bundle(f"{name}-bundle", design, bucket, values, child_opts)
        build = bake.image_build_for(design, network, profile.name, bucket.bucket)
        needed = [*published.images, profile, policy, *network.routes, *network.rules[ROLE]]
        steps = pulumi.Output.from_input(cached).apply(lambda image: script(design, image))
        images = AwsImages(f"{name}-images", design, build, needed, {STEP: steps}, child_opts)
        (self.image,) = images.images["compute"].values()
        self.register_outputs({"image": self.image})


def script(design: ClusterDesign, cached: str = "") -> str:
    """Return the script with its arguments, as commands for sh, with which Image Builder runs them."""
    gpu = "gpu" if design.partitions[0].accelerator is not None else "plain"
    text = SCRIPT.read_text(encoding="utf-8")
    line = shlex.join(
        ["bash", "/var/tmp/ecs_image.sh", gpu, str(design.region), *([cached] if cached else [])]
    )
    return f"cat >/var/tmp/ecs_image.sh <<'END'\n{text}END\n{line}\nrm -f /var/tmp/ecs_image.sh\n"


def _may(design: ClusterDesign, scope: batch_policies.Scope, bucket: str, log_group: str) -> Document:
    """Return the permissions of a machine that becomes an image.

    With `cached` it may pull the container image too.
    """
    image_scope = policies.Scope(
        scope.partition, scope.region, scope.account, bucket, "", log_group, "", (), ()
    )
    policy = policies.image(image_scope, design)
    if access.of(design).cached:
        policy["Statement"] += batch_policies.pull(scope, design)
    return policy
