"""The image that machines boot from: the distribution's, by its public parameter, or one that the stack file
names."""

from __future__ import annotations

import pulumi
import pulumi_aws as aws

from infra.config import distributions
from node.model import Image


def image_id(image: Image) -> pulumi.Input[str]:
    """The cluster's image, or the image from which baked images are built.

    The parameter is read at each `up`. New nodes get the newest image, and the head ignores the change.
    """
    if image.id is not None:
        return image.id
    name = distributions.of(image.source).aws.parameter
    # `value` would be a secret, and so would every launch template with it.
    return aws.ssm.get_parameter_output(name=name).insecure_value


def root_device(image: Image, own: str | None = None) -> pulumi.Input[str]:
    """The name of the root disk in an image.

    Under a wrong name a node would get a second disk, and its root disk would keep the size and the lack of
    encryption that the image's maker gave it.

    Args:
        image: The cluster's image.
        own: The id of the machine's own image, which wins over the cluster's.
    """
    if (identity := own or image.id) is None:
        return distributions.of(image.source).aws.root_device
    filters = [aws.ec2.GetAmiFilterArgs(name="image-id", values=[identity])]
    return aws.ec2.get_ami_output(filters=filters).root_device_name
