"""What `./cluster` does with a Slurm cluster on any cloud: by way of its login machine, and of its cloud."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar

from cli.providers.clouds import known_clusters, name_clashes
from cli.providers.clouds.base import CloudProvider
from cli.providers.interface import HasController, KnowsMachines, Lacks, MakesEnvironments
from cli.providers.slurm import SlurmCommands
from infra.clouds.commands import ClusterRef
from infra.errors import EXIT_REFUSED, NotUpError, UserError
from infra.program import launcher
from infra.program.stack import Stack
from node.design.model import BenchmarkDesign, ClusterDesign
from operations.access import Command, Outputs, StackUp
from operations.clouds.cloud import Cloud

if TYPE_CHECKING:
    from cli.changes.jobs import Job
    from cli.findings import Check
    from infra.benchmark import Layout
    from infra.ssh import Target
    from operations.clouds.ssh_access import Login


def _made_by_controller(up: StackUp, requirements: str) -> UserError:
    stack = up.stack
    return UserError(
        "on a cloud the controller makes environments, from the stack file: write "
        f"`requirements: {requirements}` under slurm-stacks:benchmark, beside `script`, in "
        f"{stack.file.name} and run `./cluster up --stack {stack.name}`. Or make one in your home "
        f"folder, which every machine sees: `./cluster ssh --stack {stack.name}`, then `python3 -m venv`",
        EXIT_REFUSED,
        code="environment.made-by-controller",
    )


class SlurmCloudProvider(SlurmCommands, CloudProvider, HasController, KnowsMachines):
    """A provider of Slurm clusters whose machines are made by a cloud."""

    LACKS: ClassVar[Lacks] = {MakesEnvironments: _made_by_controller}

    def layout(self, design: ClusterDesign) -> Layout:
        from infra.clouds import shell

        return shell.shell_paths(design)

    def access(self, up: StackUp, argv: Sequence[str], *, tty: bool) -> Command:
        from operations.clouds import ssh_access

        return Command(ssh_access.command(self.ssh(up), up.make_folder(), argv, tty=tty), {})

    def _login(self, up: StackUp) -> Login:
        """Return the login machine of the cluster that is up, even if the stack file has a mistake by now.

        Raises:
            UserError: There is no login machine, or the cloud refuses.
        """
        from operations.clouds import ssh_access

        cloud, design = self._found(up)
        try:
            return ssh_access.find(up.stack, design, cloud)
        except NotUpError:
            # Without its login machine a cluster looks as if it had never been up.
            if (why := self.silence(up)) is not None:
                raise why from None
            raise

    def _found(self, up: StackUp) -> tuple[Cloud, ClusterDesign]:
        """Return the cloud and the design of the cluster that is up, even if its file has mistakes.

        Raises:
            UserError: The stack file has a mistake and nothing is published, or the cloud refuses.
        """
        from cli.providers.clouds import running
        from infra.config.mistakes import ConfigError

        try:
            design = up.design
        except ConfigError:
            known_clusters.settings(up.stack)
            noted = known_clusters.known_places(up.stack)
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

        cloud, _ = self._found(up)
        login = self._login(up)
        return Command(ssh_access.controller_command(up.stack, cloud, login, up.make_folder(), argv), {})

    def ssh(self, up: StackUp) -> Target:
        from operations.clouds import ssh_access

        if up.published is None:
            return self._login(up).target
        cluster = up.published.cluster
        # Whoever has the outputs alone asks with credentials of their own.
        place = ClusterRef(cluster.name, str(cluster.region), cluster.zone, cluster.project)
        return ssh_access.published(cluster, self.cloud(place), launcher.here(up.stack.project))

    def diagnose(
        self,
        stack: Stack,
        design: ClusterDesign | None,
        training: BenchmarkDesign | None,
    ) -> Sequence[Check]:
        from cli.findings import Check
        from cli.providers.clouds import running

        checks = super().diagnose(stack, design, training)
        if design is None:
            return checks
        up = StackUp(stack, design.provider)
        login, silence = functools.partial(self._login, up), functools.partial(self.silence, up)
        look = functools.partial(running.condition, stack, login, silence)
        return [*checks, Check("condition", look)]

    def drain(
        self,
        up: StackUp,
        outputs: Outputs,
        say: Callable[[str], None],
        agree: Callable[[Sequence[Job]], None],
    ) -> None:
        from cli.changes import decision
        from cli.providers.clouds import running

        known_clusters.refuse_unknown_account(up.stack)
        name_clashes.refuse_foreign(self, up, outputs)
        try:
            (place, *_) = known_clusters.made(up, outputs)
            known_clusters.note_cluster(up.stack, place)
            cloud = self.cloud(place)
            try:
                design = running.published(cloud)
            except UserError as error:
                if error.exit_code == EXIT_REFUSED:
                    raise
                # Another release published the design; the stack file is the next best source.
                design = up.design
        except UserError as error:
            say(decision.no_answer(error))
            return
        if design is not None:
            decision.drain(running.reach(up.stack, design, cloud, "down"), up.stack.name, say, agree)

    def repair(self, up: StackUp, say: Callable[[str], None]) -> None:
        """Start stopped hosts: for the engine nothing has changed. Those that are gone it has made before."""
        from cli.providers.clouds import heads

        design = up.design
        heads.start_stopped(self.cloud(ClusterRef.of(design)), design, up.stack.name, say)

    def silence(self, up: StackUp) -> UserError | None:
        from cli.providers.clouds import heads, running

        try:
            place = ClusterRef.of(up.design)
        except UserError:
            noted = known_clusters.known_places(up.stack)
            if not noted:
                return None
            place = noted[-1]
        try:
            cloud = self.cloud(place)
            known = running.published(cloud)
            return heads.silence(cloud, known, up.stack.name) if known is not None and known.hosts else None
        except UserError:  # what the caller has to say is better than that the cloud does not answer either
            return None

    def lost(
        self, up: StackUp, outputs: Outputs, say: Callable[[str], None], hosts: Sequence[str]
    ) -> Sequence[str] | None:
        from cli.providers.clouds import heads

        try:
            (place, *_) = known_clusters.made(up, outputs)
            return heads.gone(self.cloud(place), hosts, up.stack.name, say)
        except UserError as error:
            say(f"the engine itself asks for the machines of {', '.join(hosts)}, because: {error}")
            return None
