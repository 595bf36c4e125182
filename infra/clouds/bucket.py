"""What machines run and know, in a cloud's bucket: which objects, and in which order they come."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import pulumi

from infra.clouds import objects
from infra.clouds.objects import Object
from infra.node.model import ClusterDesign, Site


class Bundle(pulumi.ComponentResource):
    """The layout of `infra.bundle`: the same as the local stack's.

    Attributes:
        images: what must be there before a machine becomes an image; empty where none does.
        current: the object that names the others, once it is published. Whoever sees it sees them too.
        named: what is in it.

    Args:
        bucket: the bucket's name.
    """

    TYPE: ClassVar[str]
    """Of the cloud's component."""
    current: pulumi.Resource
    named: pulumi.Output[str]

    def __init__(
        self,
        name: str,
        design: ClusterDesign,
        bucket: pulumi.Input[str],
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__(self.TYPE, name, None, opts)
        self._name = name
        self._design = design
        self._first = [self._object(one) for one in objects.first(design)]
        self.images: Sequence[pulumi.Resource] = (
            self._after_first(*objects.of_images(design)) if design.image.bake else []
        )
        self.register_outputs({"bucket": bucket})

    def publish(self, site: pulumi.Input[Site]) -> None:
        """Args:
        site: what is known once addresses and templates are there.
        """
        settings, last = objects.settings(self._design, site)
        *_, self.current = self._after_first(settings, last)
        # Not from the object: a provider may take all contents for secrets, and this one is none.
        self.named = pulumi.Output.from_input(last.content).apply(str)

    def _after_first(self, settings: Object, last: Object) -> list[pulumi.Resource]:
        made = [*self._first, self._object(settings)]
        return [*made, self._object(last, made)]

    @abstractmethod
    def _object(self, one: Object, after: Sequence[pulumi.Resource] = ()) -> pulumi.Resource:
        """The cloud's resource, which is made after the others."""
