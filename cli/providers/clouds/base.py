"""What `./cluster` does with a cluster on any cloud. The subclasses connect it to their cloud.

No method looks for credentials before it has to do something on a real account.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from infra.clouds.commands import ClusterRef
from infra.effects import Kind
from infra.errors import EXIT_REFUSED, EXIT_USAGE, NotUpError, UserError
from infra.program import launcher
from infra.program.stack import Stack
from node.design.model import BenchmarkDesign, ClusterDesign, Settings
from operations.access import Command, Files, Outputs, StackUp
from operations.clouds.cloud import Cloud

if TYPE_CHECKING:
    from cli.changes.decision import CheckedChanges
    from cli.changes.jobs import Job
    from cli.changes.table import Change, Rules
    from cli.findings import Check
    from cli.providers.clouds.listing import Listed
    from infra.benchmark import Layout
    from infra.instance_types.catalog import Described
    from infra.ssh import Target
    from operations.clouds.ssh_access import Login

STORAGE = "storage"
"""The name of the check of existing storage, which every provider has."""
PLATFORM = "platform"
"""The name of the check of groups and policies that the stack file names."""
SSH = "ssh"
"""The name of the check of SSH access to the login machine, which every provider has."""


class CloudProvider(abc.ABC):
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

    # --- cli.providers.provider.Provider ---------------------------------------------------------------

    def check_host(self, design: ClusterDesign) -> None:
        self.require(design.provider_settings)

    def prepare(self, design: ClusterDesign, say: Callable[[str], None]) -> None:  # noqa: B027 - no override
        """Do nothing: the machines are elsewhere."""

    def layout(self, design: ClusterDesign) -> Layout:
        from infra.clouds import shell

        return shell.shell_paths(design)

    def access(self, up: StackUp, argv: Sequence[str], *, tty: bool) -> Command:
        from operations.clouds import ssh_access

        return Command(ssh_access.command(self.ssh(up), up.make_folder(), argv, tty=tty), {})

    def _login(self, stack: Stack) -> Login:
        """Return the login machine of the cluster that is up, even if the stack file has a mistake by now.

        Raises:
            UserError: There is no login machine, or the cloud refuses.
        """
        from operations.clouds import ssh_access

        cloud, design = self._found(stack)
        try:
            return ssh_access.find(stack, design, cloud)
        except NotUpError:
            # Without its login machine a cluster looks as if it had never been up.
            if (why := self.silence(stack)) is not None:
                raise why from None
            raise

    def _found(self, stack: Stack) -> tuple[Cloud, ClusterDesign]:
        """Return the cloud and the design of the cluster that is up, even if its file has mistakes.

        Raises:
            UserError: The stack file has a mistake and nothing is published, or the cloud refuses.
        """
        from cli.providers.clouds import known_clusters, running
        from infra.config.mistakes import ConfigError

        try:
            design = file_design(stack)
        except ConfigError:
            known_clusters.settings(stack)
            noted = known_clusters.known_places(stack)
            if not noted:
                raise
            cloud = self.cloud(noted[-1])
            published = running.published(cloud)
            if published is None:
                raise
            return cloud, published
        return self.cloud(ClusterRef.of(design)), design

    def on_controller(self, up: StackUp, argv: Sequence[str], *, booting: bool = False) -> Command:
        from operations.clouds import ssh_access

        cloud, _ = self._found(up.stack)
        login = self._login(up.stack)
        return Command(ssh_access.controller_command(up.stack, cloud, login, up.make_folder(), argv), {})

    def ssh(self, up: StackUp) -> Target:
        from operations.clouds import ssh_access

        if up.published is None:
            return self._login(up.stack).target
        cluster = up.published.cluster
        # Whoever has the outputs alone asks with credentials of their own.
        place = ClusterRef(cluster.name, str(cluster.region), cluster.zone, cluster.project)
        return ssh_access.published(cluster, self.cloud(place), launcher.here(up.stack.project))

    def files_here(self, up: StackUp) -> Files | None:
        return None

    def settings_here(self, up: StackUp) -> Settings | None:
        return None

    def make_environment(self, stack: Stack, requirements: Path) -> str:
        raise UserError(
            "on a cloud the controller makes environments, from the stack file: write "
            f"`requirements: {requirements.name}` under slurm-stacks:benchmark, beside `script`, in "
            f"{stack.file.name} and run `./cluster up --stack {stack.name}`. Or make one in your home "
            f"folder, which every machine sees: `./cluster ssh --stack {stack.name}`, then `python3 -m venv`",
            EXIT_REFUSED,
            code="environment.made-by-controller",
        )

    def diagnose(
        self,
        stack: Stack,
        design: ClusterDesign | None,
        training: BenchmarkDesign | None,
    ) -> Sequence[Check]:
        from cli.findings import Check
        from cli.providers.clouds import known_clusters, running

        checks = [*self.checks(design)]
        if design is not None:
            checks.append(Check("name", functools.partial(known_clusters.name_findings, self, stack, design)))
        if design is not None and design.batch is None:
            look = functools.partial(
                running.condition,
                stack,
                functools.partial(self._login, stack),
                functools.partial(self.silence, stack),
            )
            checks.append(Check("condition", look))
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
        from cli.providers.clouds import known_clusters

        self._check_account(design, say)
        known, wanted = ClusterRef.known(outputs(), design.provider_settings), ClusterRef.of(design)
        known_clusters.refuse_taken(self, stack, design, known, say)
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
        from cli.providers.clouds import known_clusters

        return known_clusters.stacks_of_name(self.cloud(ClusterRef.of(design)))

    def changes(
        self, stack: Stack, design: ClusterDesign
    ) -> tuple[Sequence[Change], Sequence[Job] | None] | None:
        """Return nothing: a plan needs no credentials and asks no cloud."""
        return None

    def _check_account(self, design: ClusterDesign, say: Callable[[str], None]) -> None:
        """Refuse an `up` that the account or this machine could not carry out, with all reasons at once.

        Nodes beyond a quota wait for it, so that is only said; so is a quota that may not be read.

        Raises:
            UserError: Each line says what is missing, and the cure. Exit 2 if the stack is larger than a
                quota, otherwise 3.
        """
        from cli.findings import Severity
        from cli.providers.clouds.diagnosis import QUOTAS

        headings = {
            STORAGE: "this storage cannot be used",
            PLATFORM: "these groups or this policy cannot be used",
            QUOTAS: "the account's quotas are too small for what is up all the time",
            SSH: "the login machine could not be reached from here",
        }
        if not design.trains:
            del headings[SSH]
        checks = [check for check in self.checks(design) if check.name in headings]
        found = {check.name: list(check.look()) for check in checks}
        lines: list[str] = []
        for name, heading in headings.items():
            stopping = [finding for finding in found.get(name, []) if finding.severity is Severity.STOPS]
            if name == QUOTAS:
                stopping = [finding for finding in stopping if finding.group == QUOTAS]
            if stopping:
                lines += [
                    heading,
                    *(f"  {finding.found.rstrip('.')}. {finding.cure}" for finding in stopping),
                ]
        for finding in found.get(QUOTAS, []):
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
        from operations.clouds.cloud import kept_report

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
        found = table.compare(design_up, design, self.rules())
        new_head = (*table.NEW_HEAD, Kind.HEAD)
        if heads.CONTROLLER in lost or any(change.kind in new_head for change in found):
            heads.check_release(cloud, design_up, design, stack.name, say)
        names = [partition.name for partition in design_up.partitions]
        way = running.reach(stack, design_up, cloud, "up --replace" if replace else "up")
        checked = decision.check_changes(found, names, way, say, replace=replace, stack=stack.name)
        return dataclasses.replace(checked, lost=lost)

    def drain(
        self,
        stack: Stack,
        outputs: Outputs,
        say: Callable[[str], None],
        agree: Callable[[Sequence[Job]], None],
    ) -> None:
        from cli.changes import decision
        from cli.providers.clouds import known_clusters, running

        known_clusters.refuse_unknown_account(stack)
        known_clusters.refuse_foreign(self, stack, outputs, file_design)
        try:
            (place, *_) = self._known_clusters(stack, outputs)
            known_clusters.note_cluster(stack, place)
            cloud = self.cloud(place)
            try:
                design = running.published(cloud)
            except UserError as error:
                if error.exit_code == EXIT_REFUSED:
                    raise
                # Another release published the design; the stack file is the next best source.
                design = file_design(stack)
        except UserError as error:
            say(decision.no_answer(error))
            return
        if design is not None:
            decision.drain(running.reach(stack, design, cloud, "down"), stack.name, say, agree)

    def repair(self, stack: Stack, say: Callable[[str], None]) -> None:
        """Start stopped hosts: for the engine nothing has changed. Those that are gone it has made before."""
        from cli.providers.clouds import heads

        design = file_design(stack)
        heads.start_stopped(self.cloud(ClusterRef.of(design)), design, stack.name, say)

    def silence(self, stack: Stack) -> UserError | None:
        from cli.providers.clouds import heads, known_clusters, running

        try:
            place = ClusterRef.of(file_design(stack))
        except UserError:
            noted = known_clusters.known_places(stack)
            if not noted:
                return None
            place = noted[-1]
        try:
            cloud = self.cloud(place)
            up = running.published(cloud)
            return heads.silence(cloud, up, stack.name) if up is not None and up.hosts else None
        except UserError:  # what the caller has to say is better than that the cloud does not answer either
            return None

    def explain(self, design: ClusterDesign, since: float) -> str | None:
        """Return `None`: `up` waits for the machines itself, and its message says everything."""
        return None

    def lost(
        self, stack: Stack, outputs: Outputs, say: Callable[[str], None], hosts: Sequence[str]
    ) -> Sequence[str] | None:
        from cli.providers.clouds import heads

        try:
            (place, *_) = self._known_clusters(stack, outputs)
            return heads.gone(self.cloud(place), hosts, stack.name, say)
        except UserError as error:
            say(f"the engine itself asks for the machines of {', '.join(hosts)}, because: {error}")
            return None

    def force_cleanup(self, stack: Stack, outputs: Outputs) -> None:
        from operations.clouds import commands

        for place in self._known_clusters(stack, outputs):
            cloud = self.cloud(place)
            # Machines first: images are what they start from.
            commands.terminate_compute(cloud, commands.say)
            cloud.end_images(commands.say)

    def leftovers(self, stack: Stack, outputs: Outputs) -> list[str]:
        from cli.providers.clouds import known_clusters

        places = self._known_clusters(stack, outputs)
        for place in places:
            known_clusters.note_cluster(stack, place)
        left: list[str] = []
        for place in places:
            with known_clusters.as_former_account(stack, place):
                left += self.cloud(place).leftovers()
        if not left:
            known_clusters.forget_cluster(stack)
        return left

    def neighbours(self, stack: Stack) -> list[str]:
        """Return empty: each node is a machine of its own."""
        return []

    def limits_here(self, stack: Stack, design: ClusterDesign) -> list[str]:
        """Return empty: the cluster's machines are elsewhere."""
        return []

    def kept(self, stack: Stack, outputs: Outputs) -> list[str]:
        from operations.clouds.cloud import kept_report

        try:
            paths = {mount.name: mount.path for mount in file_design(stack).mounts}
        except UserError:
            paths = {}
        try:
            found = [
                storage
                for place in self._known_clusters(stack, outputs)
                for storage in self.cloud(place).kept(paths)
            ]
        except UserError as error:
            return [f"what stays on purpose could not be listed: {error}"]
        return kept_report(found, stack.file.name, paths)

    def _known_clusters(self, stack: Stack, outputs: Outputs) -> list[ClusterRef]:
        """Return the clusters that this stack has made; without a record of any, the stack file's cluster.

        Raises:
            UserError: The stack file has mistakes, or its settings of the provider are refused.
        """
        from cli.providers.clouds import known_clusters
        from infra.config import provider_settings

        settings = known_clusters.settings(stack)
        known = ClusterRef.known(outputs(), settings)
        noted = known_clusters.known_places(stack)
        # A cluster was made as the settings of then say, and the engine ends it as those of now say.
        others = [p for p in noted if not provider_settings.same_account(p.provider_settings, settings)]
        noted = [*(dataclasses.replace(place, provider_settings=settings) for place in noted), *others]
        found = dict.fromkeys([*([known] if known else []), *noted])
        if found:
            return list(found)
        try:
            return [ClusterRef.of(file_design(stack))]
        except UserError as error:
            raise UserError(
                f"the engine knows no cluster of stack {stack.name}, and its file does not say which one "
                f"to look for:\n{error}",
                error.exit_code,
                code="cluster.unknown",
            ) from error


def file_design(stack: Stack) -> ClusterDesign:
    """Return the stack file's design.

    Raises:
        UserError: The stack file has mistakes.
    """
    from infra import config
    from infra.design import design
    from infra.instance_types.catalog import catalog

    return design(config.load_file(stack.file, stack.project), catalog())
