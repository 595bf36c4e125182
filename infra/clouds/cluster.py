"""The parts of a cluster that are alike on every cloud, for the component that joins them.

They are what the machines of a role share, the site that machines read, the wait for their boot, the
termination of nodes, and the inventory for the stack's outputs.

The termination is a resource that does nothing until a destroy, and then ends what Slurm launched. Nodes are
not Pulumi resources, and a running controller would launch more of them after the termination. So the head
depends on this resource, and this resource depends on the network, the templates and the roles. A plain
`pulumi destroy` then deletes the head first, ends the nodes, and only then deletes what the nodes need.

A network that is replaced goes in the same order. The termination is replaced with it, and is deleted before
it is made again. What cannot stay without it is deleted first: not what `depends_on` names, but what has a
property from it that cannot be changed, and the head has one (`behind`). The head's successor starts in the
new network when the nodes of the old one have ended, and the old subnets go last.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import pulumi
import pulumi_command as command

from infra.clouds import commands
from infra.clouds.commands import ClusterRef, WaitRequest
from infra.clouds.firewall import SLURMCTLD
from infra.inventory import Inventory
from infra.program.launcher import INTERPRETER
from node.design.model import ClusterDesign, Site
from node.design.sites import AwsSite, GcpSite, MountSource

BakedImages = Mapping[str, Mapping[str, pulumi.Output[str]]]
"""role -> host or partition -> the image that was baked for it."""
SLURM_USER = "slurm"
"""The user that Ubuntu's packages make."""
CONTROLLER = "controller"


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleResources:
    """The resources that the machines of a role share.

    A provider adds what its network and its roles give them.

    Attributes:
        image: The cluster's machine image. A baked image takes precedence over it, and an image that the
            stack file gives a host or a partition takes precedence over both.
        bucket: The bucket's name.
        baked_images: host or partition -> the image that was baked for it.
    """

    image: pulumi.Input[str]
    bucket: pulumi.Input[str]
    baked_images: Mapping[str, pulumi.Input[str]] = field(default_factory=dict)

    def start_from(self, name: str, image: str | None) -> pulumi.Input[str]:
        """Return the image that a host or a partition starts from.

        Args:
            image: The image that the stack file gives it.
        """
        return image or self.baked_images.get(name, self.image)


def site(
    addresses: Mapping[str, pulumi.Input[str]],
    bucket: pulumi.Input[str],
    secret: pulumi.Input[str],
    mounts: pulumi.Output[dict[str, MountSource]],
    cloud: pulumi.Output[AwsSite] | pulumi.Output[GcpSite],
) -> pulumi.Output[Site]:
    """Return the site of a cluster, once all of its parts are known.

    Args:
        addresses: `Site.addresses`, with the controller's among them.
        bucket: The name of the cluster's bucket.
        secret: The secret that holds the munge key.
        mounts: `Site.mounts`.
        cloud: What only this provider has.
    """

    def made(known: Mapping[str, Any]) -> Site:
        return Site(
            root="/",
            user=SLURM_USER,
            controller_host=CONTROLLER,
            controller_address=known["addresses"][CONTROLLER],
            **known,
        )

    return pulumi.Output.all(
        addresses=dict(addresses), bucket=bucket, secret=secret, mounts=mounts, cloud=cloud
    ).apply(made)


def mount_sources(
    known: Mapping[str, Mapping[str, Any]],
) -> pulumi.Output[dict[str, MountSource]]:
    """Return where machines find each mount, by its path, from the fields of `MountSource`."""
    fields: pulumi.Output[dict[str, dict[str, str]]] = pulumi.Output.from_input(
        {path: dict(values) for path, values in known.items()}
    )
    return fields.apply(lambda all_known: {path: MountSource(**values) for path, values in all_known.items()})


def wait_for_boot(
    name: str,
    module: str,
    design: ClusterDesign,
    bucket: pulumi.Output[str],
    published: pulumi.Output[str],
    machines: Mapping[str, pulumi.Output[str]],
    after: Sequence[pulumi.Resource],
    parent: pulumi.Resource,
) -> command.local.Command:
    """Declare a wait until the head's machines have booted with what is published.

    It waits when the resource is created, and again when a machine or what is published changes.


    Args:
        module: The module of the provider's operations.
        bucket: The bucket's name.
        published: The content of `current.json`.
        machines: host -> the id of its machine.
    """
    line = commands.line(module, "wait", design)
    return command.local.Command(
        name,
        create=line,
        update=line,
        interpreter=INTERPRETER,
        stdin=bucket.apply(lambda known: WaitRequest.of(design, known).text()),
        environment={
            "PUBLISHED": published,
            **{f"MACHINE_{host.replace('-', '_').upper()}": id_ for host, id_ in machines.items()},
        },
        opts=pulumi.ResourceOptions(parent=parent, depends_on=list(after)),
    )


def boot_facts(wait: command.local.Command) -> pulumi.Output[dict[str, Any]]:
    """Return what the wait has found out: `host_keys`, `login_user`, `scheduler_version`."""
    return wait.stdout.apply(parse_boot_facts)


def parse_boot_facts(printed: str) -> dict[str, Any]:
    """Return what the wait printed, as values.

    A plan waits for nothing and gets a placeholder for each value.
    """
    try:
        facts: dict[str, Any] = json.loads(printed)
    except ValueError:
        if not printed.startswith("<"):
            raise
        prefix = printed[:-1]
        facts = {name: f"{prefix}.{name}>" for name in ("login_user", "scheduler_version")}
        facts["host_keys"] = [f"{prefix}.host_keys[0]>"]
    return facts


class Addresses(Protocol):
    """The addresses of a cluster's hosts.

    Attributes:
        private: host -> its private address.
        public: host -> its public address, for hosts that have one.
    """

    private: dict[str, pulumi.Output[str]]
    public: dict[str, pulumi.Output[str]]


def login_address(design: ClusterDesign, addresses: Addresses) -> pulumi.Output[str]:
    """Return the login machine's public address, or its private one if it has no public one."""
    login = design.login_hosts()[0].name
    return addresses.public.get(login, addresses.private[login])


def inventory(
    design: ClusterDesign,
    head: pulumi.Output[str],
    addresses: Addresses,
    login_machine: pulumi.Output[str],
    login_ssh: pulumi.Output[str],
    wait: command.local.Command,
) -> Inventory:
    """Return the inventory of a cluster.

    Args:
        head: The id of the machine or the disk that holds Slurm's queue.
        login_machine: What the access mode takes for the login machine.
        login_ssh: The command for a shell on the login machine.
        wait: The command of `infra.clouds.cluster`.
    """
    facts = boot_facts(wait)
    return {
        "id": head,
        "login_address": login_address(design, addresses),
        "login_machine": login_machine,
        "controller_address": addresses.private["controller"].apply(lambda ip: f"{ip}:{SLURMCTLD[0]}"),
        "login_ssh": login_ssh,
        "scheduler_version": facts["scheduler_version"],
        "host_keys": facts["host_keys"],
        "shared": pulumi.Output.from_input("/home"),
    }


def terminate_on_destroy(
    name: str,
    module: str,
    design: ClusterDesign,
    network: Sequence[pulumi.Input[str]],
    after: Sequence[pulumi.Resource],
    parent: pulumi.Resource,
) -> command.local.Command:
    """Declare the termination of a cluster's nodes.

    Args:
        module: The module of the provider's operations.
        network: Ids that are others when, and only when, the network of all nodes is another one. One more
            zone must not end the nodes of the others.
        after: What the nodes need. It is deleted after the termination.
    """
    place = ClusterRef.of(design)
    return command.local.Command(
        name,
        interpreter=INTERPRETER,
        delete=commands.line(module, "terminate-nodes", design, *place.arguments()),
        # A cluster that moves leaves nodes where it was. An update would not end those, so a move replaces
        # this.
        triggers=[*place.where(), *network],
        opts=pulumi.ResourceOptions(parent=parent, depends_on=list(after), delete_before_replace=True),
    )


def behind(base: pulumi.Resource, value: pulumi.Input[str]) -> pulumi.Output[str]:
    """Return the value, for a property that cannot be changed of what must be deleted before its base is.

    Such are machines, which must go before the nodes are ended, and a queue before its environment.
    """
    plain: Any = pulumi.Output.from_input(value)
    reached: pulumi.Output[str] = pulumi.Output.all(plain, base.urn).apply(lambda known: str(known[0]))
    return reached
