"""A Slurm cluster on Compute Engine: its components, and the order in which they are deleted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pulumi

from infra.benchmark import Shell
from infra.clouds import shell
from infra.clouds.commands import ClusterRef
from infra.clouds.inventory import inventory, login_address
from infra.clouds.publishing import Bundle
from infra.clouds.ready import facts, ready
from infra.clouds.role_resources import BakedImages
from infra.clouds.site import site
from infra.clouds.termination import terminate_on_destroy
from infra.gcp import access, images, zones
from infra.gcp.addresses import GcpAddresses
from infra.gcp.bucket import GcpBucket
from infra.gcp.head import GcpHead
from infra.gcp.identity import AccessTargets, GcpAccounts, GcpIdentity
from infra.gcp.instance_templates import GcpInstanceTemplates
from infra.gcp.network import GcpNetwork
from infra.gcp.role_resources import RoleResources
from infra.gcp.secrets import GcpSecrets
from infra.gcp.storage import GcpStorage
from infra.ssh.shells import Endpoint
from node.bootstrap.vm.images import ROLE as IMAGE
from node.model import ClusterDesign, Host, Site
from node.sites import GcpSite

if TYPE_CHECKING:
    from infra.gcp.bake import GcpImages


class GcpCluster(pulumi.ComponentResource):
    """Network, service accounts, storage and templates, then the termination of nodes, then the head.

    A destroy deletes the head first, so that nothing launches nodes any more. Then it ends the nodes that the
    head has launched, and then it deletes the rest. A network that is replaced goes in the same order.
    """

    def __init__(self, name: str, design: ClusterDesign, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("slurm-stacks:index:GcpCluster", name, None, opts)
        own = pulumi.ResourceOptions(parent=self)
        self._name = name
        self._design = design = zones.with_zones(design)
        zones.compare(design)
        accounts = GcpAccounts(f"{name}-accounts", design, own)
        network = GcpNetwork(f"{name}-network", design, accounts.by_role.values(), own)
        bucket = GcpBucket(f"{name}-bucket", design, own)
        secrets = GcpSecrets(f"{name}-secrets", design, own)
        storage = GcpStorage(f"{name}-storage", design, network, own)
        targets = AccessTargets(bucket.bucket, secrets.munge, network.subnetwork)
        identity = GcpIdentity(f"{name}-identity", design, accounts, targets, own)
        published = Bundle(f"{name}-bundle", design, bucket, own)
        bake = self._bake(network, identity, bucket, published) if design.image.bake else None
        resources_by_role = self._role_resources(network, identity, bucket, bake.images if bake else {})
        addresses = GcpAddresses(f"{name}-addresses", design, resources_by_role, own)
        templates = GcpInstanceTemplates(
            f"{name}-instance-templates", design, resources_by_role["compute"], own
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
            f"{name}-head", design, resources_by_role, addresses, disks, termination, needed, own
        )
        wait = ready(
            f"{name}-ready",
            access.OPERATIONS,
            design,
            bucket.bucket,
            published.content,
            {host: machine.instance_id for host, machine in self._head.machines.items()},
            [self._head],
            self,
        )
        self._user = facts(wait)["login_user"]
        # The queue is on the disk, and stays the same when another machine gets the disk.
        head = self._head.disks["controller"].disk_id
        login_ssh = self._login_ssh(login_address(design, addresses))
        self.inventory = inventory(design, head, addresses, login_ssh, wait)
        self.register_outputs({"login": self.inventory["login_address"]})

    @property
    def head(self) -> pulumi.Resource:
        return self._head.machines["controller"]

    @property
    def shell(self) -> Shell:
        return shell.of(self._design, self)

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
        return access.proxy(ClusterRef.of(self._design), self._design.access.mode)

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
        own = pulumi.ResourceOptions(parent=self)
        return GcpImages(f"{self._name}-images", self._design, resources, needed, own)

    def _role_resources(
        self, network: GcpNetwork, identity: GcpIdentity, bucket: GcpBucket, baked_images: BakedImages
    ) -> dict[str, RoleResources]:
        """The resources that the machines of each role share."""
        image = images.image_id(self._design.image)
        return {
            role: RoleResources(
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
        """The command for a shell on the login machine. It needs the gcloud CLI, which sends a key to OS
        Login."""
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
