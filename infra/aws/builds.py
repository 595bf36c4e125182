"""What a machine says that should have become an image, after `up` has failed.

Image Builder's own reason is a step's exit status; the machine is gone, and its boot report is in the bucket.
"""

from __future__ import annotations

from infra.aws.cloud import AwsCloud
from infra.clouds import boot, entrance
from infra.node.bootstrap.vm import images
from infra.node.model import ClusterDesign


def failure(cloud: AwsCloud, design: ClusterDesign, since: float) -> str | None:
    """The step at which each image's build failed, with its last lines; None: nothing failed there.

    Args:
        since: when this `up` began, in seconds since the epoch: earlier ones have been said before.

    Raises:
        UserError: AWS refuses, or does not answer.
    """
    bucket = cloud.bucket() if design.image.bake else None
    if bucket is None:
        return None
    found = []
    for host in (kind.host for kind in images.kinds(design)):
        report = entrance.boot_report(cloud, bucket, host)
        failed = report is not None and report["state"] == "failed"
        if report is not None and failed and cloud.changed(bucket, f"boot/{host}.json") > since:
            found.append(boot.failure(host, report))
    if not found:
        return None
    return "\n".join(
        [*found, "Mend the cause and run `up` again: that image is built anew, from the first step."]
    )
