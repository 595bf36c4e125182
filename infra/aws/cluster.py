"""A Slurm cluster on EC2: its components, and the order in which they are deleted."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import pulumi
import pulumi_aws as aws

from infra import bundle
from infra.aws import access, images, zones
from infra.aws.addresses import AwsAddresses
from infra.aws.bucket import AwsBucket
from infra.aws.head import AwsHead
from infra.aws.identity import AccessTargets, AwsIdentity
from infra.aws.launch_templates import AwsLaunchTemplates
from infra.aws.logs import AwsLogs
from infra.aws.network import AwsNetwork
from infra.aws.role_resources import RoleResources
from infra.aws.secrets import AwsSecrets
from infra.aws.storage import AwsDisks, AwsStorage
from infra.benchmark import Shell
from infra.clouds import shell
from infra.clouds.inventory import inventory, login_address
from infra.clouds.publishing import Bundle
from infra.clouds.ready import ready
from infra.clouds.role_resources import BakedImages
from infra.clouds.site import site
from infra.clouds.termination import terminate_on_destroy
from infra.ssh.shells import Endpoint
from node.model import ClusterDesign, Host
from node.sites import AwsSite

if TYPE_CHECKING:
    from infra.aws.bake import AwsImages


class AwsCluster(pulumi.ComponentResource):
    """Network, roles, storage and launch templates, then the termination of nodes, then the head.

    A destroy deletes the head first, so that nothing launches nodes any more. Then it ends the nodes that the
    head has launched, and then it deletes the rest. A network that is replaced goes in the same order.
    """

    def __init__(self, name: str, design: ClusterDesign, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("slurm-stacks:index:AwsCluster", name, None, opts)
        own = pulumi.ResourceOptions(parent=self)
        self._name = name
        cluster_zones = zones.find(design)
        self._design = design = zones.with_zones(design, cluster_zones)
        network = AwsNetwork(f"{name}-network", design, cluster_zones, own)
        bucket = AwsBucket(f"{name}-bucket", design, own)
        secrets = AwsSecrets(f"{name}-secrets", design, own)
        logs = AwsLogs(f"{name}-logs", design, own)
        storage = AwsStorage(f"{name}-storage", design, network, own)
        targets = AccessTargets(
            bucket.arn, secrets.munge, logs.arn, list(network.subnets.values()), [network.groups["compute"]]
        )
        identity = AwsIdentity(f"{name}-identity", design, targets, own)
        published = Bundle(f"{name}-bundle", design, bucket, own)
        bake = self._bake(network, identity, bucket, published) if design.image.bake else None
        resources_by_role = self._role_resources(network, identity, bucket, bake.images if bake else {})
        addresses = AwsAddresses(f"{name}-addresses", design, resources_by_role, network.routes, own)
        launch_templates = AwsLaunchTemplates(
            f"{name}-launch-templates", design, resources_by_role["compute"], own
        )
        known_site = site(
            addresses.private,
            bucket.bucket,
            secrets.munge,
            storage.mounts(),
            pulumi.Output.all(
                subnets=network.subnets, templates=launch_templates.templates, log_group=logs.group
            ).apply(lambda parts: AwsSite(region=str(design.region), cluster=design.name, **parts)),
        )
        published.publish(known_site)
        parts = [network, bucket, secrets, logs, storage, identity, addresses, launch_templates, published]
        dependencies = [*parts, *([bake] if bake else [])]
        termination = terminate_on_destroy(
            f"{name}-termination", access.OPERATIONS, design, network.identity, dependencies, self
        )
        needed = [published.current, *identity.grants, *network.routes]
        self._head = AwsHead(f"{name}-head", design, resources_by_role, addresses, termination, needed, own)
        disks = AwsDisks(f"{name}-disks", storage, self._machine("controller").id, own)
        wait = ready(
            f"{name}-ready",
            access.OPERATIONS,
            design,
            bucket.bucket,
            published.content,
            {host: machine.id for host, machine in self._head.machines.items()},
            [self._head, disks],
            self,
        )
        login_ssh = self._login_ssh(login_address(design, addresses))
        self.inventory = inventory(design, self._machine("controller").id, addresses, login_ssh, wait)
        self.register_outputs({"login": self.inventory["login_address"]})

    @property
    def head(self) -> pulumi.Resource:
        return self._head.machines["controller"]

    @property
    def shell(self) -> Shell:
        return shell.of(self._design, self)

    @property
    def endpoint(self) -> Endpoint:
        """The login machine: a public address, or an instance's id for Session Manager."""
        public = self._design.access.mode == "ssh"
        host = self.inventory["login_address"] if public else self._machine(self._login.name).id
        return Endpoint(host, str(self._design.access.user), self.inventory["host_keys"])

    @property
    def proxy_command(self) -> str | None:
        design = self._design
        return access.ssh_proxy(str(design.region), design.access.mode, design.access.key)

    @property
    def _login(self) -> Host:
        return self._design.login_hosts()[0]

    def _machine(self, host: str) -> aws.ec2.Instance:
        return self._head.machines[host]

    def _bake(
        self, network: AwsNetwork, identity: AwsIdentity, bucket: AwsBucket, published: Bundle
    ) -> AwsImages:
        # This import is here because few stacks build images.
        from infra.aws import bake
        from node.bootstrap.vm.images import ROLE

        design = self._design
        image_build = bake.image_build_for(design, network, identity.profiles[ROLE], bucket.bucket)
        needed = [*published.images, *identity.grants, *network.routes, *network.rules[ROLE]]
        own = pulumi.ResourceOptions(parent=self)
        return bake.AwsImages(f"{self._name}-images", design, image_build, needed, opts=own)

    def _role_resources(
        self, network: AwsNetwork, identity: AwsIdentity, bucket: AwsBucket, baked_images: BakedImages
    ) -> dict[str, RoleResources]:
        """The resources that the machines of each role share."""
        image = images.image_id(self._design.image)
        subnets = {host.role: network.subnet(host) for host in self._design.hosts}
        return {
            role: RoleResources(
                profile=profile,
                group=network.groups[role],
                subnet=subnets.get(role),
                image=image,
                bucket=bucket.bucket,
                baked_images=baked_images.get(role, {}),
            )
            for role, profile in identity.profiles.items()
        }

    def _login_ssh(self, address: pulumi.Output[str]) -> pulumi.Output[str]:
        """The command for a shell on the login machine.

        It works in anybody's shell where that is possible. Otherwise it goes through this checkout, which
        sends a key along.
        """
        design = self._design
        user = design.access.user
        if design.access.mode == "ssh":
            return address.apply(lambda host: f"ssh {user}@{host}")
        if design.access.key is None:
            command = shlex.join([str(bundle.ROOT / "cluster"), "ssh", "--stack", design.stack])
            return pulumi.Output.from_input(command)
        identity: pulumi.Output[str] = self._machine(self._login.name).id
        return identity.apply(lambda host: f"ssh -o ProxyCommand='{self.proxy_command}' {user}@{host}")
