"""What machines boot from: Ubuntu's own image by its family, or an image that the stack names."""

from __future__ import annotations

import pulumi
from pulumi_gcp import compute

from infra.node.model import Image

PROJECT = "ubuntu-os-cloud"
"""Canonical publishes there."""
FAMILIES = {"ubuntu-24.04": "ubuntu-2404-lts-amd64"}
"""The newest image of a distribution; every machine of the catalog is x86_64."""
DISK_TYPE = "pd-balanced"
"""Of root disks: SSD, and what N1, N2 and E2 all take."""


def image_id(image: Image) -> pulumi.Input[str]:
    """The cluster's image, or the one with which baked ones begin.

    The family is resolved at each `up`, to one image: new nodes get a new image and all of one launch the
    same, the head ignores the change.
    """
    if image.id is not None:
        return image.id
    family = FAMILIES[image.source or "ubuntu-24.04"]
    return compute.get_image_output(project=PROJECT, family=family).self_link
