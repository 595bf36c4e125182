"""What machines need of the network, the roles and the bucket: plain outputs, no component.

`infra.aws.cluster` fills these from the components, so that head and fleets can be looked at without them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pulumi

from infra.clouds import parts


@dataclass(frozen=True, slots=True, kw_only=True)
class Station(parts.Station):
    """What the machines of a role have in common.

    Attributes:
        profile: the instance profile's name.
        group: the security group's id.
        subnet: where the machines of the head are; nodes are launched in any of the private subnets.
    """

    profile: pulumi.Input[str]
    group: pulumi.Input[str]
    subnet: pulumi.Input[str] | None = None


Stations = Mapping[str, Station]
"""By role: controller, login, compute."""


@dataclass(frozen=True, slots=True)
class Foundry:
    """What the machines stand on that become images.

    Attributes:
        profile: the instance profile's name.
        group: the security group's id.
        subnet: a private one.
        bucket: the bucket's name.
        parent: the id of the image with which they begin.
    """

    profile: pulumi.Input[str]
    group: pulumi.Input[str]
    subnet: pulumi.Input[str]
    bucket: pulumi.Input[str]
    parent: pulumi.Input[str]
