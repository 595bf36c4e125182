"""Checks the images that the stack file names: EC2 would refuse some, and others cannot become a machine."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from cli.doctor.finding import Finding, fine, stops, warns
from infra.config import placeholders
from node.model import ClusterDesign

CHECK = "image"
GONE = frozenset({"InvalidAMIID.NotFound", "InvalidAMIID.Unavailable", "InvalidAMIID.Malformed"})
OTHER = re.compile(
    r"amzn|al2023|alinux|amazon[ _-]?linux|rhel|centos|rocky|alma|suse|sles|debian|fedora"
    r"|(?:ubuntu|jammy|focal|bionic)\D*(?:22|20|18)\.?04|jammy|focal|bionic",
    re.IGNORECASE,
)
"""Words of an image's name that tell another distribution than Ubuntu 24.04."""


def wanted(design: ClusterDesign) -> dict[str, dict[str, int]]:
    """Image -> key of the stack file -> GiB of the smallest root disk that starts from it."""
    found: dict[str, dict[str, int]] = {}

    def add(image: str | None, key: str, gib: int) -> None:
        if image is not None and not placeholders.is_placeholder(image):
            keys = found.setdefault(image, {})
            keys[key] = min(gib, keys.get(key, gib))

    for host in design.hosts:
        add(host.image or design.image.id, f"{host.role}.image" if host.image else "image.id", host.disk_gib)
    for partition in design.partitions:
        key = f"partitions.{partition.name}.image" if partition.image else "image.id"
        add(partition.image or design.image.id, key, partition.disk_gib)
    return found


def findings(ec2: Any, design: ClusterDesign) -> Iterable[Finding]:
    """What EC2 says of each image.

    Raises:
        ClientError, BotoCoreError: AWS refuses, or does not answer.
    """
    for image, keys in wanted(design).items():
        found = list(_faults(_described(ec2, image), image, keys, str(design.region)))
        yield from found or [fine(CHECK, f"{image} ({', '.join(keys)}) is there, and fits")]


def _described(ec2: Any, image: str) -> dict[str, Any] | None:
    from botocore.exceptions import ClientError

    try:
        there = ec2.describe_images(ImageIds=[image])["Images"]
    except ClientError as error:
        if error.response["Error"]["Code"] not in GONE:
            raise
        return None
    return dict(there[0]) if there else None


def _faults(image: dict[str, Any] | None, name: str, keys: dict[str, int], region: str) -> Iterator[Finding]:
    what = f"{name} ({', '.join(keys)})"
    if image is None:
        yield stops(
            CHECK,
            f"{what}: there is no such image in {region}, or it is not shared with this account",
            f"Copy it: `aws ec2 copy-image --region {region} --source-region REGION --source-image-id {name} "
            "--name NAME`; or name another.",
        )
        return
    if (state := image.get("State", "available")) != "available":
        yield stops(CHECK, f"{what} is {state}", "Wait until it is available, or name another.")
    if (kind := image.get("Architecture", "x86_64")) != "x86_64":
        yield stops(CHECK, f"{what} is for {kind} processors", "Name one for x86_64.")
    if str(image.get("Platform", "")).lower() == "windows":
        yield stops(CHECK, f"{what} is of Windows", "Name one of Ubuntu 24.04.")
    elif said := OTHER.search(image.get("Name") or ""):
        found = f"{what} is {image['Name']}: {said[0]} is another distribution than Ubuntu 24.04"
        yield warns(CHECK, found, "The boot uses apt: name an image made from Ubuntu 24.04.")
    yield from _size(image, what, keys)


def _size(image: dict[str, Any], what: str, keys: dict[str, int]) -> Iterator[Finding]:
    root = image.get("RootDeviceName")
    disks = [
        one.get("Ebs", {}) for one in image.get("BlockDeviceMappings", []) if one.get("DeviceName") == root
    ]
    gib = next((disk["VolumeSize"] for disk in disks if "VolumeSize" in disk), 0)
    if short := {key: size for key, size in keys.items() if size < gib}:
        sizes = ", ".join(f"{size} GiB ({key})" for key, size in short.items())
        found = f"{what} needs a root disk of {gib} GiB, and machines that start from it have {sizes}"
        yield stops(CHECK, found, f"Write disk_gib: {gib} or more for these machines.")
