"""The inventory of a cloud's cluster for the stack's outputs (`infra.inventory.Inventory`)."""

from __future__ import annotations

from typing import Protocol

import pulumi
import pulumi_command as command

from infra.clouds.firewall import SLURMCTLD
from infra.clouds.ready import facts
from infra.inventory import Inventory
from node.model import ClusterDesign


class Addresses(Protocol):
    """The addresses of a cluster's hosts.

    Attributes:
        private: host -> its private address.
        public: host -> its public address, for hosts that have one.
    """

    private: dict[str, pulumi.Output[str]]
    public: dict[str, pulumi.Output[str]]


def login_address(design: ClusterDesign, addresses: Addresses) -> pulumi.Output[str]:
    """The public address of the host that users log in to, or its private address if it has no public one."""
    login = design.login_hosts()[0].name
    return addresses.public.get(login, addresses.private[login])


def inventory(
    design: ClusterDesign,
    head: pulumi.Output[str],
    addresses: Addresses,
    login_ssh: pulumi.Output[str],
    wait: command.local.Command,
) -> Inventory:
    """The inventory of a cluster.

    Args:
        head: The id of the machine or the disk that holds Slurm's queue.
        login_ssh: The command for a shell on the login machine.
        wait: The command of `infra.clouds.ready`.
    """
    found = facts(wait)
    return {
        "id": head,
        "login_address": login_address(design, addresses),
        "controller_address": addresses.private["controller"].apply(lambda ip: f"{ip}:{SLURMCTLD[0]}"),
        "login_ssh": login_ssh,
        "scheduler_version": found["scheduler_version"],
        "host_keys": found["host_keys"],
        "shared": pulumi.Output.from_input("/home"),
    }
