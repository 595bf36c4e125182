"""What the machines of a cloud run and know, as objects of the cluster's bucket, and the order they come in.

The layout of the bucket is that of `infra.bundle`, which the local stack uses as well.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import pulumi

from infra import bundle
from infra.clouds import recipes
from infra.program import mode, stand_ins
from infra.program.stand_ins import StandIns
from node.design.model import ClusterDesign, Settings, Site
from node.loader import CURRENT, IMAGE


@dataclass(frozen=True, slots=True)
class BucketObject:
    """An object to be made, from a text or from a file.

    Attributes:
        part: loader | code | settings | current | image-settings | image. It ends the resource's name.
        key: The object's key in the bucket.
    """

    part: str
    key: pulumi.Input[str]
    content: pulumi.Output[str] | None = None
    source: pulumi.Asset | None = None


class Bucket(Protocol):
    """A cloud's bucket, which declares objects in itself.

    Attributes:
        bucket: The bucket's name.
    """

    bucket: pulumi.Output[str]

    def put(self, name: str, item: BucketObject, opts: pulumi.ResourceOptions) -> pulumi.Resource:
        """Declare an object of the bucket as a resource of this name."""
        ...


class Bundle(pulumi.ComponentResource):
    """The objects that machines fetch at their boot.

    Attributes:
        images: What must be there before a machine becomes an image. It is empty where no image is baked.
        current: The object that names the others, made last: whoever sees it sees the others as well.
        content: The text of that object.

    Args:
        values: What stands in the design for values of other resources.
    """

    current: pulumi.Resource
    content: pulumi.Output[str]

    def __init__(
        self,
        name: str,
        design: ClusterDesign,
        bucket: Bucket,
        values: StandIns = stand_ins.NONE,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("slurm-stacks:index:Bundle", name, None, opts)
        self._name = name
        self._design = design
        self._bucket = bucket
        self._values = values
        self._code = bundle.node_archive(design)
        loader = bundle.loader_archive(design.provider)
        key = bundle.current(self._code, b"")["code"]["key"]
        self._archives = [
            self._put(BucketObject("loader", "loader.py", source=_asset(loader))),
            self._put(BucketObject("code", key, source=_asset(self._code))),
        ]
        self.images: Sequence[pulumi.Resource] = []
        if design.image.bake:
            # The site of a machine that becomes an image is known before anything of the cluster is there.
            site = pulumi.Output.from_input(recipes.site(design))
            settings, image = self._objects(site, "image-settings", "image", IMAGE)
            self.images = self._publish(settings, image)
        self.register_outputs({"bucket": bucket.bucket})

    def publish(self, site: pulumi.Input[Site]) -> None:
        """Publish the settings, which need what is known only when addresses and templates are there."""
        settings, current = self._objects(pulumi.Output.from_input(site), "settings", "current", CURRENT)
        *_, self.current = self._publish(settings, current)
        # This is not taken from the object, because a provider may treat all contents as secrets.
        self.content = pulumi.Output.from_input(current.content).apply(str)

    def _objects(
        self, site: pulumi.Output[Site], settings_part: str, current_part: str, current_key: str
    ) -> tuple[BucketObject, BucketObject]:
        """Return the settings, and the object that names the code and the settings."""
        design, code = self._design, self._code
        text = site.apply(lambda known: bundle.settings_object(Settings(design, known)).decode())
        text = text.apply(self._values.fill)
        named = text.apply(lambda known: bundle.current(code, known.encode()))
        content = named.apply(lambda value: json.dumps(value, indent=1, sort_keys=True))
        settings = BucketObject(settings_part, named["settings"]["key"], content=text)
        return settings, BucketObject(current_part, current_key, content=content)

    def _publish(self, settings: BucketObject, current: BucketObject) -> list[pulumi.Resource]:
        before = [*self._archives, self._put(settings)]
        return [*before, self._put(current, before)]

    def _put(self, item: BucketObject, after: Sequence[pulumi.Resource] = ()) -> pulumi.Resource:
        opts = pulumi.ResourceOptions(parent=self, depends_on=list(after))
        return self._bucket.put(f"{self._name}-{item.part}", item, opts)


def _asset(archive: bytes) -> pulumi.FileAsset:
    """Return an archive as a file of this machine, because Pulumi takes bytes in no other way."""
    path = bundle.cached_file("code", ".zip", archive, write=mode.current() != "plan")
    return pulumi.FileAsset(str(path))
