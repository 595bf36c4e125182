"""Google Cloud's part of `./cluster`: machines are Compute Engine instances of one project."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from infra.clouds.cloud import Cloud, Place
from infra.clouds.provider import CloudProvider
from infra.node.model import ClusterDesign

if TYPE_CHECKING:
    from infra.changes.table import Rules
    from infra.clouds.shell import CloudCluster
    from infra.doctor.finding import Check
    from infra.machines import Described


class GcpProvider(CloudProvider):
    """Compute Engine, and what belongs to it; imported as it is needed."""

    def require(self) -> None:
        from infra.gcp import account

        account.require()

    def cloud(self, place: Place) -> Cloud:
        from infra.gcp.cloud import GcpCloud

        return GcpCloud(place)

    def component(self, design: ClusterDesign) -> CloudCluster:
        from infra.gcp.cluster import GcpCluster

        return GcpCluster(design.name, design)

    def possible(self, design: ClusterDesign) -> None:
        """Everything that a stack file may say of Google Cloud."""

    def describe(self, place: Place, types: Sequence[str]) -> Described:
        from infra.gcp import account
        from infra.gcp.types import ask

        return ask(account.of(str(place.project)), str(place.zone), types)

    def rules(self) -> Rules:
        from infra.gcp import changes

        return changes.RULES

    def checks(self, design: ClusterDesign | None) -> Sequence[Check]:
        from infra.gcp import diagnosis

        return diagnosis.checks(design)
