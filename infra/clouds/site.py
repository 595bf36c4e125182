"""The settings that a cloud's cluster gives its machines beside its design: the same for every machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pulumi

from node.model import Site
from node.sites import AwsSite, GcpSite, MountSource

SLURM_USER = "slurm"
"""The user that Ubuntu's packages make."""
CONTROLLER = "controller"


def site(
    addresses: Mapping[str, pulumi.Input[str]],
    bucket: pulumi.Input[str],
    secret: pulumi.Input[str],
    mounts: pulumi.Output[dict[str, MountSource]],
    cloud: pulumi.Output[AwsSite] | pulumi.Output[GcpSite],
) -> pulumi.Output[Site]:
    """The site of a cluster, once all of its parts are known.

    Args:
        addresses: `Site.addresses`, with the controller's among them.
        bucket: The name of the cluster's bucket.
        secret: The secret that holds the munge key.
        mounts: `Site.mounts`.
        cloud: What only this provider has.
    """

    def made(known: Mapping[str, Any]) -> Site:
        return Site(
            root="/",
            user=SLURM_USER,
            controller_host=CONTROLLER,
            controller_address=known["addresses"][CONTROLLER],
            **known,
        )

    return pulumi.Output.all(
        addresses=dict(addresses), bucket=bucket, secret=secret, mounts=mounts, cloud=cloud
    ).apply(made)


def mount_sources(
    known: Mapping[str, Mapping[str, Any]],
) -> pulumi.Output[dict[str, MountSource]]:
    """path -> where machines find it, from the fields of `MountSource`."""
    fields: pulumi.Output[dict[str, dict[str, str]]] = pulumi.Output.from_input(
        {path: dict(values) for path, values in known.items()}
    )
    return fields.apply(lambda all_known: {path: MountSource(**values) for path, values in all_known.items()})
