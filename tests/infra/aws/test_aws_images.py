"""The image that machines boot from."""

from __future__ import annotations

from typing import Any

import pulumi
import pytest

from infra.aws import images
from infra.config import distributions
from node.model import Image
from tests.support.aws_machines import AMI, Machines
from tests.support.aws_mocks import declare


def image(wanted: Image) -> tuple[Any, list[str]]:
    seen: list[Any] = []
    aws = Machines()
    declare(lambda: pulumi.Output.from_input(images.image_id(wanted)).apply(seen.append), aws=aws)
    (found,) = seen
    return found, aws.calls


@pytest.mark.parametrize("source", distributions.DISTRIBUTIONS)
def test_a_distribution_is_found_by_its_public_parameter(source: str) -> None:
    """The id comes from `insecure_value`: `value` is a secret, and so would be every template."""
    assert image(Image(source)) == (AMI, ["aws:ssm/getParameter:getParameter"])


def test_the_root_disk_has_the_name_that_its_image_gives_it() -> None:
    """Under another name a machine gets a second disk, and its root disk stays unencrypted."""
    assert images.root_device(Image("debian-13")) == "/dev/xvda"
    assert images.root_device(Image("ubuntu-24.04", bake=True)) == "/dev/sda1"


def test_an_image_of_ones_own_needs_no_question() -> None:
    assert image(Image(id="ami-0fedcba9876543210")) == ("ami-0fedcba9876543210", [])


@pytest.mark.parametrize("bake", [False, True])
def test_a_baked_one_begins_with_the_same(bake: bool) -> None:
    assert image(Image(id="ami-0fedcba9876543210", bake=bake))[0] == "ami-0fedcba9876543210"
    assert image(Image("ubuntu-24.04", bake=bake))[0] == AMI
