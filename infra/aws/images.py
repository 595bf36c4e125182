"""The image that machines boot from: Ubuntu's own, by its public parameter, or one that the stack file
names."""

from __future__ import annotations

import pulumi
import pulumi_aws as aws

from node.model import Image

# Canonical publishes the newest image's id here. Every machine of the catalog is x86_64.
PARAMETERS = {
    "ubuntu-24.04": "/aws/service/canonical/ubuntu/server/24.04/stable/current/amd64/hvm/ebs-gp3/ami-id"
}
ROOT_DEVICE = "/dev/sda1"
"""The name of the root disk in Ubuntu's images."""


def image_id(image: Image) -> pulumi.Input[str]:
    """The cluster's image, or the image from which baked images are built.

    The parameter is read at each `up`. New nodes get the newest image, and the head ignores the change.
    """
    if image.id is not None:
        return image.id
    name = PARAMETERS[image.source or "ubuntu-24.04"]
    # `value` would be a secret, and so would every launch template with it.
    return aws.ssm.get_parameter_output(name=name).insecure_value


def root_device(image: str | None) -> pulumi.Input[str]:
    """The name of the root disk in an image.

    Under a wrong name a node would get a second disk, and its root disk would keep the size and the lack of
    encryption that the image's maker gave it.

    Args:
        image: The id of an image that the stack file names. `None` means Ubuntu's.
    """
    if image is None:
        return ROOT_DEVICE
    filters = [aws.ec2.GetAmiFilterArgs(name="image-id", values=[image])]
    return aws.ec2.get_ami_output(filters=filters).root_device_name
