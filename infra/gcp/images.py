"""The image that machines boot from: the distribution's, by its family, or one that the stack file names."""

from __future__ import annotations

import pulumi
from pulumi_gcp import compute

from infra.config import distributions
from node.model import Image

DISK_TYPE = "pd-balanced"
"""The type of root disks. It is on SSD, and N1, N2 and E2 all accept it."""


def image_id(image: Image) -> pulumi.Input[str]:
    """The cluster's image, or the image from which baked images are built.

    The family is resolved to one image at each `up`. New nodes get the newest image, all nodes of one launch
    get the same image, and the head ignores the change.
    """
    if image.id is not None:
        return image.id
    row = distributions.of(image.source).google
    return compute.get_image_output(project=row.project, family=row.family).self_link
