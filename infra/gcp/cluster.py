"""A Slurm cluster on Compute Engine: its components, and the order in which they are deleted.

The addresses of the machines that live as long as their cluster are apart from the machines. They exist
before any machine does, so that the settings can name the controller's address. A machine that is replaced
gets its address back, so that neither nodes nor users have to learn another one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pulumi
from pulumi_gcp import compute

from infra.benchmark import Shell
from infra.clouds import shell
from infra.clouds.cluster import (
    BakedImages,
    behind,
    boot_facts,
    inventory,
    login_address,
    site,
    terminate_on_destroy,
    wait_for_boot,
)
from infra.clouds.commands import ClusterRef
from infra.clouds.publishing import Bundle
from infra.clouds.shell import Endpoint
from infra.gcp import access
from infra.gcp.identity import AccessTargets, GcpAccounts, GcpIdentity, GcpSecrets
from infra.gcp.instance_templates import (
    ROOT_DISK_TYPE,
    SCOPES,
    STARTUP,
    USER_DATA,
    GcpInstanceTemplates,
    GcpRoleResources,
    ResourcesByRole,
    image_id,
    metadata,
    migrates,
)
from infra.gcp.names import labels
from infra.gcp.network import GcpNetwork, check_zones, with_zones
from infra.gcp.storage import GcpBucket, GcpStorage
from infra.program import stand_ins
from infra.program.launcher import anywhere
from infra.program.stand_ins import StandIns
from node.bootstrap.vm.images import ROLE as IMAGE
from node.design.model import STATE, ClusterDesign, Host, Site
from node.design.sites import GcpSite
from node.elastic.drivers.gce.names import instance_of

if TYPE_CHECKING:
    from infra.gcp.bake import GcpImages

# Neither may restart a head with jobs. A new image is an explicit act (`pulumi up --replace` of its disk).
IGNORED_CHANGES = [f'metadata["{STARTUP}"]', f'metadata["{USER_DATA}"]']


class GcpCluster(pulumi.ComponentResource):
    """Network, service accounts, storage and templates, then the termination of nodes, then the head.

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
        super().__init__("slurm-stacks:index:GcpCluster", name, None, opts)
        child_opts = pulumi.ResourceOptions(parent=self)
        self._name = name
        self._design = design = with_zones(design)
        check_zones(design, pulumi.InvokeOptions(parent=self))
        accounts = GcpAccounts(f"{name}-accounts", design, child_opts)
        network = GcpNetwork(f"{name}-network", design, accounts.by_role.values(), values, child_opts)
        bucket = GcpBucket(f"{name}-bucket", design, child_opts)
        secrets = GcpSecrets(f"{name}-secrets", design, child_opts)
        storage = GcpStorage(f"{name}-storage", design, network, child_opts)
        targets = AccessTargets(bucket.bucket, secrets.munge, network.subnetwork)
        identity = GcpIdentity(f"{name}-identity", design, accounts, targets, child_opts)
        published = Bundle(f"{name}-bundle", design, bucket, values, child_opts)
        bake = self._bake(network, identity, bucket, published) if design.image.bake else None
        resources_by_role = self._role_resources(network, identity, bucket, bake.images if bake else {})
        addresses = GcpAddresses(f"{name}-addresses", design, resources_by_role, child_opts)
        templates = GcpInstanceTemplates(
            f"{name}-instance-templates", design, resources_by_role["compute"], child_opts
        )
        published.publish(self._site(addresses, templates, bucket, secrets, storage))
        parts = [accounts, network, bucket, secrets, storage, identity, addresses, templates, published]
        dependencies = [*parts, *([bake] if bake else [])]
        termination = terminate_on_destroy(
            f"{name}-termination", access.OPERATIONS, design, [network.subnetwork], dependencies, self
        )
        needed = [published.current, *identity.grants, *network.routes]
        disks = storage.attached()
        self._head = GcpHead(
            f"{name}-head", design, resources_by_role, addresses, disks, termination, needed, child_opts
        )
        wait = wait_for_boot(
            f"{name}-ready",
            access.OPERATIONS,
            design,
            bucket.bucket,
            published.content,
            {host: machine.instance_id for host, machine in self._head.machines.items()},
            [self._head],
            self,
        )
        self._user = boot_facts(wait)["login_user"]
        # The queue is on its own disk, or else on the root disk. Another machine may get either.
        queue = storage.disks.get(STATE, self._head.disks["controller"].disk_id)
        login_ssh = self._login_ssh(login_address(design, addresses))
        login_machine = self._head.machines[self._login.name].name
        self.inventory = inventory(design, queue, addresses, login_machine, login_ssh, wait)
        self.register_outputs({"login": self.inventory["login_address"]})

    @property
    def head(self) -> pulumi.Resource:
        return self._head.machines["controller"]

    @property
    def shell(self) -> Shell:
        return shell.cluster_shell(self._design, self)

    @property
    def endpoint(self) -> Endpoint:
        """The login machine: a public address, or an instance's name for the Identity-Aware Proxy."""
        public = self._design.access.mode == "ssh"
        login = self._head.machines[self._login.name]
        return Endpoint(
            self.inventory["login_address"] if public else login.name,
            # Everybody has a user of their own, and not only the one who made the cluster changes the
            # benchmark.
            "",
            self.inventory["host_keys"],
            ask=access.ask(ClusterRef.of(self._design)),
        )

    @property
    def proxy_command(self) -> str | None:
        return access.proxy(ClusterRef.of(self._design), self._design.access.mode, run=anywhere)

    @property
    def _login(self) -> Host:
        return self._design.login_hosts()[0]

    def _bake(
        self, network: GcpNetwork, identity: GcpIdentity, bucket: GcpBucket, published: Bundle
    ) -> GcpImages:
        # This import is here because few stacks build images.
        from infra.gcp.bake import GcpImages

        resources = self._role_resources(network, identity, bucket, {})[IMAGE]
        needed = [*published.images, *identity.grants, *network.routes]
        child_opts = pulumi.ResourceOptions(parent=self)
        return GcpImages(f"{self._name}-images", self._design, resources, needed, child_opts)

    def _role_resources(
        self, network: GcpNetwork, identity: GcpIdentity, bucket: GcpBucket, baked_images: BakedImages
    ) -> dict[str, GcpRoleResources]:
        """Return the resources that the machines of each role share."""
        image = image_id(self._design.image, pulumi.InvokeOptions(parent=self))
        return {
            role: GcpRoleResources(
                account=email,
                subnetwork=network.subnetwork,
                image=image,
                bucket=bucket.bucket,
                baked_images=baked_images.get(role, {}),
            )
            for role, email in identity.emails.items()
        }

    def _site(
        self,
        addresses: GcpAddresses,
        templates: GcpInstanceTemplates,
        bucket: GcpBucket,
        secrets: GcpSecrets,
        storage: GcpStorage,
    ) -> pulumi.Output[Site]:
        design = self._design
        return site(
            addresses.private,
            bucket.bucket,
            secrets.munge,
            storage.mounts(),
            pulumi.Output.all(**templates.templates).apply(
                lambda template_links: GcpSite(
                    project=str(design.project),
                    region=str(design.region),
                    cluster=design.name,
                    templates=dict(template_links),
                    zones={partition.name: partition.zones for partition in design.partitions},
                    # Machines install Google's agent and send their logs with it to Cloud Logging. Nothing
                    # has to be made for that: every project has a bucket of logs, which keeps entries for
                    # thirty days. A bucket of the cluster's own would keep them no longer, its deletion
                    # takes a week in which its name is taken, and it needs a sink that all entries of the
                    # project pass through. The cluster's entries are found by the names of its machines,
                    # and end with the thirty days, not with the cluster. There is no budget of Google's
                    # either: a budget belongs to a billing account, which is seldom the engineer's. The
                    # elastic daemon's own budget stops launches.
                    logs=True,
                )
            ),
        )

    def _login_ssh(self, address: pulumi.Output[str]) -> pulumi.Output[str]:
        """Return the command for a shell on the login machine.

        It needs the gcloud CLI, which sends a key to OS Login.
        """
        design = self._design
        if design.access.mode == "ssh":
            return pulumi.Output.format("ssh {0}@{1}", self._user, address)
        instance = self._head.machines[self._login.name].name
        return instance.apply(
            lambda name: (
                f"gcloud compute ssh {name} --project {design.project} --zone {design.zone} "
                "--tunnel-through-iap --"
            )
        )


class GcpAddresses(pulumi.ComponentResource):
    """A reserved address in the network for each host, and a public address for the hosts that need one.

    Attributes:
        private: host -> its private address.
        public: host -> its public address, only for hosts tagged `public` (access.mode ssh).
    """

    def __init__(
        self,
        name: str,
        design: ClusterDesign,
        resources_by_role: ResourcesByRole,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("slurm-stacks:index:GcpAddresses", name, None, opts)
        child_opts = pulumi.ResourceOptions(parent=self)
        self.private: dict[str, pulumi.Output[str]] = {}
        self.public: dict[str, pulumi.Output[str]] = {}
        for host in design.hosts:
            own_labels = labels(design, role=host.role, host=host.name)
            self.private[host.name] = compute.Address(
                f"{name}-{host.name}",
                name=f"{design.name}-{host.name}",
                description=f"{host.name} of cluster {design.name}",
                address_type="INTERNAL",
                purpose="GCE_ENDPOINT",
                project=design.project,
                region=design.region,
                subnetwork=resources_by_role[host.role].subnetwork,
                labels=own_labels,
                opts=child_opts,
            ).address
            if "public" in host.tags:
                self.public[host.name] = compute.Address(
                    f"{name}-{host.name}-public",
                    name=f"{design.name}-{host.name}-public",
                    description=f"{host.name} of cluster {design.name}, for SSH",
                    address_type="EXTERNAL",
                    project=design.project,
                    region=design.region,
                    labels=own_labels,
                    opts=child_opts,
                ).address
        self.register_outputs({"private": self.private, "public": self.public})


class GcpHead(pulumi.ComponentResource):
    """The Compute Engine instances of the design's hosts, at their addresses.

    Google encrypts all disks with keys that it manages, as it does everything on Google Cloud.

    Attributes:
        machines: host -> its instance.
        disks: host -> its root disk. The controller's holds Slurm's queue where that has no disk of its own.

    Args:
        exports: The disks that the controller exports.
        termination: What ends the nodes. It outlives the machines, also when it is replaced with its network.
        after: What a machine needs at its boot, and what must outlive it.
    """

    def __init__(
        self,
        name: str,
        design: ClusterDesign,
        resources_by_role: ResourcesByRole,
        addresses: GcpAddresses,
        exports: Sequence[compute.InstanceAttachedDiskArgs],
        termination: pulumi.Resource,
        after: Sequence[pulumi.Resource],
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("slurm-stacks:index:GcpHead", name, None, opts)
        self._name = name
        self._design = design
        self._termination = termination
        self.machines: dict[str, compute.Instance] = {}
        self.disks: dict[str, compute.Disk] = {}
        for host in design.hosts:
            # A login machine mounts what the controller exports, and is deleted before it.
            first = [self.machines["controller"]] if host.role == "login" else []
            attached = exports if host.role == "controller" else []
            self.machines[host.name] = self._machine(
                host, resources_by_role[host.role], addresses, attached, [termination, *after, *first]
            )
        self.register_outputs({"machines": {host: machine.name for host, machine in self.machines.items()}})

    def _machine(
        self,
        host: Host,
        resources: GcpRoleResources,
        addresses: GcpAddresses,
        attached: Sequence[compute.InstanceAttachedDiskArgs],
        after: list[pulumi.Resource],
    ) -> compute.Instance:
        design = self._design
        own_labels = labels(design, role=host.role, host=host.name)
        root = self.disks[host.name] = self._disk(host, resources, own_labels, after)
        return compute.Instance(
            f"{self._name}-{host.name}",
            name=instance_of(design.name, host.name),
            description=f"{host.name} of cluster {design.name}",
            project=design.project,
            zone=design.zone,
            machine_type=host.instance_type,
            boot_disk=compute.InstanceBootDiskArgs(
                source=behind(self._termination, root.self_link), auto_delete=False
            ),
            attached_disks=attached or None,
            network_interfaces=[
                compute.InstanceNetworkInterfaceArgs(
                    subnetwork=resources.subnetwork,
                    network_ip=addresses.private[host.name],
                    access_configs=[
                        compute.InstanceNetworkInterfaceAccessConfigArgs(nat_ip=addresses.public[host.name])
                    ]
                    if host.name in addresses.public
                    else None,
                )
            ],
            service_account=compute.InstanceServiceAccountArgs(email=resources.account, scopes=SCOPES),
            scheduling=compute.InstanceSchedulingArgs(
                on_host_maintenance="MIGRATE" if migrates(host.instance_type) else "TERMINATE",
                # After an error of its host, and after a maintenance for which it had to stop.
                automatic_restart=True,
            ),
            shielded_instance_config=compute.InstanceShieldedInstanceConfigArgs(
                enable_vtpm=True, enable_integrity_monitoring=True, enable_secure_boot=False
            ),
            metadata=metadata(design, resources, host.role, host.name),
            tags=list(host.network_tags) or None,
            labels=own_labels,
            # Another machine type stops the machine for a while and does not replace it.
            allow_stopping_for_update=True,
            deletion_protection=False,
            opts=pulumi.ResourceOptions(
                parent=self,
                depends_on=after,
                ignore_changes=IGNORED_CHANGES,
                # An address has one machine at a time, and so has a name.
                delete_before_replace=True,
            ),
        )

    def _disk(
        self,
        host: Host,
        resources: GcpRoleResources,
        own_labels: dict[str, str],
        after: list[pulumi.Resource],
    ) -> compute.Disk:
        """Declare a root disk apart from its machine.

        So it can grow, and the queue on it outlives the machine.
        """
        design = self._design
        return compute.Disk(
            f"{self._name}-{host.name}-disk",
            name=f"{design.name}-{host.name}",
            description=f"root disk of {host.name} of cluster {design.name}",
            project=design.project,
            zone=design.zone,
            image=resources.start_from(host.name, host.image),
            size=host.disk_gib,
            type=ROOT_DISK_TYPE,
            labels=own_labels,
            opts=pulumi.ResourceOptions(
                parent=self, depends_on=after, ignore_changes=["image"], delete_before_replace=True
            ),
        )
