"""The image that machines boot from."""

from __future__ import annotations

from typing import Any

import pulumi
import pytest

from infra.gcp.instance_templates import image_id
from node.model import Image
from tests.support.gcp_machines import IMAGE, Machines
from tests.support.gcp_mocks import declare


def image(wanted: Image) -> tuple[Any, list[str]]:
    seen: list[Any] = []
    gcp = Machines()
    declare(lambda: pulumi.Output.from_input(image_id(wanted)).apply(seen.append), gcp=gcp)
    (found,) = seen
    return found, gcp.calls


def test_ubuntu_is_the_newest_of_its_family_once_and_for_all_machines() -> None:
    """The image has its own name. With the family's name, nodes of one template could differ."""
    assert image(Image("ubuntu-24.04")) == (IMAGE, ["gcp:compute/getImage:getImage"])


@pytest.mark.parametrize("own", ["projects/lab/global/images/slurm-1", "slurm-1", "family/slurm"])
def test_an_image_of_ones_own_needs_no_question(own: str) -> None:
    assert image(Image(id=own)) == (own, [])


@pytest.mark.parametrize("wanted", [Image("ubuntu-24.04", bake=True), Image("ubuntu-24.04")])
def test_a_baked_image_begins_with_the_same(wanted: Image) -> None:
    assert image(wanted)[0] == IMAGE
