"""The provider AWS: machines are EC2 instances of one account and region."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from cli.clouds.cloud import Cloud
from cli.clouds.provider import CloudProvider
from infra.clouds.commands import ClusterRef
from infra.errors import UserError
from node.model import ClusterDesign

if TYPE_CHECKING:
    from cli.changes.table import Rules
    from cli.doctor.finding import Check
    from infra.machines import Described


class AwsProvider(CloudProvider):
    """Connects the shared commands to AWS. Modules are imported late, because each client takes time."""

    def require(self) -> None:
        from cli.aws import account

        account.require()

    def cloud(self, place: ClusterRef) -> Cloud:
        from cli.aws.cloud import AwsCloud

        return AwsCloud(place)

    def explain(self, design: ClusterDesign, since: float) -> str | None:
        from cli.aws import builds
        from cli.aws.cloud import AwsCloud

        with contextlib.suppress(UserError):  # the failure itself is what the user has to see
            return builds.failure(AwsCloud(ClusterRef.of(design)), design, since)
        return None

    def describe(self, place: ClusterRef, types: Sequence[str]) -> Described:
        from cli.aws import account
        from cli.aws.types import ask

        return ask(account.client("ec2", place.region), place.region, types)

    def rules(self) -> Rules:
        from cli.aws import changes

        return changes.RULES

    def checks(self, design: ClusterDesign | None) -> Sequence[Check]:
        from cli.aws import diagnosis

        return diagnosis.checks(design)
