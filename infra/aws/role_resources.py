"""What machines need of the network, the IAM roles and the bucket, as plain outputs.

`infra.aws.cluster` fills these from the components, so that the head and the launch templates can be tested
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
        profile: The instance profile's name.
        group: The security group's id.
        subnet: The subnet of machines of the head. Nodes are launched in any of the private subnets.
    """

    profile: pulumi.Input[str]
    group: pulumi.Input[str]
    subnet: pulumi.Input[str] | None = None


ResourcesByRole = Mapping[str, RoleResources]
"""controller | login | compute | image -> its resources."""


@dataclass(frozen=True, slots=True)
class ImageBuild:
    """The resources of the machines that become images.

    Attributes:
        profile: The instance profile's name.
        group: The security group's id.
        subnet: The id of a private subnet.
        bucket: The bucket's name.
        parent: The id of the image that the machines start from.
    """

    profile: pulumi.Input[str]
    group: pulumi.Input[str]
    subnet: pulumi.Input[str]
    bucket: pulumi.Input[str]
    parent: pulumi.Input[str]
