"""Checks for what would keep a cluster on AWS from coming up.

New accounts have no vCPUs of some families, which only AWS can tell. So these checks ask AWS, with read-only
calls, if there are credentials.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from cli.clouds import diagnosis
from cli.clouds.diagnosis import QUOTAS
from cli.doctor.finding import Check, Finding, fine, stops, warns
from infra.config import placeholders
from infra.errors import UserError
from node.model import Access, ClusterDesign
from operations import pages, programs
from operations.aws import account
from operations.clouds import ssh_access

ANSWER_SECONDS = 10.0
"""The time in which Docker's daemon must answer."""


def checks(design: ClusterDesign | None) -> list[Check]:
    """Return the checks of a design.

    Args:
        design: `None` if the stack file has mistakes; then the checks that depend on it are left out.
    """
    found = [Check("credentials", credentials)]
    if design is not None and design.batch is not None:
        found += [
            Check(QUOTAS, functools.partial(limits, design)),
            Check("docker", functools.partial(docker, design)),
            Check("platform", functools.partial(platform, design)),
        ]
    elif design is not None:
        found += [
            Check(QUOTAS, functools.partial(limits, design)),
            Check("key", functools.partial(pair, design)),
            Check("image", functools.partial(images, design)),
            Check("storage", functools.partial(storage, design)),
            Check("platform", functools.partial(platform, design)),
            Check("ssh", functools.partial(ssh_programs, design.access)),
        ]
    return found


def credentials() -> Iterable[Finding]:
    """Whether there are credentials. Only AWS could tell whether they are valid."""
    profile = os.environ.get("AWS_PROFILE")
    return diagnosis.credentials(account.require, f"profile {profile}" if profile else None)


def docker(design: ClusterDesign) -> Iterable[Finding]:
    """Whether the container image can be built here, where the stack has one of its own."""
    if design.batch is None or design.batch.repository is None:
        return
    if shutil.which("docker") is None:
        cure = (
            f"Install it: {pages.DOCKER}. Or run `up` once on a machine that has it, or name an image "
            "that exists (batch.container.image)."
        )
        yield warns("docker", "`docker` is not on PATH, so the container image cannot be built here", cure)
    elif not _docker_answers():
        cure = "Start it (`sudo systemctl start docker`), and see that you may use it: `docker version`."
        yield warns("docker", "docker is on PATH, and its daemon does not answer", cure)
    else:
        yield fine("docker", "docker answers; the image is built and pushed by `up`")


def _docker_answers() -> bool:
    command = ["docker", "version", "--format", "{{.Server.Version}}"]
    return not programs.capture(command, seconds=ANSWER_SECONDS).failed


def limits(design: ClusterDesign) -> Iterable[Finding]:
    """Check the quotas of vCPUs, addresses and volumes; another check reports missing credentials."""
    from cli.aws import quotas

    yield from _asked(design, QUOTAS, lambda client: quotas.findings(client, design))


def pair(design: ClusterDesign) -> Iterable[Finding]:
    """Check the EC2 key pair, if the stack file names one."""
    from cli.aws import quotas

    name, region = design.access.key, str(design.region)
    if name is not None and not placeholders.is_placeholder(name):
        keys = ssh_access.agent_keys()
        yield from _asked(design, "key", lambda client: [quotas.key_pair(client("ec2"), name, region, keys)])


def images(design: ClusterDesign) -> Iterable[Finding]:
    """Check the images that the stack file names; no finding without credentials."""
    if wanted(design):
        yield from _asked(design, "image", lambda client: image_findings(client("ec2"), design))


def storage(design: ClusterDesign) -> Iterable[Finding]:
    """Check existing disks, file systems and buckets of the stack file; no finding without credentials."""
    from cli.aws import storage as lookup

    if design.backup is None and not any(mount.existing or mount.restore for mount in design.mounts):
        return

    yield from _asked(design, "storage", lambda client: lookup.findings(client, design))


def platform(design: ClusterDesign) -> Iterable[Finding]:
    """Check the groups and the boundary that the stack file names; no finding without credentials."""
    from cli.aws import platform as lookup

    if design.permissions_boundary is not None or lookup.named(design):
        yield from _asked(design, lookup.CHECK, lambda client: lookup.findings(client, design))


def _asked(
    design: ClusterDesign, check: str, ask: Callable[[Callable[[str], Any]], Iterable[Finding]]
) -> Iterable[Finding]:
    """Return the findings from AWS's answer; a warning if it has none, nothing without credentials.

    Args:
        ask: Gets what gives the boto3 client of a service in the cluster's region.
    """

    def client(service: str) -> Any:
        return account.clients(str(design.region), service, patient=False)[0]

    try:
        account.session()
    except UserError:
        return
    try:
        with account.explained():
            yield from list(ask(client))
    except UserError as error:
        yield warns(check, f"could not be asked for: {error}", "Nothing is known about it.")


def ssh_programs(access: Access) -> Iterable[Finding]:
    """Check what SSH access to the login machine needs on this machine."""
    yield from diagnosis.client()
    if access.mode == "ssh":
        yield diagnosis.login_key()
        return
    yield from diagnosis.installed(
        ("aws", "the AWS CLI", pages.AWS_CLI),
        ("session-manager-plugin", "its Session Manager plugin", pages.SESSION_MANAGER),
    )
    if access.key is None:
        yield diagnosis.own_key()


# Checks the images that the stack file names: EC2 would refuse some, and others cannot become a machine.

IMAGE_CHECK = "image"
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


def image_findings(ec2: Any, design: ClusterDesign) -> Iterable[Finding]:
    """Check each image by what EC2 says of it.

    Raises:
        ClientError, BotoCoreError: AWS refuses, or does not answer.
    """
    for image, keys in wanted(design).items():
        found = list(_faults(_described(ec2, image), image, keys, str(design.region)))
        yield from found or [fine(IMAGE_CHECK, f"{image} ({', '.join(keys)}) is there, and fits")]


def _described(ec2: Any, image: str) -> dict[str, Any] | None:
    from botocore.exceptions import ClientError

    try:
        described = ec2.describe_images(ImageIds=[image])["Images"]
    except ClientError as error:
        if error.response["Error"]["Code"] not in GONE:
            raise
        return None
    return dict(described[0]) if described else None


def _faults(image: dict[str, Any] | None, name: str, keys: dict[str, int], region: str) -> Iterator[Finding]:
    what = f"{name} ({', '.join(keys)})"
    if image is None:
        yield stops(
            IMAGE_CHECK,
            f"{what}: there is no such image in {region}, or it is not shared with this account",
            f"Copy it: `aws ec2 copy-image --region {region} --source-region REGION --source-image-id {name} "
            "--name NAME`; or name another.",
        )
        return
    if (state := image.get("State", "available")) != "available":
        yield stops(IMAGE_CHECK, f"{what} is {state}", "Wait until it is available, or name another.")
    if (kind := image.get("Architecture", "x86_64")) != "x86_64":
        yield stops(IMAGE_CHECK, f"{what} is for {kind} processors", "Name one for x86_64.")
    if str(image.get("Platform", "")).lower() == "windows":
        yield stops(IMAGE_CHECK, f"{what} is of Windows", "Name one of Ubuntu 24.04.")
    elif match := OTHER.search(image.get("Name") or ""):
        found = f"{what} is {image['Name']}: {match[0]} is another distribution than Ubuntu 24.04"
        yield warns(IMAGE_CHECK, found, "The boot uses apt: name an image made from Ubuntu 24.04.")
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
        yield stops(IMAGE_CHECK, found, f"Write disk_gib: {gib} or more for these machines.")
