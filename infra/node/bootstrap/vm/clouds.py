"""Which clouds there are for a machine to boot in, and which one is below the machines of a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from infra.node.bootstrap.vm.cloud import Cloud
from infra.node.model import Settings

if TYPE_CHECKING:
    from infra.node.bootstrap.vm.cloud_aws import Aws
    from infra.node.bootstrap.vm.cloud_gcp import Gcp
    from infra.node.bootstrap.vm.cloud_local import Local


def kind(provider: str) -> type[Aws] | type[Gcp] | type[Local]:
    """Raises:
    ValueError: the provider has no machines of a cloud's.
    """
    # Here and not above: a machine has the code of its own cloud only.
    if provider == "aws":
        from infra.node.bootstrap.vm.cloud_aws import Aws

        return Aws
    if provider == "gcp":
        from infra.node.bootstrap.vm.cloud_gcp import Gcp

        return Gcp
    if provider == "local":
        from infra.node.bootstrap.vm.cloud_local import Local

        return Local
    raise ValueError(f"provider {provider!r} has no machines of a cloud's; known: aws, gcp, local")


def of(settings: Settings) -> Cloud:
    """The cloud of this cluster's machines.

    Raises:
        ValueError: there is none.
    """
    return kind(settings.design.provider)(settings)
