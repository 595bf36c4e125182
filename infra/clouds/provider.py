"""What `./cluster` does with a cluster on any cloud; a provider says what its cloud is.

Nothing here looks for credentials before something on a real account is to be done.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infra.clouds.cloud import Cloud, Place
from infra.errors import EXIT_REFUSED, UserError
from infra.node.model import BenchmarkDesign, ClusterDesign, Settings
from infra.provider import Command, Files, Outputs, StackUp

if TYPE_CHECKING:
    from infra.benchmark import Shell
    from infra.changes.jobs import Job
    from infra.changes.reach import Weighed
    from infra.changes.table import Change, Rules
    from infra.clouds.entrance import Login
    from infra.clouds.shell import CloudCluster
    from infra.config import StackConfig
    from infra.doctor.finding import Check
    from infra.machines import Described
    from infra.provider import ClusterComponent
    from infra.ssh.target import Target

SSH = "ssh"
"""The check of the way to the login machine, among a provider's."""


class CloudProvider(abc.ABC):
    """Machines are made by a cloud, for an account with credentials."""

    def __init__(self) -> None:
        self._cluster: CloudCluster | None = None

    @abc.abstractmethod
    def require(self) -> None:
        """Have a client library and credentials, without a call.

        Raises:
            UserError: exit 3; what is missing and how to get it.
        """

    @abc.abstractmethod
    def cloud(self, place: Place) -> Cloud:
        """The cloud of a cluster; makes no call, and looks for no credentials yet."""

    @abc.abstractmethod
    def component(self, design: ClusterDesign) -> CloudCluster:
        """Declare the cluster's resources, in a Pulumi program."""

    @abc.abstractmethod
    def possible(self, design: ClusterDesign) -> None:
        """Refuse what a stack file may say and this version cannot make; nothing such: nothing.

        Raises:
            UserError: exit 3; with the path, the value and what is allowed.
        """

    @abc.abstractmethod
    def describe(self, place: Place, types: Sequence[str]) -> Described:
        """What the cloud says of machine types.

        Raises:
            UserError: there are no credentials, or the cloud refuses or does not answer.
        """

    @abc.abstractmethod
    def rules(self) -> Rules:
        """What becomes of a running cluster when its stack file changes."""

    @abc.abstractmethod
    def checks(self, design: ClusterDesign | None) -> Sequence[Check]:
        """What would keep `up` from working; no call is made."""

    # --- infra.provider.Provider --------------------------------------------------------------------------

    def prepare(self, design: ClusterDesign, say: Callable[[str], None]) -> None:
        self.require()

    def create(self, design: ClusterDesign) -> ClusterComponent:
        self.possible(design)
        self._cluster = self.component(design)
        return self._cluster

    def shell(self, design: ClusterDesign) -> Shell:
        from infra.clouds import shell

        if self._cluster is None:
            return shell.Known.of(design)
        return shell.of(design, self._cluster)

    def access(
        self, project: Path, stack: str, outputs: Mapping[str, Any], argv: Sequence[str], *, tty: bool
    ) -> Command:
        from infra.clouds import entrance

        login = self._login(project, stack)
        return Command(entrance.command(project, stack, login, argv, tty=tty), {})

    def _login(self, project: Path, stack: str) -> Login:
        """The login machine of the cluster that is up, also where its stack file has a mistake by now.

        Raises:
            UserError: there is none, or the cloud refuses.
        """
        from infra.clouds import entrance, places, running
        from infra.config.mistakes import ConfigError

        try:
            design = file_design(project, stack)
        except ConfigError:
            noted = places.read(project, stack)
            if not noted:
                raise
            cloud = self.cloud(noted[-1])
            published = running.published(cloud)
            if published is None:
                raise
            return entrance.find(project, stack, published, cloud)
        return entrance.find(project, stack, design, self.cloud(Place.of(design)))

    def ssh(self, project: Path, stack: str) -> Target:
        return self._login(project, stack).target

    def files_here(self, project: Path, stack: str) -> Files | None:
        return None

    def settings_here(self, project: Path, config: StackConfig | StackUp) -> Settings | None:
        return None

    def diagnose(
        self,
        project: Path,
        stack: str,
        design: ClusterDesign | None,
        training: BenchmarkDesign | None,
    ) -> Sequence[Check]:
        return self.checks(design)

    def weigh(
        self,
        project: Path,
        stack: str,
        design: ClusterDesign,
        outputs: Outputs,
        say: Callable[[str], None],
        *,
        replace: bool,
    ) -> Weighed:
        from infra.clouds import places

        self.possible(design)
        self._reachable(design)
        known, wanted = Place.known(outputs()), Place.of(design)
        weighed = self._compare(project, stack, design, self.cloud(known or wanted), say, replace=replace)
        # From here on there may be something of it.
        places.note(project, stack, wanted)
        return weighed

    def changes(
        self, project: Path, stack: str, design: ClusterDesign
    ) -> tuple[Sequence[Change], Sequence[Job] | None] | None:
        """Nothing is compared: a plan needs no credentials, and asks no cloud."""
        return None

    def _reachable(self, design: ClusterDesign) -> None:
        """Nothing is begun whose training nobody could submit from here a quarter of an hour later.

        Raises:
            UserError: exit 3; what is missing for the way to the login machine, and the cure.
        """
        from infra.doctor.finding import Severity

        if not design.trains:
            return
        for check in self.checks(design):
            stops = [f for f in check.look() if f.severity is Severity.STOPS] if check.name == SSH else []
            if stops:
                lines = "\n".join(f"  {f.found.rstrip('.')}. {f.cure}" for f in stops)
                raise UserError(
                    f"nothing was changed: the login machine could not be reached from here\n{lines}",
                    EXIT_REFUSED,
                )

    def _compare(
        self,
        project: Path,
        stack: str,
        design: ClusterDesign,
        cloud: Cloud,
        say: Callable[[str], None],
        *,
        replace: bool,
    ) -> Weighed:
        from infra.changes import reach, table
        from infra.clouds import running

        try:
            there = running.published(cloud)
        except UserError as error:
            if error.exit_code == EXIT_REFUSED:
                raise
            say(f"what this changes cannot be told: {error}")
            return reach.Weighed()
        if there is None:
            return reach.Weighed()
        found = table.compare(there, design, self.rules())
        names = [partition.name for partition in there.partitions]
        way = running.reach(project, stack, there, cloud)
        return reach.weigh(found, names, way, say, replace=replace)

    def drain(
        self,
        project: Path,
        stack: str,
        outputs: Outputs,
        say: Callable[[str], None],
        agree: Callable[[Sequence[Job]], None],
    ) -> None:
        from infra.changes import reach
        from infra.clouds import places, running

        try:
            (place, *_) = self._places(project, stack, outputs)
            places.note(project, stack, place)
            cloud = self.cloud(place)
            try:
                design = running.published(cloud)
            except UserError as error:
                if error.exit_code == EXIT_REFUSED:
                    raise
                # Another release published it: the stack file is the next best.
                design = file_design(project, stack)
        except UserError as error:
            say(reach.silent(error))
            return
        if design is not None:
            reach.drain(
                running.reach(project, stack, design, cloud),
                [partition.name for partition in design.partitions],
                f"`./cluster exec --stack {stack} -- sudo scontrol reconfigure`",
                say,
                agree,
            )

    def mend(self, project: Path, stack: str, say: Callable[[str], None]) -> None:
        """The engine makes anew what has gone, and does not look whether what is there runs."""
        design = file_design(project, stack)
        cloud = self.cloud(Place.of(design))
        hosts = {host.name for host in design.hosts}
        stopped = [machine for machine in cloud.machines("stopped") if machine.name in hosts]
        if stopped:
            names = ", ".join(machine.name for machine in stopped)
            say(f"{names} was stopped: it is started again, with its queue")
            cloud.start(stopped)

    def explain(self, design: ClusterDesign, since: float) -> str | None:
        """Where `up` itself waits for machines, its message has it all."""
        return None

    def clear(self, project: Path, stack: str, outputs: Outputs) -> None:
        from infra.clouds import ending, operations

        for place in self._places(project, stack, outputs):
            cloud = self.cloud(place)
            # Machines first: images are what they start from.
            ending.sweep(cloud, operations.say)
            cloud.end_images(operations.say)

    def leftovers(self, project: Path, stack: str, outputs: Outputs) -> list[str]:
        from infra.clouds import places

        there = self._places(project, stack, outputs)
        for place in there:
            places.note(project, stack, place)
        left = [line for place in there for line in self.cloud(place).leftovers()]
        if not left:
            places.forget(project, stack)
        return left

    def _places(self, project: Path, stack: str, outputs: Outputs) -> list[Place]:
        """Of the clusters that this stack has made; where nothing says so, the stack file's.

        Raises:
            UserError: the stack file has mistakes.
        """
        from infra.clouds import places

        known = Place.known(outputs())
        found = dict.fromkeys([*([known] if known else []), *places.read(project, stack)])
        if found:
            return list(found)
        try:
            return [Place.of(file_design(project, stack))]
        except UserError as error:
            raise UserError(
                f"the engine knows no cluster of stack {stack}, and its file does not say which one to look "
                f"for:\n{error}",
                error.exit_code,
            ) from error


def file_design(project: Path, stack: str) -> ClusterDesign:
    """The stack file's design.

    Raises:
        UserError: it has mistakes.
    """
    from infra import config
    from infra.design import design
    from infra.machines import catalog

    return design(config.load_file(project / f"Pulumi.{stack}.yaml"), catalog())
