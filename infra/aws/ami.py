"""Ending a cluster's own images: what builds them, the AMIs, and the snapshots below, which cost.

Image Builder forgets an image and leaves its AMI; EC2 deregisters an AMI and leaves its snapshots. All carry
the cluster's tag: the AMI from Image Builder, a snapshot at the latest from here, before its AMI goes.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable
from typing import Any

from infra.aws import machines
from infra.aws.account import explained
from infra.aws.tags import CLUSTER, RECIPE
from infra.clouds.cloud import ALIVE
from infra.errors import UserError
from infra.node import words
from infra.node.bootstrap.vm.images import ROLE

SECONDS = 600.0
POLL_SECONDS = 5.0
TRIES = 6
"""EC2 has forgotten an AMI a moment later only, and keeps its snapshots so long."""
AT_REST = frozenset({"AVAILABLE", "CANCELLED", "FAILED", "DEPRECATED", "DELETED", "DISABLED"})
"""Image Builder's states of an image that nothing is built of any more."""

Sleep = Callable[[float], None]


def sweep(
    ec2: Any,
    builder: Callable[[], Any],
    cluster: str,
    say: Callable[[str], None],
    sleep: Sleep = time.sleep,
) -> int:
    """End every build, AMI and snapshot of a cluster of which the engine knows nothing any more.

    Args:
        builder: a client of Image Builder's, made only where there is a trace of images: whoever bakes none
            needs no rights there.

    Returns:
        How many AMIs were there.

    Raises:
        UserError: a build does not end, or AWS refuses.
    """
    if images(ec2, cluster) or machines.instances(ec2, cluster, *ALIVE, role=ROLE):
        end_builds(builder(), cluster, None, say, sleep)
    there = images(ec2, cluster)
    if there:
        say(f"removing {words.count(len(there), 'image')} of cluster {cluster}")
    for image in there:
        _deregister(ec2, image, cluster, sleep)
    for snapshot in _snapshots(ec2, cluster):
        _delete(ec2, snapshot["SnapshotId"], sleep)
    return len(there)


def remove(
    ec2: Any,
    builder: Any,
    cluster: str,
    recipe: str,
    say: Callable[[str], None],
    sleep: Sleep = time.sleep,
) -> list[str]:
    """End what is being built by a recipe, and remove what was. Returns the ids of the AMIs.

    Raises:
        UserError: as for `sweep`.
    """
    end_builds(builder, cluster, recipe, say, sleep)
    there = images(ec2, cluster, recipe)
    for image in there:
        _deregister(ec2, image, cluster, sleep)
    return [str(image["ImageId"]) for image in there]


def images(ec2: Any, cluster: str, recipe: str | None = None) -> list[dict[str, Any]]:
    """The AMIs of this account that have the cluster's tag, as EC2 describes them.

    Args:
        recipe: only those that it has made.
    """
    wanted = _tagged(cluster)
    if recipe is not None:
        wanted.append({"Name": f"tag:{RECIPE}", "Values": [recipe]})
    with explained():
        pages = ec2.get_paginator("describe_images").paginate(Owners=["self"], Filters=wanted)
        return [image for page in pages for image in page["Images"]]


def leftovers(ec2: Any, cluster: str) -> list[str]:
    """What of a cluster's images is still there, a line each."""
    found = [f"image {image['ImageId']} ({image.get('Name', '')})" for image in images(ec2, cluster)]
    return found + [
        f"snapshot {snapshot['SnapshotId']} ({snapshot['VolumeSize']} GiB)"
        for snapshot in _snapshots(ec2, cluster)
    ]


def end_builds(
    builder: Any, cluster: str, recipe: str | None, say: Callable[[str], None], sleep: Sleep = time.sleep
) -> None:
    """Cancel what is being built for a cluster, wait for its end, and have Image Builder forget all of it.

    Args:
        recipe: only of this one; None: of all.

    Raises:
        UserError: a build does not end within its time, or AWS refuses.
    """
    asked: set[str] = set()
    deadline = time.monotonic() + SECONDS
    while True:
        there = list(_builds(builder, cluster, recipe))
        busy = [build for build in there if build["state"]["status"] not in AT_REST]
        for arn in {build["arn"] for build in busy} - asked:
            say(f"cancelling the build of {arn.rpartition(':')[2]}")
            asked.add(arn)
            with explained():
                builder.cancel_image_creation(imageBuildVersionArn=arn, clientToken=str(uuid.uuid4()))
        if not busy:
            break
        if time.monotonic() > deadline:
            raise UserError(
                f"{len(busy)} image builds of cluster {cluster} have not ended within {SECONDS:g} s: "
                f"{busy[0]['arn']}. Run the command again"
            )
        sleep(POLL_SECONDS)
    for build in there:
        with explained():
            builder.delete_image(imageBuildVersionArn=build["arn"])


def _builds(builder: Any, cluster: str, recipe: str | None) -> Iterable[dict[str, Any]]:
    """Image Builder's images of a cluster: found by their names, known by their tag."""
    with explained():
        pages = builder.get_paginator("list_images").paginate(owner="Self")
        versions = [one for page in pages for one in page["imageVersionList"]]
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
            # Whoever is interrupted now finds them again.
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
        return [snapshot for page in pages for snapshot in page["Snapshots"]]


def _tagged(cluster: str) -> list[dict[str, Any]]:
    return [{"Name": f"tag:{CLUSTER}", "Values": [cluster]}]
