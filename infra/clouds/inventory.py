"""What a cloud's cluster tells the stack's outputs of itself (`infra.provider.Inventory`)."""

from __future__ import annotations

from typing import Protocol

import pulumi
import pulumi_command as command

from infra.clouds.cloud import Place
from infra.clouds.reach import SLURMCTLD
from infra.clouds.ready import facts
from infra.node.model import ClusterDesign
from infra.provider import Inventory


class Seats(Protocol):
    """Attributes:
    private: host -> its private address.
    public: the same, for hosts that have one.
    """

    private: dict[str, pulumi.Output[str]]
    public: dict[str, pulumi.Output[str]]


def login_address(design: ClusterDesign, seats: Seats) -> pulumi.Output[str]:
    """The public address of the host that users log in to, or its private one."""
    login = design.login_hosts()[0].name
    return seats.public.get(login, seats.private[login])


def inventory(
    design: ClusterDesign,
    head: pulumi.Output[str],
    seats: Seats,
    login_ssh: pulumi.Output[str],
    waited: command.local.Command,
) -> Inventory:
    """Args:
    head: the id of the machine or the disk with which the queue lives and goes.
    login_ssh: the command for a shell on the login machine.
    waited: `infra.clouds.ready`'s.
    """
    found = facts(waited)
    return {
        "id": head,
        "login_address": login_address(design, seats),
        "controller_address": seats.private["controller"].apply(lambda ip: f"{ip}:{SLURMCTLD[0]}"),
        "login_ssh": login_ssh,
        "scheduler_version": found["scheduler_version"],
        "host_keys": found["host_keys"],
        "shared": pulumi.Output.from_input("/home"),
        "sweep": pulumi.Output.from_input(Place.of(design).named()),
    }
