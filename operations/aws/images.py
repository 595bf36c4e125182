"""Removes a cluster's own images: their builds, the AMIs, and the AMIs' snapshots, which cost money.

Image Builder deletes an image and leaves its AMI; EC2 deregisters an AMI and leaves its snapshots. All of
them have the cluster's tag. Image Builder tags the AMI; this module tags a snapshot before it deregisters the
AMI, if nothing has tagged it earlier.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable
from typing import Any

from infra.aws.tags import CLUSTER, RECIPE, SLURM
from infra.errors import UserError
from node.bootstrap.vm.images import ROLE
from node.system import plurals
from operations.aws import machines
from operations.aws.account import explained
from operations.aws.kept import is_kept
from operations.clouds.cloud import ALIVE
from operations.waiting import Sleep, attempts

SECONDS = 600.0
POLL_SECONDS = 5.0
TRIES = 6
"""How often a snapshot's deletion is tried: it stays in use until a moment after its AMI is deregistered."""
AT_REST = frozenset({"AVAILABLE", "CANCELLED", "FAILED", "DEPRECATED", "DELETED", "DISABLED"})
"""Image Builder's states of an image whose build is over."""


def remove_unused(
    ec2: Any,
    builder: Callable[[], Any],
    cluster: str,
    say: Callable[[str], None],
    sleep: Sleep = time.sleep,
) -> int:
    """Remove every build, AMI and snapshot of a cluster that the engine does not know any more.

    Args:
        builder: Makes a client of Image Builder. It is called only if there is a trace of images, because a
            user who bakes none needs no permissions there.
        say: Is called with a sentence for each step.

    Returns:
        The number of AMIs found.

    Raises:
        UserError: A build does not end, or AWS refuses.
    """
    if images(ec2, cluster) or machines.instances(ec2, cluster, *ALIVE, role=ROLE):
        end_builds(builder(), cluster, None, say, sleep)
    present = images(ec2, cluster)
    if present:
        say(f"removing {plurals.count(len(present), 'image')} of cluster {cluster}")
    for image in present:
        _deregister(ec2, image, cluster, sleep)
    for snapshot in _snapshots(ec2, cluster):
        _delete(ec2, snapshot["SnapshotId"], sleep)
    return len(present)


def remove(
    ec2: Any,
    builder: Any,
    cluster: str,
    recipe: str,
    say: Callable[[str], None],
    sleep: Sleep = time.sleep,
) -> list[str]:
    """Cancel a recipe's builds and remove its AMIs.

    Returns:
        The ids of the AMIs.

    Raises:
        UserError: As for `remove_unused`.
    """
    end_builds(builder, cluster, recipe, say, sleep)
    present = images(ec2, cluster, recipe)
    for image in present:
        _deregister(ec2, image, cluster, sleep)
    return [str(image["ImageId"]) for image in present]


def images(ec2: Any, cluster: str, recipe: str | None = None) -> list[dict[str, Any]]:
    """Return the AMIs of this account that have the cluster's tag, as EC2 describes them.

    Args:
        recipe: The recipe that has made them; `None` means every recipe.
    """
    wanted = _tagged(cluster)
    if recipe is not None:
        wanted.append({"Name": f"tag:{RECIPE}", "Values": [recipe]})
    with explained():
        pages = ec2.get_paginator("describe_images").paginate(Owners=["self"], Filters=wanted)
        return [image for page in pages for image in page["Images"]]


def slurm(ec2: Any, image: str) -> str | None:
    """Return the release of Slurm in an AMI's tags; `None` if they name none, or there is no such AMI.

    Raises:
        UserError: AWS refuses, or does not answer.
    """
    # A filter finds nothing where an id that does not exist would be an error.
    wanted = [{"Name": "image-id", "Values": [image]}]
    with explained():
        amis = ec2.describe_images(Filters=wanted)["Images"]
    tags = {tag["Key"]: tag["Value"] for ami in amis for tag in ami.get("Tags", [])}
    return tags.get(SLURM)


def leftovers(ec2: Any, cluster: str) -> list[str]:
    """One line for each AMI and snapshot of a cluster that still exists."""
    image_lines = [f"image {image['ImageId']} ({image.get('Name', '')})" for image in images(ec2, cluster)]
    return image_lines + [
        f"snapshot {snapshot['SnapshotId']} ({snapshot['VolumeSize']} GiB)"
        for snapshot in _snapshots(ec2, cluster)
    ]


def end_builds(
    builder: Any, cluster: str, recipe: str | None, say: Callable[[str], None], sleep: Sleep = time.sleep
) -> None:
    """Cancel a cluster's builds, wait for their end, and delete them from Image Builder.

    Args:
        recipe: The recipe whose builds are meant; `None` means every recipe.
        say: Is called with a sentence for each build.

    Raises:
        UserError: A build does not end in time, or AWS refuses.
    """
    requested: set[str] = set()
    for _ in attempts(SECONDS, POLL_SECONDS, sleep):
        builds = list(_builds(builder, cluster, recipe))
        busy = [build for build in builds if build["state"]["status"] not in AT_REST]
        for arn in {build["arn"] for build in busy} - requested:
            say(f"cancelling the build of {arn.rpartition(':')[2]}")
            requested.add(arn)
            with explained():
                builder.cancel_image_creation(imageBuildVersionArn=arn, clientToken=str(uuid.uuid4()))
        if not busy:
            break
    else:
        raise UserError(
            f"{len(busy)} image builds of cluster {cluster} have not ended within {SECONDS:g} s: "
            f"{busy[0]['arn']}. Run the command again",
            code="aws.builds-left",
        )
    for build in builds:
        with explained():
            builder.delete_image(imageBuildVersionArn=build["arn"])


def _builds(builder: Any, cluster: str, recipe: str | None) -> Iterable[dict[str, Any]]:
    """Yield the builds of a cluster in Image Builder, listed by name and confirmed by their tag."""
    with explained():
        pages = builder.get_paginator("list_images").paginate(owner="Self")
        versions = [version for page in pages for version in page["imageVersionList"]]
    for version in versions:
        if version["name"] != recipe if recipe is not None else not version["name"].startswith(f"{cluster}-"):
            continue
        with explained():
            pages = builder.get_paginator("list_image_build_versions").paginate(
                imageVersionArn=version["arn"]
            )
            builds = [build for page in pages for build in page["imageSummaryList"]]
        yield from (build for build in builds if build.get("tags", {}).get(CLUSTER) == cluster)


def _deregister(ec2: Any, image: dict[str, Any], cluster: str, sleep: Sleep) -> None:
    parts = image.get("BlockDeviceMappings", [])
    snapshots = [part["Ebs"]["SnapshotId"] for part in parts if part.get("Ebs", {}).get("SnapshotId")]
    with explained():
        if snapshots:
            # After an interruption the next run finds them by this tag.
            ec2.create_tags(Resources=snapshots, Tags=[{"Key": CLUSTER, "Value": cluster}])
        ec2.deregister_image(ImageId=image["ImageId"])
    for snapshot in snapshots:
        _delete(ec2, snapshot, sleep)


def _delete(ec2: Any, snapshot: str, sleep: Sleep) -> None:
    for left in reversed(range(TRIES)):
        with explained():
            try:
                ec2.delete_snapshot(SnapshotId=snapshot)
            except ec2.exceptions.ClientError as error:
                code = error.response["Error"]["Code"]
                if code == "InvalidSnapshot.NotFound":
                    return
                if code != "InvalidSnapshot.InUse" or not left:
                    raise
            else:
                return
        sleep(POLL_SECONDS)


def _snapshots(ec2: Any, cluster: str) -> list[dict[str, Any]]:
    with explained():
        pages = ec2.get_paginator("describe_snapshots").paginate(OwnerIds=["self"], Filters=_tagged(cluster))
        snapshots = [snapshot for page in pages for snapshot in page["Snapshots"]]
    # What `down` has saved of a disk is no image's.
    return [snapshot for snapshot in snapshots if not is_kept(snapshot.get("Tags", []))]


def _tagged(cluster: str) -> list[dict[str, Any]]:
    return [{"Name": f"tag:{CLUSTER}", "Values": [cluster]}]
