"""The image that machines boot from."""

from __future__ import annotations

from typing import Any

import pulumi
import pytest

from infra.aws.launch_templates import IMAGE_PARAMETERS, image_id
from node.model import Image
from tests.support.aws_machines import AMI, Machines
from tests.support.aws_mocks import declare


def image(wanted: Image) -> tuple[Any, list[str]]:
    seen: list[Any] = []
    aws = Machines()
    declare(lambda: pulumi.Output.from_input(image_id(wanted)).apply(seen.append), aws=aws)
    (found,) = seen
    return found, aws.calls


def test_ubuntu_is_found_by_its_public_parameter() -> None:
    """The id comes from `insecure_value`: `value` is a secret, and so would be every template."""
    assert image(Image("ubuntu-24.04")) == (AMI, ["aws:ssm/getParameter:getParameter"])
    (name,) = IMAGE_PARAMETERS.values()
    assert name == "/aws/service/canonical/ubuntu/server/24.04/stable/current/amd64/hvm/ebs-gp3/ami-id"


def test_an_image_of_ones_own_needs_no_question() -> None:
    assert image(Image(id="ami-0fedcba9876543210")) == ("ami-0fedcba9876543210", [])


@pytest.mark.parametrize("bake", [False, True])
def test_a_baked_one_begins_with_the_same(bake: bool) -> None:
    assert image(Image(id="ami-0fedcba9876543210", bake=bake))[0] == "ami-0fedcba9876543210"
    assert image(Image("ubuntu-24.04", bake=bake))[0] == AMI
