"""A Slurm cluster on EC2: its components, and the order in which they are deleted.

The addresses of the machines that live as long as their cluster are apart from the machines. They exist
before any machine does, so that the settings can name the controller's address. A machine that is replaced
gets its address back, so that neither nodes nor users have to learn another one.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pulumi
import pulumi_aws as aws

from infra.aws import access
from infra.aws.identity import AccessTargets, AwsIdentity, AwsSecrets
from infra.aws.launch_templates import (
    BOOT_SCRIPT,
    AwsLaunchTemplates,
    AwsRoleResources,
    ResourcesByRole,
    groups_of_nodes,
    image_id,
    metadata,
)
from infra.aws.logs import AwsLogs
from infra.aws.network import AwsNetwork, find_zones, with_zones
from infra.aws.storage import AwsBucket, AwsDisks, AwsStorage
from infra.aws.tags import BUCKET, tags
from infra.benchmark import Shell
from infra.clouds import shell
from infra.clouds.cluster import (
    BakedImages,
    behind,
    inventory,
    login_address,
    site,
    terminate_on_destroy,
    wait_for_boot,
)
from infra.clouds.publishing import Bundle
from infra.clouds.shell import Endpoint
from infra.program import stand_ins
from infra.program.launcher import Run, anywhere, pasted
from infra.program.stand_ins import StandIns
from node.design.model import STATE, ClusterDesign, Host
from node.design.sites import AwsSite

if TYPE_CHECKING:
    from infra.aws.bake import AwsImages

# A new image is an explicit act (`pulumi up --replace`). None of these may restart a head with jobs.
IGNORED_CHANGES = ["ami", "userData", "userDataBase64"]


class AwsCluster(pulumi.ComponentResource):
    """Network, roles, storage and launch templates, then the termination of nodes, then the head.

    A destroy deletes the head first, so that nothing launches nodes any more. Then it ends the nodes that the
    head has launched, and then it deletes the rest. A network that is replaced goes in the same order.
    """

    def __init__(
        self,
        name: str,
        design: ClusterDesign,
        values: StandIns = stand_ins.NONE,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("slurm-stacks:index:AwsCluster", name, None, opts)
        child_opts = pulumi.ResourceOptions(parent=self)
        self._name = name
        cluster_zones = find_zones(design, pulumi.InvokeOptions(parent=self))
        self._design = design = with_zones(design, cluster_zones)
        network = AwsNetwork(f"{name}-network", design, cluster_zones, values, child_opts)
        bucket = AwsBucket(f"{name}-bucket", design, child_opts)
        secrets = AwsSecrets(f"{name}-secrets", design, child_opts)
        logs = AwsLogs(f"{name}-logs", design, child_opts)
        storage = AwsStorage(f"{name}-storage", design, network, child_opts)
        targets = AccessTargets(
            bucket.arn,
            secrets.munge,
            logs.arn,
            list(network.subnets.values()),
            [network.groups["compute"], *groups_of_nodes(design)],
        )
        identity = AwsIdentity(f"{name}-identity", design, targets, child_opts)
        published = Bundle(f"{name}-bundle", design, bucket, values, child_opts)
        bake = self._bake(network, identity, bucket, published) if design.image.bake else None
        resources_by_role = self._role_resources(network, identity, bucket, bake.images if bake else {})
        addresses = AwsAddresses(f"{name}-addresses", design, resources_by_role, network.routes, child_opts)
        launch_templates = AwsLaunchTemplates(
            f"{name}-launch-templates", design, resources_by_role["compute"], child_opts
        )
        aws_site = pulumi.Output.all(
            subnets=network.subnets, templates=launch_templates.templates, log_group=logs.group
        ).apply(lambda parts: AwsSite(region=str(design.region), cluster=design.name, **parts))
        published.publish(site(addresses.private, bucket.bucket, secrets.munge, storage.mounts(), aws_site))
        parts = [network, bucket, secrets, logs, storage, identity, addresses, launch_templates, published]
        dependencies = [*parts, *([bake] if bake else [])]
        termination = terminate_on_destroy(
            f"{name}-termination", access.OPERATIONS, design, network.identity, dependencies, self
        )
        needed = [published.current, *identity.grants, *network.routes]
        self._head = AwsHead(
            f"{name}-head", design, resources_by_role, addresses, termination, needed, child_opts
        )
        disks = AwsDisks(f"{name}-disks", storage, self._machine("controller").id, child_opts)
        wait = wait_for_boot(
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
        login_machine = self._machine(self._login.name).id
        self.inventory = inventory(design, self._queue(storage), addresses, login_machine, login_ssh, wait)
        self.register_outputs({"login": self.inventory["login_address"]})

    @property
    def head(self) -> pulumi.Resource:
        return self._head.machines["controller"]

    @property
    def shell(self) -> Shell:
        return shell.cluster_shell(self._design, self)

    @property
    def endpoint(self) -> Endpoint:
        """The login machine: a public address, or an instance's id for Session Manager."""
        public = self._design.access.mode == "ssh"
        host = self.inventory["login_address"] if public else self._machine(self._login.name).id
        return Endpoint(host, str(self._design.access.user), self.inventory["host_keys"])

    @property
    def proxy_command(self) -> str | None:
        return self._proxy(anywhere)

    def _proxy(self, run: Run) -> str | None:
        design = self._design
        return access.ssh_proxy(
            str(design.region), design.access.mode, design.access.key, run, design.provider_settings
        )

    @property
    def _login(self) -> Host:
        return self._design.login_hosts()[0]

    def _machine(self, host: str) -> aws.ec2.Instance:
        return self._head.machines[host]

    def _queue(self, storage: AwsStorage) -> pulumi.Output[str]:
        """Return the id of what holds the queue: the disk with Slurm's state, or else the controller."""
        return storage.volumes.get(STATE, self._machine("controller").id)

    def _bake(
        self, network: AwsNetwork, identity: AwsIdentity, bucket: AwsBucket, published: Bundle
    ) -> AwsImages:
        # This import is here because few stacks build images.
        from infra.aws import bake
        from node.bootstrap.vm.images import ROLE

        design = self._design
        image_build = bake.image_build_for(design, network, identity.profiles[ROLE], bucket.bucket)
        needed = [*published.images, *identity.grants, *network.routes, *network.rules[ROLE]]
        child_opts = pulumi.ResourceOptions(parent=self)
        return bake.AwsImages(f"{self._name}-images", design, image_build, needed, opts=child_opts)

    def _role_resources(
        self, network: AwsNetwork, identity: AwsIdentity, bucket: AwsBucket, baked_images: BakedImages
    ) -> dict[str, AwsRoleResources]:
        """Return the resources that the machines of each role share."""
        image = image_id(self._design.image, pulumi.InvokeOptions(parent=self))
        subnets = {host.role: network.subnet(host) for host in self._design.hosts}
        return {
            role: AwsRoleResources(
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
        """Return the command for a shell on the login machine, which works on every engineer's machine."""
        design = self._design
        if (proxy := self._proxy(pasted)) is None:
            return address.apply(lambda host: f"ssh {design.access.user}@{host}")
        through = shlex.quote(f"ProxyCommand={proxy}")
        identity: pulumi.Output[str] = self._machine(self._login.name).id
        return identity.apply(lambda host: f"ssh -o {through} {design.access.user}@{host}")


class AwsAddresses(pulumi.ComponentResource):
    """A network interface for each host, and a public address for the hosts that need one.

    Attributes:
        interfaces: host -> the id of its network interface.
        private: host -> its private address.
        public: host -> its public address, only for hosts tagged `public` (access.mode ssh). Without a NAT
            gateway the other hosts have one as well, for outgoing traffic, which is not listed here.

    Args:
        routes: The routes to the internet. A public address needs the internet gateway, which cannot be
            deleted while the address exists.
    """

    def __init__(
        self,
        name: str,
        design: ClusterDesign,
        resources_by_role: ResourcesByRole,
        routes: Sequence[pulumi.Resource] = (),
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("slurm-stacks:index:AwsAddresses", name, None, opts)
        child_opts = pulumi.ResourceOptions(parent=self)
        self.interfaces: dict[str, pulumi.Output[str]] = {}
        self.private: dict[str, pulumi.Output[str]] = {}
        self.public: dict[str, pulumi.Output[str]] = {}
        for host in design.hosts:
            resources = resources_by_role[host.role]
            own_tags = tags(design, f"{design.name}-{host.name}", host=host.name)
            interface = aws.ec2.NetworkInterface(
                f"{name}-{host.name}",
                description=f"{host.name} of cluster {design.name}",
                subnet_id=resources.subnet,
                security_groups=[resources.group, *host.security_groups],
                tags=own_tags,
                opts=child_opts,
            )
            self.interfaces[host.name] = interface.id
            self.private[host.name] = interface.private_ip
            if "public" in host.tags or not design.aws.nat:
                address = aws.ec2.Eip(
                    f"{name}-{host.name}-public",
                    domain="vpc",
                    network_interface=interface.id,
                    tags=own_tags,
                    opts=pulumi.ResourceOptions(parent=self, depends_on=list(routes)),
                )
                if "public" in host.tags:
                    self.public[host.name] = address.public_ip
        self.register_outputs({"private": self.private, "public": self.public})


class AwsHead(pulumi.ComponentResource):
    """The EC2 instances of the design's hosts, at their addresses.

    Attributes:
        machines: host -> its instance.

    Args:
        termination: What ends the nodes. It outlives the machines, also when it is replaced with its network.
        after: What a machine needs at its boot, and what must outlive it.
    """

    def __init__(
        self,
        name: str,
        design: ClusterDesign,
        resources_by_role: ResourcesByRole,
        addresses: AwsAddresses,
        termination: pulumi.Resource,
        after: list[pulumi.Resource],
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("slurm-stacks:index:AwsHead", name, None, opts)
        self._name = name
        self._design = design
        self._termination = termination
        self.machines: dict[str, aws.ec2.Instance] = {}
        for host in design.hosts:
            # A login machine mounts what the controller exports, and is deleted before it.
            first = [self.machines["controller"]] if host.role == "login" else []
            self.machines[host.name] = self._machine(
                host, resources_by_role, addresses, [termination, *after, *first]
            )
        self.register_outputs({"machines": {host: machine.id for host, machine in self.machines.items()}})

    def _machine(
        self,
        host: Host,
        resources_by_role: ResourcesByRole,
        addresses: AwsAddresses,
        after: list[pulumi.Resource],
    ) -> aws.ec2.Instance:
        design, resources = self._design, resources_by_role[host.role]
        label = f"{design.name}-{host.name}"
        own_tags = tags(design, label, role=host.role, host=host.name)
        return aws.ec2.Instance(
            f"{self._name}-{host.name}",
            ami=resources.start_from(host.name, host.image),
            instance_type=host.instance_type,
            key_name=design.access.key,
            iam_instance_profile=resources.profile,
            primary_network_interface=aws.ec2.InstancePrimaryNetworkInterfaceArgs(
                network_interface_id=behind(self._termination, addresses.interfaces[host.name])
            ),
            metadata_options=aws.ec2.InstanceMetadataOptionsArgs(**metadata(host)),
            root_block_device=aws.ec2.InstanceRootBlockDeviceArgs(
                volume_size=host.disk_gib,
                volume_type="gp3",
                iops=host.gp3.iops if host.gp3 else None,
                throughput=host.gp3.throughput if host.gp3 else None,
                encrypted=True,
                kms_key_id=design.aws.kms_key,
                delete_on_termination=True,
                tags=own_tags,
            ),
            user_data=pulumi.Output.from_input(resources.bucket).apply(
                lambda bucket: BOOT_SCRIPT.render(design, bucket, host.role, host.name)
            ),
            user_data_replace_on_change=False,
            instance_initiated_shutdown_behavior="stop",
            # EC2 starts the machine on another host if its host fails, where the instance type has that. This
            # is its default, and the next `up` puts it back where somebody has changed it.
            maintenance_options=aws.ec2.InstanceMaintenanceOptionsArgs(auto_recovery="default"),
            tags={**own_tags, BUCKET: resources.bucket},
            opts=pulumi.ResourceOptions(
                parent=self,
                depends_on=after,
                ignore_changes=IGNORED_CHANGES,
                # An address has one machine at a time.
                delete_before_replace=True,
            ),
        )
