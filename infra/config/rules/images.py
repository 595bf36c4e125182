"""Rules of machines' images."""

from __future__ import annotations

import re

from infra.config.hosts import ImageConfig, OwnImageConfig
from infra.config.mistakes import Location
from infra.config.rules.context import CLUSTER, Context

NO_IMAGE = "nothing: local machines boot from no image"
IMAGE_IDS = {
    "aws": (r"ami-[0-9a-f]{8,17}", "ami-0123456789abcdef0"),
    "gcp": (
        r"(?!ami-[0-9a-f]+$)(projects/[a-z0-9:.-]+/global/images/)?(family/)?[a-z][a-z0-9-]*",
        "projects/…/global/images/…",
    ),
}


def check_image(c: Context, image: ImageConfig) -> None:
    """Check that the cluster's image is an id or a distribution, not both. Both can be baked."""
    at = (*CLUSTER, "image")
    if image.bake and c.provider != "local" and _all_have_own(c):
        c.add(
            "image.bake-unused",
            (*at, "bake"),
            True,
            "false where every machine has an image of its own",
            "remove bake, or the `image` of those machines that are to start from a baked one",
        )
    if image.id is not None and "source" in image.model_fields_set:
        c.add(
            "image.id-and-source",
            (*at, "source"),
            image.source,
            "an id or a source, not both",
            "remove one of the two",
        )
    if c.provider == "local" and image.bake:
        c.add("image.local", (*at, "bake"), True, NO_IMAGE, "remove it")
    if image.revision is not None and not image.bake:
        c.add(
            "image.revision-unused",
            (*at, "revision"),
            image.revision,
            "a revision only with image: {bake: true}",
            "remove it: other images are not built here",
        )
    if image.id is not None:
        check_image_id(c, image.id, (*at, "id"))


def _all_have_own(c: Context) -> bool:
    """Return whether every machine has its own image. Login machines always have the cluster's."""
    cluster = c.cluster
    images = [cluster.controller.image, *(group.image for _, group in c.groups())]
    return None not in images and not cluster.login.count


def check_own_image(c: Context, image: OwnImageConfig | None, at: Location) -> None:
    if image is not None:
        check_image_id(c, image.id, (*at, "id"))


def check_image_id(c: Context, image: str, at: Location) -> None:
    """Check that an image's id has the cloud's form."""
    if c.provider == "local":
        c.add("image.local", at, image, NO_IMAGE, "remove it")
        return
    pattern, example = IMAGE_IDS[c.provider]
    if not re.fullmatch(pattern, image):
        c.add("image.id", at, image, f"an image's id, like {example}")
