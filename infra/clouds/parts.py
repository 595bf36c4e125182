"""What the machines of a cluster have in common on every cloud: plain outputs, no component."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pulumi


@dataclass(frozen=True, slots=True, kw_only=True)
class Station:
    """What the machines of a role have in common; a provider adds what its network and its roles give them.

    Attributes:
        image: the cluster's machine image; a baked one wins, and a machine's own over both.
        bucket: the bucket's name.
        baked: host or partition -> the image that was baked for it.
    """

    image: pulumi.Input[str]
    bucket: pulumi.Input[str]
    baked: Mapping[str, pulumi.Input[str]] = field(default_factory=dict)

    def start_from(self, name: str, own: str | None) -> pulumi.Input[str]:
        """The image of a host or a partition.

        Args:
            own: the one that the stack file gives it.
        """
        return own or self.baked.get(name, self.image)


Baked = Mapping[str, Mapping[str, pulumi.Output[str]]]
"""Role -> host or partition -> the image that was baked for it."""
