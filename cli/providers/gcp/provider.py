"""The provider Google Cloud: machines are Compute Engine instances of one project."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cli.providers.clouds.slurm import SlurmCloudProvider
from infra.clouds.commands import ClusterRef
from node.design.model import ClusterDesign
from operations.clouds.cloud import Cloud

if TYPE_CHECKING:
    from cli.changes.table import Rules
    from cli.findings import Check
    from cli.providers.clouds.listing import Listed
    from infra.instance_types.catalog import Described


class GcpProvider(SlurmCloudProvider):
    """Connects the shared commands to Google Cloud. Modules are imported when they are needed."""

    def require(self, provider_settings: str | None) -> None:
        from operations.gcp import account

        account.require(provider_settings)

    def cloud(self, place: ClusterRef) -> Cloud:
        from operations.gcp.cloud import GcpCloud

        return GcpCloud(place)

    def describe(self, place: ClusterRef, types: Sequence[str]) -> Described:
        from cli.providers.gcp.types import ask
        from operations.gcp import account

        return ask(account.of(place), str(place.zone), types)

    def clusters(self, place: ClusterRef) -> list[Listed]:
        from cli.providers.clouds import listing
        from operations.gcp import account, machines

        project_account = account.of(place)
        project_account.region = place.region
        where = f"{place.project}/{place.region}"
        return listing.clusters("gcp", place.region, where, machines.tagged(project_account))

    def rules(self) -> Rules:
        from cli.providers.gcp import changes

        return changes.RULES

    def checks(self, design: ClusterDesign | None) -> Sequence[Check]:
        from cli.providers.gcp import diagnosis

        return diagnosis.checks(design)
