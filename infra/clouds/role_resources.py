"""What the machines of a role share on every cloud, as plain outputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pulumi


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleResources:
    """The resources that the machines of a role share. A provider adds what its network and its roles give
    them.

    Attributes:
        image: The cluster's machine image. A baked image takes precedence over it, and an image that the
            stack file gives a host or a partition takes precedence over both.
        bucket: The bucket's name.
        baked_images: host or partition -> the image that was baked for it.
    """

    image: pulumi.Input[str]
    bucket: pulumi.Input[str]
    baked_images: Mapping[str, pulumi.Input[str]] = field(default_factory=dict)

    def start_from(self, name: str, own: str | None) -> pulumi.Input[str]:
        """The image that a host or a partition starts from.

        Args:
            own: The image that the stack file gives it.
        """
        return own or self.baked_images.get(name, self.image)


BakedImages = Mapping[str, Mapping[str, pulumi.Output[str]]]
"""role -> host or partition -> the image that was baked for it."""
