"""The provider AWS: machines are EC2 instances of one account and region."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from cli.providers.clouds.base import CloudProvider
from cli.providers.clouds.slurm import SlurmCloudProvider
from cli.providers.interface import ExplainsFailures
from infra.clouds.commands import ClusterRef
from infra.errors import UserError
from node.design.model import ClusterDesign
from operations.clouds.cloud import Cloud

if TYPE_CHECKING:
    from cli.changes.table import Rules
    from cli.findings import Check
    from cli.providers.clouds.listing import Listed
    from infra.instance_types.catalog import Described


class OnAws(CloudProvider, ExplainsFailures):
    """Connects the shared commands to AWS. Modules are imported late, because each client takes time."""

    def require(self, provider_settings: str | None) -> None:
        from operations.aws import account

        account.require(provider_settings)

    def cloud(self, place: ClusterRef) -> Cloud:
        from operations.aws.cloud import AwsCloud

        return AwsCloud(place)

    def explain(self, design: ClusterDesign, since: float) -> str | None:
        from operations.aws import image_builds
        from operations.aws.cloud import AwsCloud

        with contextlib.suppress(UserError):  # the failure itself is what the user has to see
            return image_builds.build_failure(AwsCloud(ClusterRef.of(design)), design, since)
        return None

    def describe(self, place: ClusterRef, types: Sequence[str]) -> Described:
        from cli.providers.aws.types import ask
        from operations.aws import account

        return ask(account.client(place, "ec2"), place.region, types)

    def clusters(self, place: ClusterRef) -> list[Listed]:
        from cli.providers.clouds import listing
        from operations.aws import account, machines

        ec2, region = account.client(place, "ec2"), place.region
        return listing.clusters("aws", region, region, machines.tagged(ec2), machines.networks(ec2))

    def rules(self) -> Rules:
        from cli.providers.aws import changes

        return changes.RULES


class AwsProvider(OnAws, SlurmCloudProvider):
    """Slurm clusters on AWS."""

    def checks(self, design: ClusterDesign | None) -> Sequence[Check]:
        from cli.providers.aws import diagnosis

        return diagnosis.checks(design)
