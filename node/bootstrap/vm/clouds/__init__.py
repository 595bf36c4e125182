"""Chooses the cloud of a cluster's machines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from node.bootstrap.vm.clouds.interface import Cloud
from node.design.model import Settings

if TYPE_CHECKING:
    from node.bootstrap.vm.clouds.aws import Aws
    from node.bootstrap.vm.clouds.gcp import Gcp
    from node.bootstrap.vm.clouds.local import Local


def kind(provider: str) -> type[Aws] | type[Gcp] | type[Local]:
    """Return the class of a provider's cloud.

    Raises:
        ValueError: The provider is unknown.
    """
    # Imported late, because a machine has the code of its own cloud only.
    if provider == "aws":
        from node.bootstrap.vm.clouds.aws import Aws

        return Aws
    if provider == "gcp":
        from node.bootstrap.vm.clouds.gcp import Gcp

        return Gcp
    if provider == "local":
        from node.bootstrap.vm.clouds.local import Local

        return Local
    raise ValueError(f"provider {provider!r} has no machines of a cloud's; known: aws, gcp, local")


def bucket_url(settings: Settings) -> str:
    """Return the address of the cluster's bucket, which is a folder on the local stack."""
    if settings.site.bucket:
        return f"{of(settings).scheme}{settings.site.bucket}"
    from node.bootstrap.vm.clouds.local import BUCKET

    return BUCKET


def of(settings: Settings) -> Cloud:
    """Return the cloud of a cluster's machines.

    Raises:
        ValueError: The provider is unknown.
    """
    return kind(settings.design.provider)(settings)
