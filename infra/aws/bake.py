"""The cluster's own images, built with EC2 Image Builder: one image for each kind of machine of the design.

A machine goes through the boot steps whose results an image can hold (`node.bootstrap.vm.baking`), and Image
Builder makes an AMI of its disk. The recipe's name has the digest of the image's content. The same content is
built once. Other content makes another image beside the first, and new machines then start from it.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

import pulumi
import pulumi_aws as aws
import pulumi_command as command

from infra import bundle
from infra.aws import access, policies
from infra.aws.launch_templates import BOOT_SCRIPT, METADATA, ImageBuild, image_id, root_device
from infra.aws.network import AwsNetwork
from infra.aws.tags import CLUSTER, ROLE, STACK, identifying_tags, tags
from infra.clouds import commands, recipes, userdata
from infra.clouds.commands import ClusterRef
from infra.clouds.recipes import Recipe
from infra.program.launcher import INTERPRETER
from node.bootstrap.vm.images import ROLE as IMAGE
from node.bootstrap.vm.images import ImageKind
from node.design.batch import CACHING_GIB
from node.design.model import ClusterDesign

DISK_GIB = 16
"""The size of an image. The largest image holds a second kernel, NVIDIA's driver and EFA. No node's disk may
be smaller than the image that it starts from."""
VERSION = "1.0.0"
"""The version of every recipe. Recipes differ by their names."""
WITHOUT_HOSTS = "m5.large"
"""Where images are built for a cluster that has neither a controller nor nodes without devices."""
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
"""
_STEP = """\
      - name: {name}
        action: ExecuteBash
        timeoutSeconds: {seconds}
        onFailure: Abort
        maxAttempts: 1
        inputs:
          commands:
            - |
{script}"""
# The exit status is that of the step. 194 makes Image Builder restart the machine and repeat this step.
_SCRIPT = """\
set -eu
umask 022
mkdir -p {code}
cat >{code}/run_loader.py <<'END'
{start}END
exec /usr/bin/python3 {code}/run_loader.py {arguments}
"""


class AwsImages(pulumi.ComponentResource):
    """The images, and what builds them.

    Attributes:
        images: role -> host or partition -> the id of its image. Machines that start from an image are
            deleted before the image is.

    Args:
        image_build: The resources of the machines that become images.
        after: What such a machine needs when it starts.
        more: name -> a script that runs after the steps, as root.
    """

    def __init__(
        self,
        name: str,
        design: ClusterDesign,
        image_build: ImageBuild,
        after: list[pulumi.Resource],
        more: Mapping[str, pulumi.Input[str]] | None = None,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("slurm-stacks:index:AwsImages", name, None, opts)
        self._more: Mapping[str, pulumi.Input[str]] = more or {}
        self._name = name
        self._design = design
        self._image_build = image_build
        self._after = after
        self._log = aws.cloudwatch.LogGroup(
            f"{name}-log",
            name=policies.image_log_group(design),
            retention_in_days=RETENTION_DAYS,
            tags=tags(design, f"{design.name}-images"),
            opts=pulumi.ResourceOptions(parent=self),
        )
        self._infrastructure = self._build_machines()
        built = {recipe.kind.name: self._image(recipe) for recipe in recipes.recipes(design)}
        self.images = recipes.images_by_member(built, design)
        self.register_outputs({"images": built})

    def _build_machines(self) -> aws.imagebuilder.InfrastructureConfiguration:
        """Declare how the machines that become images start.

        They are not public, and end when they are done.
        """
        design, image_build = self._design, self._image_build
        return aws.imagebuilder.InfrastructureConfiguration(
            f"{self._name}-infrastructure",
            name=f"{design.name}-images",
            instance_profile_name=image_build.profile,
            instance_types=instance_types(design),
            subnet_id=image_build.subnet,
            security_group_ids=[image_build.group],
            instance_metadata_options={
                "http_tokens": METADATA["http_tokens"],
                "http_put_response_hop_limit": METADATA["http_put_response_hop_limit"],
            },
            terminate_instance_on_failure=True,
            # Image Builder names the machines itself, and refuses a name here.
            resource_tags={**design.tags, CLUSTER: design.name, STACK: design.stack, ROLE: IMAGE},
            tags=tags(design, f"{design.name}-images"),
            opts=pulumi.ResourceOptions(parent=self),
        )

    def _image(self, recipe: Recipe) -> pulumi.Output[str]:
        """Build an image, and return its id once it exists."""
        resource, kind = f"{self._name}-{recipe.kind.name}", recipe.kind.name
        name, text = self._name_and_document(recipe)
        own_tags = name.apply(lambda known: self._image_tags(kind, recipe=known))
        image_recipe = self._recipe(recipe, name, text, own_tags)
        built = aws.imagebuilder.Image(
            resource,
            image_recipe_arn=image_recipe.arn,
            infrastructure_configuration_arn=self._infrastructure.arn,
            distribution_configuration_arn=self._distribution(kind, own_tags).arn,
            # The machine's own steps check the image. A test by Image Builder would only start and stop a
            # second machine.
            image_tests_configuration={"image_tests_enabled": False},
            # This would be a list of packages, for which the machine would need further permissions.
            enhanced_image_metadata_enabled=False,
            logging_configuration={"log_group_name": self._log.name},
            tags=own_tags,
            opts=pulumi.ResourceOptions(
                parent=self,
                depends_on=[*self._after, self._cleanup(kind, name, image_recipe)],
                custom_timeouts=pulumi.CustomTimeouts(create=BUILD),
            ),
        )
        image: pulumi.Output[str] = built.output_resources.apply(lambda found: _ami(found, resource))
        return image

    def _cleanup(
        self, kind: str, name: pulumi.Output[str], recipe: aws.imagebuilder.ImageRecipe
    ) -> command.local.Command:
        """Delete what Image Builder leaves of an image, after the image itself is deleted.

        That includes what an interrupted `up` has left, which the engine does not know of.
        """
        design = self._design
        return command.local.Command(
            f"{self._name}-{kind}-cleanup",
            interpreter=INTERPRETER,
            delete=name.apply(
                lambda known: commands.line(
                    access.OPERATIONS, "unbake", design, *ClusterRef.of(design).arguments(), "--recipe", known
                )
            ),
            # Another recipe replaces this command, so that the old command's `delete` runs.
            triggers=[name],
            opts=pulumi.ResourceOptions(parent=self, depends_on=[recipe]),
        )

    def _name_and_document(self, recipe: Recipe) -> tuple[pulumi.Output[str], pulumi.Output[str]]:
        """Return the recipe's name, and the document that runs on the machine."""
        design = self._design
        size = disk_gib(design, recipe.kind)
        # The scripts run in this order, which a list keeps.
        scripts = pulumi.Output.all(*self._more.values())
        text = pulumi.Output.all(self._image_build.bucket, scripts).apply(
            lambda known: document(
                design, known[0], recipe.kind, dict(zip(self._more, known[1], strict=True))
            )
        )

        def named(both: list[str]) -> str:
            parent, steps = both
            # A recipe cannot change, so another key makes another recipe.
            key = f" {design.aws.kms_key}" if design.aws.kms_key else ""
            return recipe.name(design.name, f"{parent} {size} {bundle.digest(steps.encode())}{key}")

        name: pulumi.Output[str] = pulumi.Output.all(self._image_build.parent, text).apply(named)
        return name, text

    def _image_tags(self, kind: str, **more: str) -> dict[str, str]:
        return {**self._design.tags, **self._identifying(kind, **more)}

    def _identifying(self, kind: str, **more: str) -> dict[str, str]:
        release = recipes.slurm_release(self._design)
        slurm = {} if release is None else {"slurm": release}
        return identifying_tags(self._design, f"{self._design.name}-{kind}", role=IMAGE, **slurm, **more)

    def _recipe(
        self,
        recipe: Recipe,
        name: pulumi.Output[str],
        text: pulumi.Output[str],
        own_tags: pulumi.Output[dict[str, str]],
    ) -> aws.imagebuilder.ImageRecipe:
        design, resource = self._design, f"{self._name}-{recipe.kind.name}"
        component = aws.imagebuilder.Component(
            f"{resource}-component",
            name=name,
            version=VERSION,
            platform="Linux",
            data=text,
            tags=own_tags,
            opts=pulumi.ResourceOptions(parent=self),
        )
        return aws.imagebuilder.ImageRecipe(
            f"{resource}-recipe",
            name=name,
            version=VERSION,
            parent_image=self._image_build.parent,
            components=[{"component_arn": component.arn}],
            block_device_mappings=[
                {
                    "device_name": root_device(design.image, opts=pulumi.InvokeOptions(parent=self)),
                    "ebs": {
                        "volume_size": disk_gib(design, recipe.kind),
                        "volume_type": "gp3",
                        "encrypted": "true",
                        **({"kms_key_id": design.aws.kms_key} if design.aws.kms_key else {}),
                        "delete_on_termination": "true",
                    },
                }
            ],
            # Access by Session Manager needs the agent.
            systems_manager_agent={"uninstall_after_build": False},
            # The image is found by these from the first moment, also if its build fails later. The stack
            # file's tags come with the distribution: a recipe cannot change, and with other tags it would be
            # another image.
            ami_tags=name.apply(lambda known: self._identifying(recipe.kind.name, recipe=known)),
            tags=own_tags,
            opts=pulumi.ResourceOptions(parent=self),
        )

    def _distribution(
        self, kind: str, own_tags: pulumi.Output[dict[str, str]]
    ) -> aws.imagebuilder.DistributionConfiguration:
        """Return the image's name and tags.

        The image is published in this region and account, and nowhere else.
        """
        design = self._design
        return aws.imagebuilder.DistributionConfiguration(
            f"{self._name}-{kind}-distribution",
            name=f"{design.name}-{kind}",
            distributions=[
                {
                    "region": str(design.region),
                    "ami_distribution_configuration": {
                        "name": f"{design.name}-{kind}-{{{{ imagebuilder:buildDate }}}}",
                        "description": f"slurm-stacks: {kind} of the cluster {design.name}",
                        "ami_tags": own_tags,
                    },
                }
            ],
            tags=own_tags,
            opts=pulumi.ResourceOptions(parent=self),
        )


def image_build_for(
    design: ClusterDesign, network: AwsNetwork, profile: pulumi.Input[str], bucket: pulumi.Input[str]
) -> ImageBuild:
    """Return where images are built: in the controller's subnet, with the same route to the internet."""
    subnet = network.private.get(network.zones.head) or next(iter(network.private.values()))
    image = image_id(design.image, pulumi.InvokeOptions(parent=network))
    return ImageBuild(profile, network.groups[IMAGE], subnet, bucket, image)


def instance_types(design: ClusterDesign) -> list[str]:
    """Return the instance types that images are built on.

    They are the controller's, or those of nodes without devices.

    Building an image needs neither a GPU nor EFA.
    """
    plain = [p.instance_type for p in design.partitions if p.accelerator is None and not p.aws.efa]
    controllers = [host.instance_type for host in design.hosts if host.role == "controller"]
    return list(dict.fromkeys([*controllers, *plain])) or [WITHOUT_HOSTS]


def disk_gib(design: ClusterDesign, kind: ImageKind) -> int | None:
    """Return the size of an image in GiB.

    `None` means the size of the stack file's image, from which the build begins.
    """
    size = CACHING_GIB if design.batch is not None and design.batch.cached else DISK_GIB
    return None if design.image.id is not None else min(size, kind.disk_gib)


def document(
    design: ClusterDesign, bucket: str, kind: ImageKind, more: Mapping[str, str] | None = None
) -> str:
    """Return what Image Builder runs on the machine, as the YAML of its component.

    Args:
        more: name -> a script that runs after the steps.
    """
    place = {"bucket": bucket, "region": str(design.region), "cluster": design.name}
    arguments = {**place, "role": IMAGE, "host": kind.host}
    start = BOOT_SCRIPT.start.read_text(encoding="utf-8")
    script = _SCRIPT.format(
        code=userdata.CODE,
        start=start,
        arguments=" ".join(f"--{name} {value}" for name, value in arguments.items()),
    )
    scripts = {"steps": script, **(more or {})}
    steps = (
        _STEP.format(name=name, seconds=STEP_SECONDS, script=textwrap.indent(text, " " * 14))
        for name, text in scripts.items()
    )
    return "".join([_DOCUMENT, *steps])


def _ami(found: Sequence[aws.imagebuilder.outputs.ImageOutputResource], name: str) -> str:
    amis = [ami.image for resource in found for ami in resource.amis or [] if ami.image]
    return amis[0] if amis else f"<{name}.image>"
