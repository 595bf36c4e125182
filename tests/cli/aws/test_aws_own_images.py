"""The images that a stack file names are looked up by the doctor: against moto's EC2 over HTTP."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from cli.aws import diagnosis
from cli.doctor.finding import Finding, Severity
from node.model import ClusterDesign, Image
from tests.support import sentences
from tests.support.aws_account import IMAGE, REGION, Account, account, moto, nobody
from tests.support.aws_mocks import CPU, GPU, aws_design

__all__ = ["account", "moto", "nobody"]

NAMED = aws_design(region=REGION, image=Image(id=IMAGE))
UBUNTU: dict[str, Any] = {
    "State": "available",
    "Architecture": "x86_64",
    "Name": "lab-ubuntu-noble-24.04-amd64-server-20260301",
    "RootDeviceName": "/dev/sda1",
    "BlockDeviceMappings": [{"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 50}}],
}


def found(design: ClusterDesign) -> list[Finding]:
    """What the doctor's check finds, by its way from the list of checks."""
    (check,) = (one for one in diagnosis.checks(design) if one.name == "image")
    return list(check.look())


def test_an_image_that_is_not_there_stops(account: Account) -> None:
    gone = dataclasses.replace(NAMED, image=Image(id="ami-0123456789abcdef0"))
    (told,) = found(gone)
    assert (told.severity, told.check) == (Severity.STOPS, "image")
    sentences.finding(told, "image", Severity.STOPS, REGION, "ami-0123456789abcdef0", "image.id")
    there = account.ec2.register_image(
        Name="lab-ubuntu-24.04", RootDeviceName="/dev/sda1", Architecture="x86_64", VirtualizationType="hvm"
    )["ImageId"]
    (told,) = found(dataclasses.replace(NAMED, image=Image(id=there)))
    sentences.finding(told, "image", Severity.FINE, there, "image.id")


@pytest.mark.usefixtures("account")
def test_only_named_images_are_asked_for() -> None:
    assert found(aws_design(region=REGION)) == []
    assert found(dataclasses.replace(NAMED, image=Image(id="PLACEHOLDER_CUSTOM_AMI_ID"))) == []


@pytest.mark.usefixtures("nobody")
def test_without_credentials_nobody_is_asked() -> None:
    assert found(NAMED) == []


@pytest.mark.parametrize(
    ("change", "severity", "words"),
    [
        ({}, Severity.FINE, "is there, and fits"),
        ({"State": "pending"}, Severity.STOPS, "is pending"),
        ({"Architecture": "arm64"}, Severity.STOPS, "for arm64 processors"),
        ({"Platform": "windows", "Name": "Windows_Server-2022"}, Severity.STOPS, "of Windows"),
        ({"Name": "amzn2-ami-hvm-2.0.20240131"}, Severity.WARNS, "another distribution than Ubuntu 24.04"),
        ({"Name": "al2023-ami-2023.6"}, Severity.WARNS, "al2023 is another"),
        ({"Name": "Deep Learning Base AMI (Ubuntu 22.04)"}, Severity.WARNS, "Ubuntu 22.04 is another"),
        ({"Name": "Deep Learning Base OSS Nvidia Driver GPU AMI (Ubuntu 24.04) 2026"}, Severity.FINE, "fits"),
        ({"BlockDeviceMappings": UBUNTU["BlockDeviceMappings"] * 2}, Severity.FINE, "fits"),
    ],
)
def test_what_ec2_says_of_an_image(change: dict[str, Any], severity: Severity, words: str) -> None:
    (told,) = diagnosis.image_findings(_Ec2({**UBUNTU, **change}), _sized(50))
    assert (told.severity, words in told.found) == (severity, True), told


def test_a_root_disk_that_is_too_small_names_every_machine() -> None:
    design = _sized(40)
    own = dataclasses.replace(GPU, image=IMAGE, disk_gib=45)
    (told,) = diagnosis.image_findings(
        _Ec2(UBUNTU), dataclasses.replace(design, partitions=(*design.partitions, own))
    )
    assert told.severity is Severity.STOPS
    sentences.finding(told, "image", Severity.STOPS, IMAGE, GPU.name, "image.id")


class _Ec2:
    def __init__(self, image: dict[str, Any]) -> None:
        self._image = image

    def describe_images(self, ImageIds: list[str]) -> dict[str, Any]:  # noqa: N803  boto3's name
        return {"Images": [{**self._image, "ImageId": ImageIds[0]}]}


def _sized(gib: int) -> ClusterDesign:
    hosts = tuple(dataclasses.replace(host, disk_gib=gib) for host in NAMED.hosts)
    return dataclasses.replace(NAMED, hosts=hosts, partitions=(dataclasses.replace(CPU, disk_gib=gib),))
