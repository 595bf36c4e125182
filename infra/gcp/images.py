"""The image that machines boot from: Ubuntu's own, by its family, or one that the stack file names."""

from __future__ import annotations

import pulumi
from pulumi_gcp import compute

from node.model import Image

PROJECT = "ubuntu-os-cloud"
"""The project in which Canonical publishes images."""
FAMILIES = {"ubuntu-24.04": "ubuntu-2404-lts-amd64"}
"""Distribution -> the family of its images, of which the newest is used. Every machine of the catalog is
x86_64."""
DISK_TYPE = "pd-balanced"
"""The type of root disks. It is on SSD, and N1, N2 and E2 all accept it."""


def image_id(image: Image) -> pulumi.Input[str]:
    """The cluster's image, or the image from which baked images are built.

    The family is resolved to one image at each `up`. New nodes get the newest image, all nodes of one launch
    get the same image, and the head ignores the change.
    """
    if image.id is not None:
        return image.id
    family = FAMILIES[image.source or "ubuntu-24.04"]
    return compute.get_image_output(project=PROJECT, family=family).self_link
