"""The provider of stacks whose scheduler is AWS Batch: a queue and jobs, without a login machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar

from cli.hints import hint
from cli.providers.aws.provider import OnAws
from cli.providers.batch import changes, queues, teardown
from cli.providers.batch.commands import BatchCommands
from cli.providers.clouds import known_clusters, name_clashes
from cli.providers.interface import (
    BillsJobs,
    ChecksItsEnd,
    HasController,
    HasLoginMachine,
    HasOwnReport,
    Lacks,
    MakesEnvironments,
)
from infra.clouds.commands import ClusterRef
from infra.errors import EXIT_REFUSED, UserError
from infra.program.stack import Stack
from node.design.model import ClusterDesign
from operations.access import Outputs, StackUp

if TYPE_CHECKING:
    from cli.changes.decision import CheckedChanges
    from cli.changes.jobs import Job
    from cli.findings import Check


def _no_login(up: StackUp, _asked: str) -> UserError:
    stack = up.stack.name
    return UserError(
        "AWS Batch has no login machine: jobs are containers, and there is nothing to log in to. "
        f"`{hint('status', stack)}` shows the queue, `{hint('logs', stack, 'JOB')}` a job's output, "
        f"`{hint('run', stack, '--nodes 2')}` runs the job; to run another program, set "
        f"batch.container.command in Pulumi.{stack}.yaml; copy files through S3",
        EXIT_REFUSED,
        code="batch.no-login-machine",
    )


def _no_bill(up: StackUp, _asked: str) -> UserError:
    return UserError(
        "AWS Batch chooses the machines, and nothing tells which job had which: "
        f"`{hint('status', up.stack.name)}` shows what the whole cluster has cost. AWS's Cost Explorer "
        "divides the account's bill by the tag slurm-stacks:cluster, so a team with a stack of its own has a "
        "bill of its own",
        EXIT_REFUSED,
        code="cost.batch",
    )


def _no_backup(_up: StackUp, asked: str) -> UserError:
    return UserError(
        f"{asked} is for Slurm's state, and AWS Batch keeps its own", EXIT_REFUSED, code="backup.batch"
    )


class BatchProvider(BatchCommands, OnAws, ChecksItsEnd, HasOwnReport):
    """Clusters of AWS Batch, which have no machine of their own to ask."""

    LACKS: ClassVar[Lacks] = {
        HasLoginMachine: _no_login,
        MakesEnvironments: _no_login,
        HasController: _no_backup,
        BillsJobs: _no_bill,
    }

    # --- the account -----------------------------------------------------------------------------------

    def of_name(self, design: ClusterDesign) -> list[str]:
        return [*teardown.left([ClusterRef.of(design)]), *super().of_name(design)]

    def stacks_of(self, design: ClusterDesign) -> set[str]:
        client = teardown.client_of(ClusterRef.of(design))
        return super().stacks_of(design) | changes.stacks(client, design.name)

    def checks(self, design: ClusterDesign | None) -> Sequence[Check]:
        from cli.providers.batch import diagnosis

        return diagnosis.checks(design)

    # --- up and down -----------------------------------------------------------------------------------

    def check_changes(
        self,
        stack: Stack,
        design: ClusterDesign,
        outputs: Outputs,
        say: Callable[[str], None],
        *,
        replace: bool,
    ) -> CheckedChanges:
        from cli.changes.closing import Holder

        place = ClusterRef.of(design)
        client = teardown.client_of(place)
        changes.refuse_taken(client, design)
        queues.refuse_if_working(client, place.cluster, Holder.of(stack, "up"), stack.name)
        if (known := ClusterRef.known(outputs(), design.provider_settings)) is not None:
            changes.refuse_shared_addresses(teardown.client_of(known), design, known)
        if not replace:
            self.check_end(design, outputs)
        return super().check_changes(stack, design, outputs, say, replace=replace)

    def check_end(self, design: ClusterDesign, outputs: Outputs) -> None:
        there = ClusterRef.known(outputs(), design.provider_settings) or ClusterRef.of(design)
        changes.check(teardown.client_of(there), design, there)

    def repair(self, up: StackUp, say: Callable[[str], None]) -> None:
        """Open the queues that an interrupted command has closed."""
        place = ClusterRef.of(up.design)
        queues.open_interrupted(teardown.client_of(place)("batch"), place.cluster, say)

    def drain(
        self,
        up: StackUp,
        outputs: Outputs,
        say: Callable[[str], None],
        agree: Callable[[Sequence[Job]], None],
    ) -> None:
        known_clusters.refuse_unknown_account(up.stack)
        name_clashes.refuse_foreign(self, up, outputs)
        teardown.drain(known_clusters.made(up, outputs), up.stack, say, agree)

    def force_cleanup(self, up: StackUp, outputs: Outputs) -> None:
        teardown.remove(known_clusters.made(up, outputs))
        super().force_cleanup(up, outputs)

    def leftovers(self, up: StackUp, outputs: Outputs) -> list[str]:
        return [*teardown.left(known_clusters.made(up, outputs)), *super().leftovers(up, outputs)]
