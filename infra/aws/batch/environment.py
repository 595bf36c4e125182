"""The managed compute environment, its machines' launch template and user data, and the queue.

The user data is a MIME multi-part document that mounts the shared file systems. Batch adds a part of its own,
and takes no other form (botocore, batch: LaunchTemplateSpecification). The ECS agent starts after
cloud-init's last scripts, so a machine takes no job before its mounts are there. A machine without them ends,
because its job would otherwise run without data.
"""

from __future__ import annotations

import base64
import shlex
from collections.abc import Mapping

import pulumi
import pulumi_aws as aws

from infra.aws.batch import access
from infra.aws.batch.identity import BatchIdentity
from infra.aws.launch_templates import METADATA, interfaces, root_device
from infra.aws.network import AwsNetwork
from infra.aws.tags import tags
from infra.clouds.cluster import behind
from node.design.model import ClusterDesign
from node.design.storage import Mount

STOCK_ROOT = "/dev/xvda"
"""The name of the root disk in the images of Amazon Linux, which Batch's own are."""
PRIORITY = 1
LONGEST_UPDATE_MINUTES = 360
"""How long jobs may go on while their machines are to be replaced. Batch takes up to 7200, but the provider
refuses more than 360 (terraform-provider-aws, issue 48709)."""
MACHINES_TAKE = "1h"
"""How long Batch may take to make or delete an environment, whose machines end first. The provider waits 20
minutes."""
QUEUE_TAKES = "30m"
"""How long a queue may take; the provider waits 10 minutes."""
WITHOUT_POLICY = "us-gov-"
"""Regions that refuse the policy, which the provider sets by a second call (terraform-provider-aws, issue
43969)."""
PLAIN, WITH_GPUS = "ECS_AL2023", "ECS_AL2023_NVIDIA"
"""Batch's own images (botocore, batch: Ec2Configuration). The second has no driver for P3's V100s."""
BOUNDARY = "==slurm-stacks=="
USER_DATA_LIMIT = 16 * 1024
"""EC2's limit of user data in bytes, before base64."""
MOUNT_TYPES = {"fsx_lustre": "lustre", "efs": "nfs4"}
"""The kind of a mount -> the type that mount(8) takes."""
_NOT_OF_MOUNT = {"_netdev"}
"""Options of /etc/fstab alone."""
_HEAD = f"""\
MIME-Version: 1.0
Content-Type: multipart/mixed; boundary="{BOUNDARY}"

--{BOUNDARY}
Content-Type: text/x-shellscript; charset="us-ascii"

"""
_SCRIPT = """\
#!/bin/sh
# Written by slurm-stacks: mounts what jobs need, before the ECS agent takes one.
set -u
give_up() {
    echo "slurm-stacks: $1: this machine ends" | tee /dev/console >&2
    systemctl mask --now ecs
    shutdown -h +1
    exit 1
}
mount_one() { # source path type options
    mkdir -p "$2"
    for _try in $(seq 60); do
        grep -qs " $2 " /proc/mounts && return 0
        mount -t "$3" -o "$4" "$1" "$2" && return 0
        sleep 10
    done
    give_up "$1 could not be mounted at $2 for ten minutes"
}
"""
_LUSTRE_CLIENT = """\
# Amazon Linux has the client in its repository; an image of this project has it already.
command -v mount.lustre >/dev/null || dnf install --assumeyes lustre-client || give_up "no Lustre client"
"""
_OF_JOB = """\
# The file system of the job that waits: the state machine wrote its address into a parameter.
metadata=http://169.254.169.254/latest
token=$(curl -sf -X PUT -H 'X-aws-ec2-metadata-token-ttl-seconds: 300' $metadata/api/token)
ask() { curl -sf -H "X-aws-ec2-metadata-token: $token" "$metadata/meta-data/iam/security-credentials/$1"; }
keys=$(ask "$(ask '')")
field() { printf '%%s\\n' "$keys" | sed -n "s/.*\\"$1\\" *: *\\"\\([^\\"]*\\)\\".*/\\1/p"; }
answer=$(curl -sf --retry 30 --retry-all-errors --retry-delay 10 --aws-sigv4 'aws:amz:%(region)s:ssm' \\
    --user "$(field AccessKeyId):$(field SecretAccessKey)" -H "X-Amz-Security-Token: $(field Token)" \\
    -H 'Content-Type: application/x-amz-json-1.1' -H 'X-Amz-Target: AmazonSSM.GetParameter' \\
    -d '{"Name": "%(parameter)s"}' 'https://ssm.%(region)s.amazonaws.com/')
source=$(printf '%%s\\n' "$answer" | sed -n 's/.*"Value" *: *"\\([^"]*\\)".*/\\1/p')
case $source in *@tcp:/*) ;; *) give_up 'no job has a file system' ;; esac
"""


class BatchEnvironment(pulumi.ComponentResource):
    """What runs the jobs.

    Attributes:
        ecs_cluster: The ARN of the ECS cluster that Batch makes for the environment: another one each time.
        queue: The queue's ARN.
        environment: The environment's ARN.
        machines: The environment itself.
        made: The environment and the queue. What they need must be deleted after them.

    Args:
        image: The id of an image; `None` for Batch's own.
        sources: path -> what machines mount there.
        after: What machines need when they start.
    """

    def __init__(
        self,
        name: str,
        design: ClusterDesign,
        network: AwsNetwork,
        identity: BatchIdentity,
        image: pulumi.Input[str] | None,
        sources: Mapping[str, pulumi.Output[str]],
        after: list[pulumi.Resource],
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("slurm-stacks:index:BatchEnvironment", name, None, opts)
        self._name = name
        self._design = design
        self._child_opts = pulumi.ResourceOptions(parent=self)
        batch = access.of(design)
        template = self._template(network, image, sources)
        environment = aws.batch.ComputeEnvironment(
            f"{name}-compute",
            name=batch.compute_environment,
            type="MANAGED",
            state="ENABLED",
            compute_resources=self._resources(network, identity, image, template),
            # Otherwise a change of image or template ends the jobs after half an hour.
            update_policy=None
            if str(design.region).startswith(WITHOUT_POLICY)
            else {
                "terminate_jobs_on_update": False,
                "job_execution_timeout_minutes": LONGEST_UPDATE_MINUTES,
            },
            tags=tags(design, batch.compute_environment),
            opts=pulumi.ResourceOptions(
                parent=self,
                # Batch needs the machines' permissions to delete the environment, so they go after it.
                depends_on=[*after, *identity.grants],
                # Batch itself changes the number while jobs come and go.
                ignore_changes=["computeResources.desiredVcpus"],
                # Its name is given, and no two environments have the same. A renamed one goes first, too, for
                # Batch believes for a while that a queue refers to it, and keeps it (pulumi-aws, issue 6233).
                delete_before_replace=True,
                custom_timeouts=pulumi.CustomTimeouts(
                    create=MACHINES_TAKE,
                    # An update of the machines is over when the last of the former jobs is.
                    update=f"{LONGEST_UPDATE_MINUTES + 60}m",
                    delete=MACHINES_TAKE,
                ),
            ),
        )
        queue = self._queue(environment)
        self.ecs_cluster: pulumi.Output[str] = environment.ecs_cluster_arn
        self.environment: pulumi.Output[str] = environment.arn
        self.queue: pulumi.Output[str] = queue.arn
        self.machines: pulumi.Resource = environment
        self.made: list[pulumi.Resource] = [environment, queue]
        self.register_outputs({"queue": self.queue})

    def _queue(self, environment: aws.batch.ComputeEnvironment) -> aws.batch.JobQueue:
        """Declare the queue. It is deleted before an environment that is made anew."""
        design, batch = self._design, access.of(self._design)
        return aws.batch.JobQueue(
            f"{self._name}-queue",
            name=behind(environment, batch.queue),
            priority=PRIORITY,
            state="ENABLED",
            compute_environment_orders=[{"order": 1, "compute_environment": environment.arn}],
            tags=tags(design, batch.queue),
            opts=pulumi.ResourceOptions(
                parent=self,
                custom_timeouts=pulumi.CustomTimeouts(
                    create=QUEUE_TAKES, update=QUEUE_TAKES, delete=QUEUE_TAKES
                ),
            ),
        )

    def _resources(
        self,
        network: AwsNetwork,
        identity: BatchIdentity,
        image: pulumi.Input[str] | None,
        template: aws.ec2.LaunchTemplate,
    ) -> aws.batch.ComputeEnvironmentComputeResourcesArgs:
        design, batch = self._design, access.of(self._design)
        gpus = design.partitions[0].accelerator is not None
        return aws.batch.ComputeEnvironmentComputeResourcesArgs(
            # Batch runs multi-node parallel jobs on demand only (its user guide, "Multi-node parallel jobs").
            type="EC2",
            allocation_strategy="BEST_FIT_PROGRESSIVE",
            min_vcpus=batch.min_vcpus,
            desired_vcpus=batch.desired_vcpus,
            max_vcpus=batch.max_vcpus,
            instance_types=list(batch.machines),
            subnets=list(network.subnets.values()),
            # The template's interfaces have the group. Batch would ignore it there if it were here, too.
            security_group_ids=[],
            instance_role=identity.profile,
            placement_group=self._placement_group(),
            # An explicit version: an environment would not notice that `$Latest` is another one.
            launch_template=aws.batch.ComputeEnvironmentComputeResourcesLaunchTemplateArgs(
                launch_template_id=template.id, version=template.latest_version.apply(str)
            ),
            tags={**tags(design, design.name, role="compute", partition=batch.queue), **batch.tags},
            # With an image of its own the environment needs no image type, and the types exclude P3.
            image_id=image,
            ec2_configurations=None
            if image is not None
            else [
                aws.batch.ComputeEnvironmentComputeResourcesEc2ConfigurationArgs(
                    image_type=WITH_GPUS if gpus else PLAIN
                )
            ],
        )

    def _placement_group(self) -> pulumi.Input[str] | None:
        design, batch = self._design, access.of(self._design)
        if batch.placement_group is None:
            return None
        group = aws.ec2.PlacementGroup(
            f"{self._name}-placement-group",
            name=batch.placement_group,
            strategy="cluster",
            tags=tags(design, batch.placement_group, partition=batch.queue),
            opts=self._child_opts,
        )
        return group.name

    def _template(
        self,
        network: AwsNetwork,
        image: pulumi.Input[str] | None,
        sources: Mapping[str, pulumi.Output[str]],
    ) -> aws.ec2.LaunchTemplate:
        design, batch = self._design, access.of(self._design)
        own_tags = tags(design, f"{design.name}-{batch.queue}", role="compute", partition=batch.queue)
        text = pulumi.Output.all(**sources).apply(lambda known: user_data(design, known))
        groups: list[pulumi.Input[str]] = [
            network.groups["compute"],
            *design.partitions[0].aws.security_groups,
        ]
        return aws.ec2.LaunchTemplate(
            f"{self._name}-launch-template",
            name=f"{design.name}-{batch.queue}",
            description=f"machines of the environment {batch.compute_environment}, cluster {design.name}",
            update_default_version=True,
            key_name=design.access.key,
            user_data=text.apply(lambda known: base64.b64encode(known.encode()).decode()),
            metadata_options=aws.ec2.LaunchTemplateMetadataOptionsArgs(**METADATA),
            instance_initiated_shutdown_behavior="terminate",
            block_device_mappings=[
                aws.ec2.LaunchTemplateBlockDeviceMappingArgs(
                    device_name=STOCK_ROOT
                    if image is None
                    else root_device(design.image, opts=pulumi.InvokeOptions(parent=self)),
                    ebs=aws.ec2.LaunchTemplateBlockDeviceMappingEbsArgs(
                        volume_size=design.partitions[0].disk_gib,
                        volume_type="gp3",
                        encrypted="true",
                        kms_key_id=design.aws.kms_key,
                        delete_on_termination="true",
                    ),
                )
            ],
            network_interfaces=[
                aws.ec2.LaunchTemplateNetworkInterfaceArgs(**interface, security_groups=groups)
                for interface in interfaces(batch.efa, public=not design.aws.nat)
            ],
            tag_specifications=[
                aws.ec2.LaunchTemplateTagSpecificationArgs(resource_type=kind, tags=own_tags)
                for kind in ("volume", "network-interface")
            ],
            tags=own_tags,
            opts=self._child_opts,
        )


def user_data(design: ClusterDesign, sources: Mapping[str, str]) -> str:
    """Return the user data of one design.

    Args:
        sources: path -> what is mounted there, for file systems that live as long as the stack.
    """
    batch = access.of(design)
    parts = [_HEAD, _SCRIPT]
    folders = sorted(set(batch.volumes) - {mount.path for mount in design.mounts})
    if folders:
        parts.append(f"mkdir -p {shlex.join(folders)}\n")
    if any(mount.kind == "fsx_lustre" for mount in design.mounts):
        parts.append(_LUSTRE_CLIENT)
    for mount in design.mounts:
        if mount.path not in sources:
            names = {"region": str(design.region), "parameter": access.parameter(design.name)}
            parts.append(_OF_JOB % names)
        source = shlex.quote(sources[mount.path]) if mount.path in sources else '"$source"'
        path, kind = shlex.quote(mount.path), MOUNT_TYPES[mount.kind]
        parts.append(f"mount_one {source} {path} {kind} {_mount_options(mount)}\n")
    return "".join([*parts, f"\n--{BOUNDARY}--\n"])


def _mount_options(mount: Mount) -> str:
    mount_options = (mount.options or "defaults").split(",")
    return shlex.quote(",".join(option for option in mount_options if option not in _NOT_OF_MOUNT))
