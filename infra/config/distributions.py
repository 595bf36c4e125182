"""The distributions that machines may boot, each with all facts that the clouds and the boot depend on.

A row has no defaults: a distribution comes with all of its facts, or not at all. `offers` says for each need
of a stack whether its vendor supports it on the distribution, and why. So a combination that no vendor
supports is refused before anything is made, and a stack that names no distribution gets the first one that
has all it needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from infra.config.cluster import ClusterConfig
from infra.config.mistakes import Location
from infra.instance_types.catalog import NEURON_CORES, Catalog


class Offer(NamedTuple):
    """Whether a need is met on a distribution.

    Attributes:
        supported: Whether the vendor supports it there, and the boot sets it up.
        why: What the vendor says, and where.
    """

    supported: bool
    why: str


@dataclass(frozen=True, slots=True)
class AwsImage:
    """A distribution's image on AWS.

    Attributes:
        parameter: The public parameter of Systems Manager that has the newest image's id.
        owner: The account that publishes the image.
        root_device: The name of the root disk. Under another name a machine would get a second disk, and its
            root disk would stay unencrypted.
        user: The user that the image's cloud-init makes for the key pair.
        cloud_init: Whether cloud-init runs the user data.
    """

    parameter: str
    owner: str
    root_device: str
    user: str
    cloud_init: bool


@dataclass(frozen=True, slots=True)
class GoogleImage:
    """A distribution's image on Google Cloud. Users are OS Login's, and disks are named by the instance.

    Attributes:
        project: The project that publishes the image.
        family: The family whose newest image is used.
        cloud_init: Whether cloud-init runs the key `user-data`. Without it Google's agent runs the startup
            script.
        os_login: The package of OS Login in the image.
    """

    project: str
    family: str
    cloud_init: bool
    os_login: str


@dataclass(frozen=True, slots=True)
class Distribution:
    """A distribution and its images. Every machine of the catalog is x86_64.

    Attributes:
        title: Its name for people.
        suite: The name of its release in package archives, its own and the vendors'.
        kernel: The package of its kernel on a cloud.
        offers: Need -> whether it is met. The needs are the keys of `NEEDS`.
    """

    title: str
    suite: str
    kernel: str
    aws: AwsImage
    google: GoogleImage
    offers: Mapping[str, Offer]


NEEDS = {
    "gpu": "NVIDIA's driver 580",
    "neuron": "AWS Neuron's driver",
    "efa": "EFA's driver",
    "lustre": "a Lustre client for FSx",
    "s3": "Mountpoint for Amazon S3",
    "gcs": "Cloud Storage FUSE",
    "docker": "Docker",
    "cloudwatch": "the CloudWatch agent",
    "ops_agent": "Google's Ops Agent",
    "session_manager": "Session Manager's agent and EC2 Instance Connect",
    "image_builder": "EC2 Image Builder",
    "google_bake": "a bake on Google Cloud",
    "batch": "AWS Batch's ECS agent",
    "own_image": "your own images",
}
"""What a stack may need of its distribution -> its name for people."""

DEBIAN_13 = Distribution(
    title="Debian 13",
    suite="trixie",
    kernel="linux-image-cloud-amd64",
    aws=AwsImage(
        parameter="/aws/service/debian/release/13/latest/amd64",
        owner="136693071363",
        root_device="/dev/xvda",
        user="admin",
        cloud_init=True,
    ),
    google=GoogleImage(
        project="debian-cloud", family="debian-13", cloud_init=False, os_login="google-compute-engine-oslogin"
    ),
    offers={
        "gpu": Offer(False, "Debian has driver 550 only, and it is neither signed nor built for the kernel"),
        "neuron": Offer(False, "AWS builds Neuron's packages for Ubuntu, and for no Debian"),
        "efa": Offer(
            False, "AWS lists Debian 12 for EFA's installer, and Debian's cloud kernel lacks the driver"
        ),
        "lustre": Offer(
            False, "FSx's package repository has clients for Ubuntu's kernels, and for no Debian's"
        ),
        "s3": Offer(True, "one archive for every Linux, with Debian's libfuse2t64"),
        "gcs": Offer(True, "Google tests gcsfuse on debian-13, and has the suite gcsfuse-trixie"),
        "docker": Offer(True, "Debian's package docker.io"),
        "cloudwatch": Offer(
            True, "Amazon's package for Debian; the boot adds rsyslog, which its images lack"
        ),
        "ops_agent": Offer(True, "Google builds and tests the agent for debian-13"),
        "session_manager": Offer(
            False, "Debian's image has neither, and EC2 Instance Connect has no package of it"
        ),
        "image_builder": Offer(False, "EC2 Image Builder lists Ubuntu, and no Debian"),
        "google_bake": Offer(
            True, "Google's agent runs the startup script of the machine that becomes an image"
        ),
        "batch": Offer(False, "AWS builds the agent's drivers and Lustre client for Ubuntu"),
        "own_image": Offer(
            False, "own images are of Ubuntu 24.04, and all machines need one release of Slurm"
        ),
    },
)
UBUNTU_2404 = Distribution(
    title="Ubuntu 24.04",
    suite="noble",
    kernel="linux-aws, linux-gcp",
    aws=AwsImage(
        parameter="/aws/service/canonical/ubuntu/server/24.04/stable/current/amd64/hvm/ebs-gp3/ami-id",
        owner="099720109477",
        root_device="/dev/sda1",
        user="ubuntu",
        cloud_init=True,
    ),
    google=GoogleImage(
        project="ubuntu-os-cloud",
        family="ubuntu-2404-lts-amd64",
        cloud_init=True,
        os_login="google-compute-engine-oslogin",
    ),
    offers={
        "gpu": Offer(True, "Ubuntu builds and signs driver 580 for each of its kernels"),
        "neuron": Offer(True, "AWS Neuron's repository has noble"),
        "efa": Offer(True, "AWS lists Ubuntu 24.04 for EFA's installer"),
        "lustre": Offer(True, "FSx's package repository has noble"),
        "s3": Offer(True, "one archive for every Linux, with Ubuntu's libfuse2t64"),
        "gcs": Offer(True, "Google's suite gcsfuse-noble"),
        "docker": Offer(True, "Ubuntu's package docker.io"),
        "cloudwatch": Offer(True, "Amazon's package for Ubuntu"),
        "ops_agent": Offer(True, "Google builds and tests the agent for ubuntu-2404-lts-amd64"),
        "session_manager": Offer(True, "Ubuntu's image has both"),
        "image_builder": Offer(True, "EC2 Image Builder lists Ubuntu 24.04"),
        "google_bake": Offer(True, "cloud-init runs the user data of the machine that becomes an image"),
        "batch": Offer(True, "AWS builds the ECS agent for Ubuntu"),
        "own_image": Offer(True, "own images are of Ubuntu 24.04"),
    },
)
DISTRIBUTIONS: Mapping[str, Distribution] = {"debian-13": DEBIAN_13, "ubuntu-24.04": UBUNTU_2404}
"""Distributions by `image.source`, the one that a stack gets by default first."""
OWN_IMAGES = "ubuntu-24.04"
"""What an image is made of that a stack file names by its id."""


def of(source: str | None) -> Distribution:
    """Return the row of a design's `image.source`; that of own images if the design names none."""
    return DISTRIBUTIONS[source or OWN_IMAGES]


def chosen_row(cluster: ClusterConfig, facts: Catalog) -> Distribution:
    """Return the row of a stack's machines on a cloud."""
    return DISTRIBUTIONS[chosen(cluster, facts)]


def slurm_package(cluster: ClusterConfig, facts: Catalog) -> str | None:
    """Return whose package of Slurm a stack gets on a cloud, as a key of the table of releases.

    Returns:
        `None` if the packages are the user's own, whose version is not known before they are installed.
    """
    slurm = cluster.slurm
    if slurm.packages or slurm.repository is not None:
        return None
    return slurm.source or chosen(cluster, facts)


def needs(cluster: ClusterConfig, facts: Catalog) -> Iterator[tuple[str, Location]]:
    """Yield what a stack needs of its distribution, with the key that needs it, below the cluster's.

    Args:
        facts: The facts of instance types, with the stack's own.
    """
    if cluster.scheduler == "batch":
        yield "batch", ("scheduler",)
    if cluster.image.id is not None:
        yield "own_image", ("image", "id")
    if cluster.controller.image is not None:
        yield "own_image", ("controller", "image")
    aws = cluster.provider == "aws"
    if cluster.image.bake:
        yield "image_builder" if aws else "google_bake", ("image", "bake")
    if aws and cluster.access.mode in (None, "ssm"):
        yield "session_manager", ("access", "mode")
    for at, partition in cluster.groups():
        machine = facts.instance_type(partition.instance_type)
        built_in = machine.accelerator if machine is not None else None
        if partition.image is not None:
            yield "own_image", (*at, "image")
        if built_in is not None and built_in.type in NEURON_CORES:
            yield "neuron", (*at, "instance_type")
        elif built_in is not None:
            yield "gpu", (*at, "instance_type")
        elif partition.accelerator is not None:
            yield "gpu", (*at, "accelerator")
        if partition.aws is not None and partition.aws.efa:
            yield "efa", (*at, "aws", "efa")
    for name in ("home", "apps", "scratch"):
        shared = getattr(cluster.storage, name)
        if shared is not None and shared.kind == "fsx_lustre":
            yield "lustre", ("storage", name)
    for index, bucket in enumerate(cluster.storage.buckets):
        yield "s3" if bucket.bucket.startswith("s3://") else "gcs", ("storage", "buckets", index)


def chosen(cluster: ClusterConfig, facts: Catalog) -> str:
    """Return a stack's distribution on a cloud: the stack file's, or the first that offers all it needs."""
    if cluster.image.source is not None:
        return cluster.image.source
    wanted = {need for need, _ in needs(cluster, facts)}
    return next(
        name for name, row in DISTRIBUTIONS.items() if all(row.offers[need].supported for need in wanted)
    )
