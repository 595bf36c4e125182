"""What the machines of a cloud's cluster know beside their design: all but the driver is the same on each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pulumi

from infra.node.model import Site

SLURM_USER = "slurm"
"""Of Ubuntu's packages."""
CONTROLLER = "controller"


def site(addresses: Mapping[str, pulumi.Input[str]], **driver: pulumi.Input[str]) -> pulumi.Output[Site]:
    """Args:
    addresses: `Site.addresses`, the controller's among them.
    driver: `Site.driver`.
    """

    def made(known: Sequence[Mapping[str, str]]) -> Site:
        hosts, rest = known
        return Site(
            root="/",
            user=SLURM_USER,
            controller_host=CONTROLLER,
            controller_address=hosts[CONTROLLER],
            driver=dict(rest),
            addresses=dict(hosts),
        )

    return pulumi.Output.all(pulumi.Output.all(**addresses), pulumi.Output.all(**driver)).apply(made)


def json_of(values: Mapping[str, pulumi.Input[object]]) -> pulumi.Output[str]:
    """As the driver's settings hold what is more than a text."""
    return pulumi.Output.json_dumps(dict(values), sort_keys=True)
