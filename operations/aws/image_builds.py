"""The boot reports of failed image builds, for the message of an `up` that failed.

Image Builder's own reason is a step's exit status only. The machine is gone, but its boot report is in the
bucket.
"""

from __future__ import annotations

from node.bootstrap.vm.images import kinds
from node.design.model import ClusterDesign
from operations.aws.cloud import AwsCloud
from operations.clouds import boots, ssh_access


def build_failure(cloud: AwsCloud, design: ClusterDesign, since: float) -> str | None:
    """Return the step at which each image's build failed, with its last lines; `None` if no build failed.

    Args:
        since: When this `up` began, in seconds since the epoch. Earlier failures were reported before.

    Raises:
        UserError: AWS refuses, or does not answer.
    """
    bucket = cloud.bucket() if design.image.bake else None
    if bucket is None:
        return None
    failures = []
    for host in (kind.host for kind in kinds(design)):
        report = ssh_access.boot_report(cloud, bucket, host)
        failed = report is not None and report["state"] == "failed"
        if report is not None and failed and cloud.changed(bucket, f"boot/{host}.json") > since:
            failures.append(boots.boot_failure(host, report))
    if not failures:
        return None
    return "\n".join(
        [*failures, "Fix the cause and run `up` again: that image is built anew, from the first step."]
    )
