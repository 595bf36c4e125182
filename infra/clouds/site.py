"""What the machines of a cloud's cluster know beside their design: all but the driver is the same on each."""

from __future__ import annotations

from collections.abc import Mapping

import pulumi

from infra.node.model import Site

SLURM_USER = "slurm"
"""Of Ubuntu's packages."""


def site(controller: pulumi.Output[str], **driver: pulumi.Input[str]) -> pulumi.Output[Site]:
    """Args:
    controller: the controller's address.
    driver: `Site.driver`.
    """
    known = pulumi.Output.all(address=controller, **driver)

    def made(values: Mapping[str, str]) -> Site:
        return Site(
            root="/",
            user=SLURM_USER,
            controller_host="controller",
            controller_address=values["address"],
            driver={name: value for name, value in values.items() if name != "address"},
        )

    return known.apply(made)


def json_of(values: Mapping[str, pulumi.Input[object]]) -> pulumi.Output[str]:
    """As the driver's settings hold what is more than a text."""
    return pulumi.Output.json_dumps(dict(values), sort_keys=True)
