"""What machines boot from: Ubuntu's own image by its public parameter, or an image that the stack names."""

from __future__ import annotations

import pulumi
import pulumi_aws as aws

from infra.node.model import Image

# Canonical publishes the newest image's id here; every machine of the catalog is x86_64.
PARAMETERS = {
    "ubuntu-24.04": "/aws/service/canonical/ubuntu/server/24.04/stable/current/amd64/hvm/ebs-gp3/ami-id"
}
ROOT_DEVICE = "/dev/sda1"
"""The root disk's name in Ubuntu's images."""


def image_id(image: Image) -> pulumi.Input[str]:
    """The cluster's image, or the one with which baked ones begin.

    The parameter is read at each `up`: new nodes get a new image, the head ignores the change.
    """
    if image.id is not None:
        return image.id
    name = PARAMETERS[image.source or "ubuntu-24.04"]
    # `value` would be a secret, and with it every launch template.
    return aws.ssm.get_parameter_output(name=name).insecure_value


def root_device(image: str | None) -> pulumi.Input[str]:
    """The name of the root disk. Under another one a node would get a second disk, and its root stay as small
    and as readable as the image's maker left it.

    Args:
        image: the id of an image of one's own, None for Ubuntu's.
    """
    if image is None:
        return ROOT_DEVICE
    filters = [aws.ec2.GetAmiFilterArgs(name="image-id", values=[image])]
    return aws.ec2.get_ami_output(filters=filters).root_device_name
