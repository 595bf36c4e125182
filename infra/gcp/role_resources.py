"""What machines need of the network, the service accounts and the bucket, as plain outputs.

`infra.gcp.cluster` fills these from the components, so that the head and the instance templates can be tested
without the components.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pulumi

from infra.clouds import role_resources


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleResources(role_resources.RoleResources):
    """The resources that the machines of a role share.

    Attributes:
        account: The service account's email address, by which the firewall's rules find the machines.
        subnetwork: The subnetwork's self link.
    """

    account: pulumi.Input[str]
    subnetwork: pulumi.Input[str]


ResourcesByRole = Mapping[str, RoleResources]
"""controller | login | compute | image -> its resources."""
