"""The provider AWS: machines are EC2 instances of one account and region."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from cli.providers.clouds.base import CloudProvider, file_design
from infra.clouds.commands import ClusterRef
from infra.errors import UserError
from infra.program.stack import Stack
from node.design.model import ClusterDesign
from operations.access import Outputs
from operations.clouds.cloud import Cloud

if TYPE_CHECKING:
    from cli.changes.decision import CheckedChanges
    from cli.changes.jobs import Job
    from cli.changes.table import Rules
    from cli.findings import Check
    from cli.providers.clouds.listing import Listed
    from infra.instance_types.catalog import Described
    from operations.clouds.ssh_access import Login


class AwsProvider(CloudProvider):
    """Connects the shared commands to AWS. Modules are imported late, because each client takes time."""

    def require(self, provider_settings: str | None) -> None:
        from operations.aws import account

        account.require(provider_settings)

    def cloud(self, place: ClusterRef) -> Cloud:
        from operations.aws.cloud import AwsCloud

        return AwsCloud(place)

    def explain(self, design: ClusterDesign, since: float) -> str | None:
        from operations.aws import cloud
        from operations.aws.cloud import AwsCloud

        with contextlib.suppress(UserError):  # the failure itself is what the user has to see
            return cloud.build_failure(AwsCloud(ClusterRef.of(design)), design, since)
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

    def _login(self, stack: Stack) -> Login:
        from cli.providers.batch.commands import refuse_login

        if of_batch(stack, dict):
            raise refuse_login(stack.name)
        return super()._login(stack)

    def of_name(self, design: ClusterDesign) -> list[str]:
        found = super().of_name(design)
        if design.batch is None:
            return found
        from cli.providers.batch import teardown

        return [*teardown.left([ClusterRef.of(design)]), *found]

    def stacks_of(self, design: ClusterDesign) -> set[str]:
        found = super().stacks_of(design)
        if design.batch is None:
            return found
        from cli.providers.batch import changes, teardown

        return found | changes.stacks(teardown.client_of(ClusterRef.of(design)), design.name)

    def check_changes(
        self,
        stack: Stack,
        design: ClusterDesign,
        outputs: Outputs,
        say: Callable[[str], None],
        *,
        replace: bool,
    ) -> CheckedChanges:
        if design.batch is not None:
            from cli.changes.closing import Holder
            from cli.providers.batch import changes, queues, teardown

            place = ClusterRef.of(design)
            client, own = teardown.client_of(place), Holder.of(stack, "up")
            changes.refuse_taken(client, design)
            queues.refuse_if_working(client, place.cluster, own, stack.name)
            if (known := ClusterRef.known(outputs(), design.provider_settings)) is not None:
                changes.refuse_shared_addresses(teardown.client_of(known), design, known)
        if not replace and (design.batch is not None or of_batch(stack, outputs)):
            from cli.providers.batch import changes, teardown

            target = ClusterRef.known(outputs(), design.provider_settings) or ClusterRef.of(design)
            changes.check(teardown.client_of(target), design, target)
        return super().check_changes(stack, design, outputs, say, replace=replace)

    def drain(
        self,
        stack: Stack,
        outputs: Outputs,
        say: Callable[[str], None],
        agree: Callable[[Sequence[Job]], None],
    ) -> None:
        if not of_batch(stack, outputs):
            super().drain(stack, outputs, say, agree)
            return
        from cli.providers.batch import teardown
        from cli.providers.clouds import known_clusters

        known_clusters.refuse_unknown_account(stack)
        known_clusters.refuse_foreign(self, stack, outputs, file_design)

        teardown.drain(self._known_clusters(stack, outputs), stack, say, agree)

    def repair(self, stack: Stack, say: Callable[[str], None]) -> None:
        design = file_design(stack)
        if design.batch is None:
            super().repair(stack, say)
            return
        from cli.providers.batch import queues, teardown

        place = ClusterRef.of(design)
        queues.open_interrupted(teardown.client_of(place)("batch"), place.cluster, say)

    def force_cleanup(self, stack: Stack, outputs: Outputs) -> None:
        if of_batch(stack, outputs):
            from cli.providers.batch import teardown

            teardown.remove(self._known_clusters(stack, outputs))
        super().force_cleanup(stack, outputs)

    def leftovers(self, stack: Stack, outputs: Outputs) -> list[str]:
        more = []
        if of_batch(stack, outputs):
            from cli.providers.batch import teardown

            more = teardown.left(self._known_clusters(stack, outputs))
        return [*more, *super().leftovers(stack, outputs)]

    def rules(self) -> Rules:
        from cli.providers.aws import changes

        return changes.RULES

    def checks(self, design: ClusterDesign | None) -> Sequence[Check]:
        from cli.providers.aws import diagnosis

        return diagnosis.checks(design)


def of_batch(stack: Stack, outputs: Outputs) -> bool:
    """Whether a stack's scheduler is AWS Batch: that of the stack that is up, else what its file says."""
    cluster = outputs().get("cluster")
    if isinstance(cluster, Mapping) and isinstance(cluster.get("scheduler"), Mapping):
        return bool(cluster["scheduler"].get("name") == "batch")
    try:
        return file_design(stack).batch is not None
    except UserError:
        return False
