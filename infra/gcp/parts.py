"""What machines need of the network, the service accounts and the bucket: plain outputs, no component.

`infra.gcp.cluster` fills these from the components, so that head and fleets can be looked at without them.
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
        account: the service account's email address, by which the firewall's rules find the machines, too.
        subnetwork: the subnetwork's self link.
    """

    account: pulumi.Input[str]
    subnetwork: pulumi.Input[str]


Stations = Mapping[str, Station]
"""By role: controller, login, compute."""
