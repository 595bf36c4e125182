"""A Slurm cluster on EC2: the components, put together, and the order in which they go again."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pulumi
import pulumi_aws as aws

from infra import bundle
from infra.aws import images, way_in, zones
from infra.aws.bucket import AwsBucket, AwsBundle
from infra.aws.fleets import AwsFleets
from infra.aws.head import AwsHead
from infra.aws.identity import AwsIdentity, Reach
from infra.aws.logs import AwsLogs
from infra.aws.network import AwsNetwork
from infra.aws.parts import Station
from infra.aws.seats import AwsSeats
from infra.aws.secrets import AwsSecrets
from infra.aws.storage import AwsDisks, AwsStorage
from infra.clouds.cloud import PYTHON
from infra.clouds.inventory import inventory, login_address
from infra.clouds.parts import Baked
from infra.clouds.ready import ready
from infra.clouds.site import json_of, site
from infra.clouds.sweep import sweep
from infra.node.model import ClusterDesign, Host
from infra.ssh.shells import Endpoint

if TYPE_CHECKING:
    from infra.aws.bake import AwsBake


class AwsCluster(pulumi.ComponentResource):
    """Network, roles, storage, templates; the sweep; the head upon them.

    Destroying it takes the head first, so that nobody launches any more, then what it has launched, then the
    rest.
    """

    def __init__(self, name: str, design: ClusterDesign, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("slurm-stacks:index:AwsCluster", name, None, opts)
        own = pulumi.ResourceOptions(parent=self)
        self._name = name
        where = zones.find(design)
        self._design = design = placed(design, where)
        network = AwsNetwork(f"{name}-network", design, where, own)
        bucket = AwsBucket(f"{name}-bucket", design, own)
        secrets = AwsSecrets(f"{name}-secrets", design, own)
        logs = AwsLogs(f"{name}-logs", design, own)
        storage = AwsStorage(f"{name}-storage", design, network, own)
        reach = Reach(
            bucket.arn, secrets.munge, logs.arn, list(network.subnets.values()), [network.groups["compute"]]
        )
        identity = AwsIdentity(f"{name}-identity", design, reach, own)
        published = AwsBundle(f"{name}-bundle", design, bucket, own)
        baked = self._bake(network, identity, bucket, published) if design.image.bake else None
        stations = self._stations(network, identity, bucket, baked.made if baked else {})
        seats = AwsSeats(f"{name}-seats", design, stations, network.routes, own)
        fleets = AwsFleets(f"{name}-fleets", design, stations["compute"], own)
        known = site(
            seats.private,
            region=str(design.region),
            cluster=design.name,
            subnets=json_of(network.subnets),
            templates=json_of(fleets.templates),
            bucket=bucket.bucket,
            secret=secrets.munge,
            log_group=logs.group,
            **storage.site(),
        )
        published.publish(known)
        parts = [network, bucket, secrets, logs, storage, identity, seats, fleets, published]
        ground = [*parts, *([baked] if baked else [])]
        swept = sweep(f"{name}-sweep", way_in.OPERATIONS, design, ground, self)
        needed = [swept, published.current, *identity.granted, *network.routes]
        self._head = AwsHead(f"{name}-head", design, stations, seats, needed, own)
        disks = AwsDisks(f"{name}-disks", storage, self._machine("controller").id, own)
        waited = ready(
            f"{name}-ready",
            way_in.OPERATIONS,
            design,
            bucket.bucket,
            published.named,
            {host: machine.id for host, machine in self._head.machines.items()},
            [self._head, disks],
            self,
        )
        login_ssh = self._login_ssh(login_address(design, seats))
        self.inventory = inventory(design, self._machine("controller").id, seats, login_ssh, waited)
        self.register_outputs({"login": self.inventory["login_address"]})

    @property
    def head(self) -> pulumi.Resource:
        return self._head.machines["controller"]

    @property
    def endpoint(self) -> Endpoint:
        """A public address, or an instance's id for Session Manager."""
        public = self._design.access.mode == "ssh"
        host = self.inventory["login_address"] if public else self._machine(self._login.name).id
        return Endpoint(host, way_in.USER, self.inventory["host_keys"])

    @property
    def proxy_command(self) -> str | None:
        access = self._design.access
        return way_in.ssh_proxy(str(self._design.region), access.mode, access.key, PYTHON)

    @property
    def _login(self) -> Host:
        return self._design.login_hosts()[0]

    def _machine(self, host: str) -> aws.ec2.Instance:
        return self._head.machines[host]

    def _bake(
        self, network: AwsNetwork, identity: AwsIdentity, bucket: AwsBucket, published: AwsBundle
    ) -> AwsBake:
        # Here and not above: few stacks bake.
        from infra.aws import bake
        from infra.node.bootstrap.vm.images import ROLE

        design = self._design
        foundry = bake.foundry(design, network, identity.profiles[ROLE], bucket.bucket)
        needed = [*published.images, *identity.granted, *network.routes, *network.rules[ROLE]]
        own = pulumi.ResourceOptions(parent=self)
        return bake.AwsBake(f"{self._name}-bake", design, foundry, needed, own)

    def _stations(
        self, network: AwsNetwork, identity: AwsIdentity, bucket: AwsBucket, baked: Baked
    ) -> dict[str, Station]:
        """What the machines of each role have in common."""
        image = images.image_id(self._design.image)
        home = {host.role: network.subnet(host) for host in self._design.hosts}
        return {
            role: Station(
                profile=profile,
                group=network.groups[role],
                subnet=home.get(role),
                image=image,
                bucket=bucket.bucket,
                baked=baked.get(role, {}),
            )
            for role, profile in identity.profiles.items()
        }

    def _login_ssh(self, address: pulumi.Output[str]) -> pulumi.Output[str]:
        """For anybody's shell where that is possible; else by way of this checkout, which brings a key."""
        design = self._design
        access, user = design.access, way_in.USER
        if access.mode == "ssh":
            return address.apply(lambda host: f"ssh {user}@{host}")
        if access.key is None:
            return pulumi.Output.from_input(f"{bundle.ROOT / 'cluster'} ssh --stack {design.stack}")
        identity: pulumi.Output[str] = self._machine(self._login.name).id
        return identity.apply(lambda host: f"ssh -o ProxyCommand='{self.proxy_command}' {user}@{host}")


def placed(design: ClusterDesign, where: zones.Zones) -> ClusterDesign:
    """The design with the zones in which each partition's nodes may start: what machines read knows them all.

    Neither a placement group nor EFA reaches from one zone into another, so those partitions get one.
    """
    partitions = []
    for partition in design.partitions:
        found = where.partitions[partition.name]
        one = partition.placement == "cluster" or partition.efa
        partitions.append(replace(partition, zones=found[:1] if one else found))
    return replace(design, partitions=tuple(partitions))
