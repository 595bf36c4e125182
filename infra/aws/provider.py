"""AWS's part of `./cluster`: machines are EC2 instances of one account and region."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from infra.clouds.cloud import Cloud, Place
from infra.clouds.provider import CloudProvider
from infra.errors import EXIT_REFUSED, UserError
from infra.node.model import ClusterDesign

if TYPE_CHECKING:
    from infra.changes.table import Rules
    from infra.clouds.shell import CloudCluster
    from infra.doctor.finding import Check
    from infra.machines import Described


class AwsProvider(CloudProvider):
    """EC2, and what belongs to it; imported as it is needed, for each client takes its time."""

    def require(self) -> None:
        from infra.aws import account

        account.require()

    def cloud(self, place: Place) -> Cloud:
        from infra.aws.cloud import AwsCloud

        return AwsCloud(place)

    def component(self, design: ClusterDesign) -> CloudCluster:
        from infra.aws.cluster import AwsCluster

        return AwsCluster(design.name, design)

    def possible(self, design: ClusterDesign) -> None:
        if design.scheduler != "slurm":
            raise UserError(
                f"slurm-stacks:cluster.scheduler: {design.scheduler}; AWS Batch is not in this version. "
                "Allowed: slurm, with the section `partitions` in the place of `batch`",
                EXIT_REFUSED,
            )

    def explain(self, design: ClusterDesign, since: float) -> str | None:
        from infra.aws import builds
        from infra.aws.cloud import AwsCloud

        with contextlib.suppress(UserError):  # the failure itself is what the user has to see
            return builds.failure(AwsCloud(Place.of(design)), design, since)
        return None

    def describe(self, place: Place, types: Sequence[str]) -> Described:
        from infra.aws import account
        from infra.aws.types import ask

        return ask(account.client("ec2", place.region), place.region, types)

    def rules(self) -> Rules:
        from infra.aws import changes

        return changes.RULES

    def checks(self, design: ClusterDesign | None) -> Sequence[Check]:
        from infra.aws import diagnosis

        return diagnosis.checks(design)
