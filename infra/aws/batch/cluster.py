"""An AWS Batch stack: its components, and the order in which they are deleted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pulumi
import pulumi_command as command

from infra.aws.batch import access
from infra.aws.batch.definition import BatchDefinition, BatchRepository
from infra.aws.batch.environment import BatchEnvironment
from infra.aws.batch.identity import BatchIdentity
from infra.aws.batch.states import budget_limits
from infra.aws.launch_templates import image_id
from infra.aws.logs import AwsLogs
from infra.aws.network import AwsNetwork, find_zones, with_zones
from infra.aws.storage import AwsBucket, AwsStorage
from infra.clouds import commands
from infra.clouds.cluster import behind
from infra.clouds.commands import ClusterRef
from infra.errors import EXIT_REFUSED, UserError
from infra.inventory import Inventory
from infra.program import stand_ins
from infra.program.launcher import INTERPRETER
from infra.program.stand_ins import StandIns
from node.design.model import ClusterDesign

if TYPE_CHECKING:
    from infra.benchmark import Shell

VERSION = "AWS Batch"


class BatchCluster(pulumi.ComponentResource):
    """Network, storage, roles and image, then the environment with its queue, then the job definition.

    A destroy first ends the jobs and exports the file system to S3 (`_end`), then deletes the queue, the
    environment and the template, and then what they needed.
    """

    def __init__(
        self,
        name: str,
        design: ClusterDesign,
        values: StandIns = stand_ins.NONE,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("slurm-stacks:index:BatchCluster", name, None, opts)
        self._child_opts = child_opts = pulumi.ResourceOptions(parent=self)
        self._name = name
        self._values = values
        cluster_zones = find_zones(design, pulumi.InvokeOptions(parent=self))
        self._design = design = with_zones(design, cluster_zones)
        batch = access.of(design)
        network = AwsNetwork(f"{name}-network", design, cluster_zones, values, child_opts)
        logs = AwsLogs(f"{name}-logs", design, child_opts)
        storage = AwsStorage(f"{name}-storage", _of_stack(design), network, child_opts)
        repository = BatchRepository(f"{name}-repository", design, child_opts) if batch.repository else None
        bucket = AwsBucket(f"{name}-bucket", design, child_opts) if _needs_bucket(design) else None
        manifests = bucket.arn if bucket is not None and batch.start_on_manifest else None
        identity = BatchIdentity(
            f"{name}-identity",
            design,
            logs.arn,
            repository.arn if repository else None,
            manifests,
            child_opts,
        )
        cached = repository.layers if repository else str(batch.container_image)
        image = self._image(network, identity, bucket, logs, cached if batch.cached else "")
        after = [*network.routes, *network.rules["compute"], storage, logs]
        environment = BatchEnvironment(
            f"{name}-environment", design, network, identity, image, storage.sources, after, child_opts
        )
        address = repository.image if repository else str(batch.container_image)
        definition = BatchDefinition(f"{name}-definition", design, address, identity, logs.group, child_opts)
        end = self._end([storage, *environment.made, definition], environment.machines, network.identity)
        self._options(identity, environment, definition, bucket, network, end)
        self._head = environment.made[-1]
        self.inventory = _inventory(design, environment)
        self.register_outputs({"queue": environment.queue})

    @property
    def head(self) -> pulumi.Resource:
        """The queue."""
        return self._head

    @property
    def shell(self) -> Shell:
        raise UserError("AWS Batch has no login machine", EXIT_REFUSED, code="batch.no-login-machine")

    def _image(
        self,
        network: AwsNetwork,
        identity: BatchIdentity,
        bucket: AwsBucket | None,
        logs: AwsLogs,
        cached: pulumi.Input[str],
    ) -> pulumi.Input[str] | None:
        """Declare the image of the machines; `None` for Batch's own."""
        design = self._design
        if design.image.id is not None:
            return image_id(design.image, pulumi.InvokeOptions(parent=self))
        if not design.image.bake or bucket is None:
            return None
        # This import is here because few stacks build images.
        from infra.aws.batch.bake import BatchBake

        baked = BatchBake(
            f"{self._name}-bake",
            design,
            network,
            identity,
            bucket,
            logs,
            cached,
            self._values,
            self._child_opts,
        )
        return baked.image

    def _end(
        self,
        after: list[pulumi.Resource],
        machines: pulumi.Resource,
        network_ids: list[pulumi.Output[str]],
    ) -> command.local.Command:
        """End the jobs before anything is deleted, and export file systems that write to S3.

        It does so too before a network or an environment that is replaced goes: jobs hold machines there. The
        next submit enables the queue again.

        Args:
            machines: The environment.
        """
        design, batch = self._design, access.of(self._design)
        place = ClusterRef.of(design)
        names = ["--queue", batch.queue, "--environment", batch.compute_environment]
        return command.local.Command(
            f"{self._name}-termination",
            interpreter=INTERPRETER,
            delete=commands.line(access.OPERATIONS, "end", design, *place.arguments(), *names),
            triggers=[*place.where(), *names, *network_ids, behind(machines, "environment")],
            opts=pulumi.ResourceOptions(parent=self, depends_on=after, delete_before_replace=True),
        )

    def _options(
        self,
        identity: BatchIdentity,
        environment: BatchEnvironment,
        definition: BatchDefinition,
        bucket: AwsBucket | None,
        network: AwsNetwork,
        end: command.local.Command,
    ) -> None:
        """Declare the budget, file systems, manifests.

        They start or end jobs, so they are deleted before `_end`.
        """
        design, batch, name = self._design, access.of(self._design), self._name
        limits, machine = budget_limits(design), None
        if not (limits or batch.start_on_manifest or batch.file_system == "job"):
            return
        # This import is here because few stacks have any of these.
        from infra.aws.batch import options

        if limits:
            options.BatchBudget(f"{name}-budget", design, identity, [end], self._child_opts)
        if batch.file_system == "job":
            file_systems = options.BatchFileSystems(
                f"{name}-file-systems", design, identity, network, [end], self._child_opts
            )
            machine = file_systems.machine
        if bucket is not None and batch.start_on_manifest:
            options.BatchManifests(
                f"{name}-manifests",
                design,
                identity,
                bucket,
                environment.queue,
                definition.arn,
                machine,
                [end],
                self._child_opts,
            )


def _of_stack(design: ClusterDesign) -> ClusterDesign:
    """Return the design with only those file systems that live as long as the stack."""
    from dataclasses import replace

    if access.of(design).file_system == "stack":
        return design
    return replace(design, mounts=tuple(mount for mount in design.mounts if mount.kind != "fsx_lustre"))


def _needs_bucket(design: ClusterDesign) -> bool:
    """Return whether the stack has a bucket, for images' code or for manifests."""
    return access.of(design).start_on_manifest or design.image.bake


def _inventory(design: ClusterDesign, environment: BatchEnvironment) -> Inventory:
    """Return the inventory.

    There is no machine to log in to, and no shared folder that goes with the cluster.
    """
    nothing: pulumi.Output[Any] = pulumi.Output.from_input(None)
    return {
        "id": environment.ecs_cluster,
        "login_address": nothing,
        "login_machine": nothing,
        "controller_address": nothing,
        "login_ssh": nothing,
        "scheduler_version": pulumi.Output.from_input(VERSION),
        "host_keys": pulumi.Output.from_input([]),
        "shared": nothing,
    }
