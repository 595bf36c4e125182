"""What `./cluster` does with a cluster on any cloud. The subclasses connect it to their cloud.

No method looks for credentials before it has to do something on a real account.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from cli.providers.clouds import known_clusters, name_clashes
from cli.providers.interface import KeepsStorage, Provider
from infra.clouds.commands import ClusterRef
from infra.effects import Kind
from infra.errors import EXIT_REFUSED, EXIT_USAGE, UserError
from infra.program.stack import Stack
from node.design.model import BenchmarkDesign, ClusterDesign
from operations.access import Outputs, StackUp
from operations.clouds.cloud import Cloud

if TYPE_CHECKING:
    from cli.changes.decision import CheckedChanges
    from cli.changes.table import Rules
    from cli.findings import Check
    from cli.providers.clouds.listing import Listed
    from infra.instance_types.catalog import Described

STORAGE = "storage"
"""The name of the check of existing storage, which every provider has."""
PLATFORM = "platform"
"""The name of the check of groups and policies that the stack file names."""
SSH = "ssh"
"""The name of the check of SSH access to the login machine, which every provider has."""


class CloudProvider(Provider, KeepsStorage):
    """A provider whose machines are made by a cloud, for an account with credentials."""

    @abc.abstractmethod
    def require(self, provider_settings: str | None) -> None:
        """Check that there are a client library and credentials, without a call.

        Args:
            provider_settings: As in `ClusterRef`.

        Raises:
            UserError: Exit 3; the message says what is missing and how to get it.
        """

    @abc.abstractmethod
    def cloud(self, place: ClusterRef) -> Cloud:
        """Return the cloud of a cluster, without a call and without a look for credentials."""

    @abc.abstractmethod
    def describe(self, place: ClusterRef, types: Sequence[str]) -> Described:
        """Return what the cloud reports about instance types.

        Raises:
            UserError: There are no credentials, or the cloud refuses or does not answer.
        """

    @abc.abstractmethod
    def clusters(self, place: ClusterRef) -> list[Listed]:
        """Return the clusters that have machines in a region, by their tags.

        Args:
            place: The region, the project and as whom to ask; its cluster does not matter.

        Raises:
            UserError: There are no credentials, or the cloud refuses or does not answer.
        """

    @abc.abstractmethod
    def rules(self) -> Rules:
        """Return what becomes of a running cluster when its stack file changes."""

    @abc.abstractmethod
    def checks(self, design: ClusterDesign | None) -> Sequence[Check]:
        """Return the checks for what would keep `up` from working; they make no call."""

    # --- cli.providers.interface -----------------------------------------------------------------------

    def check_host(self, design: ClusterDesign) -> None:
        self.require(design.provider_settings)

    def diagnose(
        self,
        stack: Stack,
        design: ClusterDesign | None,
        training: BenchmarkDesign | None,
    ) -> Sequence[Check]:
        from cli.findings import Check

        checks = [*self.checks(design)]
        if design is not None:
            checks.append(Check("name", functools.partial(name_clashes.name_findings, self, stack, design)))
        return checks

    def check_changes(
        self,
        stack: Stack,
        design: ClusterDesign,
        outputs: Outputs,
        say: Callable[[str], None],
        *,
        replace: bool,
    ) -> CheckedChanges:
        self._check_account(design, say)
        known, wanted = ClusterRef.known(outputs(), design.provider_settings), ClusterRef.of(design)
        name_clashes.refuse_taken(self, stack, design, known, say)
        checked = self._compare(stack, design, self.cloud(known or wanted), say, replace=replace)
        # From here on, something of this cluster may exist.
        known_clusters.note_cluster(stack, wanted)
        return checked

    def of_name(self, design: ClusterDesign) -> list[str]:
        """One line for each thing in the cloud that is of a cluster with this design's name.

        Raises:
            UserError: There are no credentials, or the cloud refuses or does not answer.
        """
        return self.cloud(ClusterRef.of(design)).leftovers()

    def stacks_of(self, design: ClusterDesign) -> set[str]:
        """Return the stacks that the labels of a cluster with this design's name say.

        Raises:
            UserError: As for `of_name`.
        """
        return name_clashes.stacks_of_name(self.cloud(ClusterRef.of(design)))

    def _check_account(self, design: ClusterDesign, say: Callable[[str], None]) -> None:
        """Refuse an `up` that the account or this machine could not carry out, with all reasons at once.

        Nodes beyond a quota wait for it, so that is only said; so is a quota that may not be read.

        Raises:
            UserError: Each line says what is missing, and the cure. Exit 2 if the stack is larger than a
                quota, otherwise 3.
        """
        from cli.findings import Severity
        from cli.providers.clouds.quotas import QUOTAS

        headings = {
            STORAGE: "this storage cannot be used",
            PLATFORM: "these groups or this policy cannot be used",
            QUOTAS: "the account's quotas are too small for what is up all the time",
            SSH: "the login machine could not be reached from here",
        }
        if not design.trains:
            del headings[SSH]
        checks = [check for check in self.checks(design) if check.name in headings]
        by_check = {check.name: list(check.look()) for check in checks}
        lines: list[str] = []
        for name, heading in headings.items():
            stopping = [finding for finding in by_check.get(name, []) if finding.severity is Severity.STOPS]
            if name == QUOTAS:
                stopping = [finding for finding in stopping if finding.group == QUOTAS]
            if stopping:
                lines += [
                    heading,
                    *(f"  {finding.found.rstrip('.')}. {finding.cure}" for finding in stopping),
                ]
        for finding in by_check.get(QUOTAS, []):
            if finding.group == QUOTAS and finding.severity is Severity.WARNS:
                say(f"quotas: {finding.found}. {finding.cure}")
        if lines:
            code = EXIT_USAGE if headings[QUOTAS] in lines else EXIT_REFUSED
            raise UserError("nothing was changed: " + "\n".join(lines), code, code="change.not-checked")

    def _compare(
        self,
        stack: Stack,
        design: ClusterDesign,
        cloud: Cloud,
        say: Callable[[str], None],
        *,
        replace: bool,
    ) -> CheckedChanges:
        from cli.changes import decision, table
        from cli.providers.clouds import heads, running
        from operations.clouds.kept import kept_report

        try:
            design_up = running.published(cloud)
        except UserError as error:
            if error.exit_code == EXIT_REFUSED:
                raise
            say(f"what this changes cannot be told: {error}")
            return decision.CheckedChanges()
        if design_up is None:
            if any(mount.keep for mount in design.mounts):
                # Without `existing` the cluster gets new ones, and the old ones are paid for, too.
                paths = {mount.name: mount.path for mount in design.mounts}
                for line in kept_report(cloud.kept(paths), stack.file.name, paths):
                    say(line)
            return decision.CheckedChanges()
        lost = heads.lost(cloud, design_up, design, stack.name, say, replace=replace)
        differences = table.compare(design_up, design, self.rules())
        new_head = (*table.NEW_HEAD, Kind.HEAD)
        if heads.CONTROLLER in lost or any(change.kind in new_head for change in differences):
            heads.check_release(cloud, design_up, design, stack.name, say)
        names = list(design_up.slurm_partitions())
        way = running.reach(stack, design_up, cloud, "up --replace" if replace else "up")
        checked = decision.check_changes(differences, names, way, say, replace=replace, design=design)
        return dataclasses.replace(checked, lost=lost)

    def force_cleanup(self, up: StackUp, outputs: Outputs) -> None:
        from operations.clouds import commands, termination

        for place in known_clusters.made(up, outputs):
            cloud = self.cloud(place)
            # Machines first: images are what they start from.
            termination.terminate_compute(cloud, commands.say)
            cloud.end_images(commands.say)

    def leftovers(self, up: StackUp, outputs: Outputs) -> list[str]:
        places = known_clusters.made(up, outputs)
        for place in places:
            known_clusters.note_cluster(up.stack, place)
        left: list[str] = []
        for place in places:
            with known_clusters.as_former_account(up.stack, place):
                left += self.cloud(place).leftovers()
        if not left:
            known_clusters.forget_cluster(up.stack)
        return left

    def kept(self, up: StackUp, outputs: Outputs) -> list[str]:
        from operations.clouds.kept import kept_report

        try:
            paths = {mount.name: mount.path for mount in up.design.mounts}
        except UserError:
            paths = {}
        try:
            remaining = [
                storage
                for place in known_clusters.made(up, outputs)
                for storage in self.cloud(place).kept(paths)
            ]
        except UserError as error:
            return [f"what stays on purpose could not be listed: {error}"]
        return kept_report(remaining, up.stack.file.name, paths)
