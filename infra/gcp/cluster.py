"""A Slurm cluster on Compute Engine: the components, put together, and the order in which they go again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pulumi

from infra.clouds.cloud import Place
from infra.clouds.inventory import inventory, login_address
from infra.clouds.parts import Baked
from infra.clouds.ready import facts, ready
from infra.clouds.site import json_of, site
from infra.clouds.sweep import sweep
from infra.gcp import images, logs, operations, way_in, zones
from infra.gcp.bucket import GcpBucket, GcpBundle
from infra.gcp.fleets import GcpFleets
from infra.gcp.head import GcpHead
from infra.gcp.identity import GcpAccounts, GcpIdentity, Reach
from infra.gcp.network import GcpNetwork
from infra.gcp.parts import Station
from infra.gcp.seats import GcpSeats
from infra.gcp.secrets import GcpSecrets
from infra.gcp.storage import GcpStorage
from infra.node.bootstrap.vm.images import ROLE as IMAGE
from infra.node.model import ClusterDesign, Host, Site
from infra.ssh.shells import Endpoint

if TYPE_CHECKING:
    from infra.gcp.bake import GcpBake


class GcpCluster(pulumi.ComponentResource):
    """Network, service accounts, storage, templates; the sweep; the head upon them.

    Destroying it takes the head first, so that nobody launches any more, then what it has launched, then the
    rest.
    """

    def __init__(self, name: str, design: ClusterDesign, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("slurm-stacks:index:GcpCluster", name, None, opts)
        own = pulumi.ResourceOptions(parent=self)
        self._name = name
        self._design = design = zones.placed(design)
        zones.compare(design)
        accounts = GcpAccounts(f"{name}-accounts", design, own)
        network = GcpNetwork(f"{name}-network", design, accounts.of.values(), own)
        bucket = GcpBucket(f"{name}-bucket", design, own)
        secrets = GcpSecrets(f"{name}-secrets", design, own)
        storage = GcpStorage(f"{name}-storage", design, network, own)
        reach = Reach(bucket.bucket, secrets.munge, network.subnetwork)
        identity = GcpIdentity(f"{name}-identity", design, accounts, reach, own)
        published = GcpBundle(f"{name}-bundle", design, bucket.bucket, own)
        baked = self._bake(network, identity, bucket, published) if design.image.bake else None
        stations = self._stations(network, identity, bucket, baked.made if baked else {})
        seats = GcpSeats(f"{name}-seats", design, stations, own)
        fleets = GcpFleets(f"{name}-fleets", design, stations["compute"], own)
        published.publish(self._site(seats, network, fleets, bucket, secrets, storage))
        parts = [accounts, network, bucket, secrets, storage, identity, seats, fleets, published]
        ground = [*parts, *([baked] if baked else [])]
        swept = sweep(f"{name}-sweep", operations.MODULE, design, ground, self)
        needed = [swept, published.current, *identity.granted, *network.routes]
        self._head = GcpHead(f"{name}-head", design, stations, seats, storage.attached(), needed, own)
        waited = ready(
            f"{name}-ready",
            operations.MODULE,
            design,
            bucket.bucket,
            published.named,
            {host: machine.instance_id for host, machine in self._head.machines.items()},
            [self._head],
            self,
        )
        self._user = facts(waited)["login_user"]
        # The queue is on the disk: another machine with it has the same.
        head = self._head.disks["controller"].disk_id
        login_ssh = self._login_ssh(login_address(design, seats))
        self.inventory = inventory(design, head, seats, login_ssh, waited)
        self.register_outputs({"login": self.inventory["login_address"]})

    @property
    def head(self) -> pulumi.Resource:
        return self._head.machines["controller"]

    @property
    def endpoint(self) -> Endpoint:
        """A public address, or an instance's name for the Identity-Aware Proxy."""
        public = self._design.access.mode == "ssh"
        login = self._head.machines[self._login.name]
        return Endpoint(
            self.inventory["login_address"] if public else login.name,
            # Everybody's own: who changes the benchmark is not always who has made the cluster.
            "",
            self.inventory["host_keys"],
            ask=way_in.ask(Place.of(self._design)),
        )

    @property
    def proxy_command(self) -> str | None:
        return way_in.proxy(Place.of(self._design), self._design.access.mode)

    @property
    def _login(self) -> Host:
        return self._design.login_hosts()[0]

    def _bake(
        self, network: GcpNetwork, identity: GcpIdentity, bucket: GcpBucket, published: GcpBundle
    ) -> GcpBake:
        # Here and not above: few stacks bake.
        from infra.gcp.bake import GcpBake

        station = self._stations(network, identity, bucket, {})[IMAGE]
        needed = [*published.images, *identity.granted, *network.routes]
        own = pulumi.ResourceOptions(parent=self)
        return GcpBake(f"{self._name}-images", self._design, station, needed, own)

    def _stations(
        self, network: GcpNetwork, identity: GcpIdentity, bucket: GcpBucket, baked: Baked
    ) -> dict[str, Station]:
        """What the machines of each role have in common."""
        image = images.image_id(self._design.image)
        return {
            role: Station(
                account=email,
                subnetwork=network.subnetwork,
                image=image,
                bucket=bucket.bucket,
                baked=baked.get(role, {}),
            )
            for role, email in identity.emails.items()
        }

    def _site(
        self,
        seats: GcpSeats,
        network: GcpNetwork,
        fleets: GcpFleets,
        bucket: GcpBucket,
        secrets: GcpSecrets,
        storage: GcpStorage,
    ) -> pulumi.Output[Site]:
        design = self._design
        return site(
            seats.private,
            project=str(design.project),
            region=str(design.region),
            zone=str(design.zone),
            cluster=design.name,
            network=network.network,
            subnetwork=network.subnetwork,
            templates=json_of(fleets.templates),
            zones=json_of({partition.name: partition.zones for partition in design.partitions}),
            bucket=bucket.bucket,
            secret=secrets.munge,
            **storage.site(),
            **logs.SITE,
        )

    def _login_ssh(self, address: pulumi.Output[str]) -> pulumi.Output[str]:
        """For anybody's shell with the gcloud CLI; it brings a key to OS Login by itself."""
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
