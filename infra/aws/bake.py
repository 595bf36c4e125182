"""Images of the cluster's own, with EC2 Image Builder: an image for each kind of machine that the design has.

A machine goes through the steps of a boot that an image can hold (`infra.node.bootstrap.vm.baking`), and
Image Builder makes an AMI of its disk. The recipe's name has the digest of what goes in: the same one is
built once, and another one makes another image beside it, from which new machines then start.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path

import pulumi
import pulumi_aws as aws
import pulumi_command as command

from infra import bundle
from infra.aws import images, policies, way_in
from infra.aws.fleets import METADATA
from infra.aws.network import AwsNetwork
from infra.aws.parts import Foundry
from infra.aws.tags import CLUSTER, ROLE, STACK, tags
from infra.clouds import operations, recipes, userdata
from infra.clouds.cloud import Place
from infra.clouds.recipes import Recipe
from infra.node.bootstrap.vm.images import ROLE as IMAGE
from infra.node.bootstrap.vm.images import ImageKind
from infra.node.model import ClusterDesign

DISK_GIB = 16
"""What an image needs: the largest holds a second kernel, NVIDIA's driver and EFA. No node's disk may be
smaller than the image that it starts from."""
VERSION = "1.0.0"
"""Of every recipe: what tells two of them apart is their name."""
STEP_SECONDS = 5400
BUILD = "2h"
RETENTION_DAYS = 30
_DOCUMENT = """\
name: slurm-stacks
description: The steps of a boot that an image can hold.
schemaVersion: 1.0
phases:
  - name: build
    steps:
      - name: steps
        action: ExecuteBash
        timeoutSeconds: {seconds}
        onFailure: Abort
        maxAttempts: 1
        inputs:
          commands:
            - |
{script}"""
# Its exit status is the step's: 194 has Image Builder start the machine again, and this step anew.
_SCRIPT = """\
set -eu
umask 022
mkdir -p {code}
cat >{code}/start.py <<'END'
{start}END
exec /usr/bin/python3 {code}/start.py {arguments}
"""


class AwsBake(pulumi.ComponentResource):
    """What builds the images, and the images.

    Attributes:
        made: role -> host or partition -> its image's id. Whoever starts from it has gone before it goes.

    Args:
        foundry: what the machines stand on that become images.
        after: what such a machine needs when it starts.
    """

    def __init__(
        self,
        name: str,
        design: ClusterDesign,
        foundry: Foundry,
        after: list[pulumi.Resource],
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("slurm-stacks:index:AwsBake", name, None, opts)
        self._name = name
        self._design = design
        self._foundry = foundry
        self._after = after
        self._log = aws.cloudwatch.LogGroup(
            f"{name}-log",
            name=policies.image_log_group(design),
            retention_in_days=RETENTION_DAYS,
            tags=tags(design, f"{design.name}-images"),
            opts=pulumi.ResourceOptions(parent=self),
        )
        self._place = self._infrastructure()
        made = {recipe.kind.name: self._image(recipe) for recipe in recipes.recipes(design)}
        self.made = recipes.of_members(made, design)
        self.register_outputs({"images": made})

    def _infrastructure(self) -> aws.imagebuilder.InfrastructureConfiguration:
        """Where the machines are that become images; not public, gone when they are done."""
        design, foundry = self._design, self._foundry
        return aws.imagebuilder.InfrastructureConfiguration(
            f"{self._name}-machines",
            name=f"{design.name}-images",
            instance_profile_name=foundry.profile,
            instance_types=machines(design),
            subnet_id=foundry.subnet,
            security_group_ids=[foundry.group],
            instance_metadata_options={
                "http_tokens": METADATA["http_tokens"],
                "http_put_response_hop_limit": METADATA["http_put_response_hop_limit"],
            },
            terminate_instance_on_failure=True,
            # Image Builder names them itself, and refuses a name here.
            resource_tags={CLUSTER: design.name, STACK: design.stack, ROLE: IMAGE},
            tags=tags(design, f"{design.name}-images"),
            opts=pulumi.ResourceOptions(parent=self),
        )

    def _image(self, recipe: Recipe) -> pulumi.Output[str]:
        """Build an image. Returns its id, once it is there."""
        own, kind = f"{self._name}-{recipe.kind.name}", recipe.kind.name
        name, text = self._named(recipe)
        labels = name.apply(lambda known: self._labels(kind, recipe=known))
        made = self._recipe(recipe, name, text, labels)
        built = aws.imagebuilder.Image(
            own,
            image_recipe_arn=made.arn,
            infrastructure_configuration_arn=self._place.arn,
            distribution_configuration_arn=self._distribution(kind, labels).arn,
            # The machine's own steps have looked; a second machine would only start and stop.
            image_tests_configuration={"image_tests_enabled": False},
            # A list of packages, for which the machine would need further rights.
            enhanced_image_metadata_enabled=False,
            logging_configuration={"log_group_name": self._log.name},
            tags=labels,
            opts=pulumi.ResourceOptions(
                parent=self,
                depends_on=[*self._after, self._ending(kind, name, made)],
                custom_timeouts=pulumi.CustomTimeouts(create=BUILD),
            ),
        )
        image: pulumi.Output[str] = built.output_resources.apply(lambda found: _ami(found, own))
        return image

    def _ending(
        self, kind: str, name: pulumi.Output[str], recipe: aws.imagebuilder.ImageRecipe
    ) -> command.local.Command:
        """Goes after the image that the recipe has made, and takes along what Image Builder leaves of it, or
        what an interrupted `up` has left, of which the engine does not know."""
        design = self._design
        return command.local.Command(
            f"{self._name}-{kind}-end",
            create="true",
            delete=name.apply(
                lambda known: operations.line(
                    way_in.OPERATIONS, "unbake", design, *Place.of(design).arguments(), "--recipe", known
                )
            ),
            # With another recipe it is another command, and the last one's `delete` runs.
            triggers=[name],
            opts=pulumi.ResourceOptions(parent=self, depends_on=[recipe]),
        )

    def _named(self, recipe: Recipe) -> tuple[pulumi.Output[str], pulumi.Output[str]]:
        """The recipe's name, and what runs on the machine."""
        design = self._design
        size = disk_gib(design, recipe.kind)
        text = pulumi.Output.from_input(self._foundry.bucket).apply(
            lambda bucket: document(design, bucket, recipe.kind)
        )

        def named(both: list[str]) -> str:
            parent, steps = both
            # A recipe cannot change: with another key it is another one.
            key = f" {design.kms_key}" if design.kms_key else ""
            return recipe.name(design.name, f"{parent} {size} {bundle.digest(steps.encode())}{key}")

        name: pulumi.Output[str] = pulumi.Output.all(self._foundry.parent, text).apply(named)
        return name, text

    def _labels(self, kind: str, **more: str) -> dict[str, str]:
        return tags(self._design, f"{self._design.name}-{kind}", role=IMAGE, **more)

    def _recipe(
        self,
        recipe: Recipe,
        name: pulumi.Output[str],
        text: pulumi.Output[str],
        labels: pulumi.Output[dict[str, str]],
    ) -> aws.imagebuilder.ImageRecipe:
        design, own = self._design, f"{self._name}-{recipe.kind.name}"
        component = aws.imagebuilder.Component(
            f"{own}-steps",
            name=name,
            version=VERSION,
            platform="Linux",
            data=text,
            tags=labels,
            opts=pulumi.ResourceOptions(parent=self),
        )
        return aws.imagebuilder.ImageRecipe(
            f"{own}-recipe",
            name=name,
            version=VERSION,
            parent_image=self._foundry.parent,
            components=[{"component_arn": component.arn}],
            block_device_mappings=[
                {
                    "device_name": images.root_device(design.image.id),
                    "ebs": {
                        "volume_size": disk_gib(design, recipe.kind),
                        "volume_type": "gp3",
                        "encrypted": "true",
                        **({"kms_key_id": design.kms_key} if design.kms_key else {}),
                        "delete_on_termination": "true",
                    },
                }
            ],
            # The way in by Session Manager needs it.
            systems_manager_agent={"uninstall_after_build": False},
            # From the first moment: what a build leaves that fails later is found by them.
            ami_tags=labels,
            tags=labels,
            opts=pulumi.ResourceOptions(parent=self),
        )

    def _distribution(
        self, kind: str, labels: pulumi.Output[dict[str, str]]
    ) -> aws.imagebuilder.DistributionConfiguration:
        """The image's name and tags: in this region and account, and nowhere else."""
        design = self._design
        return aws.imagebuilder.DistributionConfiguration(
            f"{self._name}-{kind}-tags",
            name=f"{design.name}-{kind}",
            distributions=[
                {
                    "region": str(design.region),
                    "ami_distribution_configuration": {
                        "name": f"{design.name}-{kind}-{{{{ imagebuilder:buildDate }}}}",
                        "description": f"slurm-stacks: {kind} of the cluster {design.name}",
                        "ami_tags": labels,
                    },
                }
            ],
            tags=labels,
            opts=pulumi.ResourceOptions(parent=self),
        )


def foundry(
    design: ClusterDesign, network: AwsNetwork, profile: pulumi.Input[str], bucket: pulumi.Input[str]
) -> Foundry:
    """Where images are built: beside the controller, with its way out."""
    subnet = network.private.get(network.zones.head) or next(iter(network.private.values()))
    return Foundry(profile, network.groups[IMAGE], subnet, bucket, images.image_id(design.image))


def machines(design: ClusterDesign) -> list[str]:
    """What images are built on: the controller's machine, or a node's without devices. An image needs neither
    a GPU nor EFA to be built."""
    plain = [p.machine for p in design.partitions if p.accelerator is None and not p.efa]
    return list(dict.fromkeys([design.controller().machine, *plain]))


def disk_gib(design: ClusterDesign, kind: ImageKind) -> int | None:
    """The image's size; None: that of the image of one's own that it begins with."""
    return None if design.image.id is not None else min(DISK_GIB, kind.disk_gib)


def document(design: ClusterDesign, bucket: str, kind: ImageKind) -> str:
    """What Image Builder runs on the machine, as its component's YAML."""
    place = {"bucket": bucket, "region": str(design.region), "cluster": design.name}
    arguments = {**place, "role": IMAGE, "host": kind.host}
    start = Path(__file__).with_name("start.py").read_text(encoding="utf-8")
    script = _SCRIPT.format(
        code=userdata.CODE,
        start=start,
        arguments=" ".join(f"--{name} {value}" for name, value in arguments.items()),
    )
    return _DOCUMENT.format(seconds=STEP_SECONDS, script=textwrap.indent(script, " " * 14))


def _ami(found: Sequence[aws.imagebuilder.outputs.ImageOutputResource], name: str) -> str:
    made = [ami.image for resource in found for ami in resource.amis or [] if ami.image]
    return made[0] if made else f"<{name}.image>"
