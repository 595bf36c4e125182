"""The local stack's part of `./cluster`: preparation, access, changes, and the search for leftovers."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cli.engine import lock
from cli.providers.interface import (
    HasController,
    HasFilesHere,
    InstallsHere,
    MakesEnvironments,
    PlansChanges,
    Provider,
    SharesCores,
)
from cli.providers.local import clusters
from cli.providers.slurm import SlurmCommands
from infra.errors import EXIT_REFUSED, NotUpError, UserError
from infra.program import locations, owner
from infra.program.stack import Stack
from localcloud import addresses
from node.design.model import APPS, CONTAINER, BenchmarkDesign, ClusterDesign, Settings
from operations.access import Command, Files, Inside, Outputs, StackUp
from operations.local import agent, loopback, machine_access, namespaces, system_packages
from operations.local.run_directory import RunDirectory

if TYPE_CHECKING:
    from cli.changes.decision import CheckedChanges
    from cli.changes.jobs import Job
    from cli.changes.table import Change
    from cli.findings import Check
    from infra.benchmark import Layout
    from infra.ssh import Target


class LocalProvider(
    SlurmCommands,
    Provider,
    HasController,
    HasFilesHere,
    InstallsHere,
    MakesEnvironments,
    PlansChanges,
    SharesCores,
):
    """The provider whose machines are on this host: processes, or containers that boot."""

    def check_host(self, design: ClusterDesign) -> None:
        from cli.providers.local import host_checks

        host_checks.check()

    def prepare(self, design: ClusterDesign, say: Callable[[str], None]) -> None:
        from cli.providers.local import clusters

        if design.isolation == CONTAINER:
            from operations.local import container_images, containers

            if os.geteuid() == 0:
                system_packages.ensure_for(system_packages.CONTAINERS, say)
            containers.check_support(design.isolation)
            container_images.ensure_image(design, say)
        else:
            loopback.check_loopback()
            system_packages.ensure(say, accounting=design.slurm.accounting)
            system_packages.add_pmix(say)
        for text in clusters.gone_messages():
            say(text)

    def layout(self, design: ClusterDesign) -> Layout:
        from infra.local import LocalShell

        return LocalShell(design.stack, design.isolation, design.requirements)

    def access(self, up: StackUp, argv: Sequence[str], *, tty: bool) -> Command:
        return machine_access.command(_standing(up), argv)

    def on_controller(self, up: StackUp, argv: Sequence[str], *, booting: bool = False) -> Command:
        run = machine_access.run_directory(up)
        if not (booting and machine_access.controller(run)):
            run = _standing(up)
        if not run.containers:
            raise UserError(
                f"the machines of stack {up.stack.name} are processes of this machine, as Slurm's daemons "
                "and its "
                "database are, and their files end with it: backups are for machines of their own. Write "
                "local: {isolation: container} for such machines here",
                EXIT_REFUSED,
                code="backup.processes",
            )
        return machine_access.command(run, argv)

    def ssh(self, up: StackUp) -> Target:
        from cli.providers.local import sshd

        return sshd.target(up, _standing(up))

    def files_here(self, up: StackUp) -> Files | Inside:
        return machine_access.files(_standing(up))

    def settings_here(self, up: StackUp) -> Settings | None:
        from cli.providers.local import published_settings

        return published_settings.settings(up)

    def make_environment(self, stack: Stack, requirements: Path) -> str:
        from operations.local import environment_builds

        run = _standing(StackUp(stack, "local"))
        uv = Path(sys.executable).with_name("uv")
        folder = (run.apps / "envs").resolve()
        environment = environment_builds.build_own_environment(
            requirements.parent, requirements.name, folder, uv
        )
        return f"{APPS if run.containers else run.apps}/envs/{environment.name}"

    def diagnose(
        self,
        stack: Stack,
        design: ClusterDesign | None,
        training: BenchmarkDesign | None,
    ) -> Sequence[Check]:
        from cli.providers.local import diagnosis

        return diagnosis.checks(stack, design, training)

    def check_changes(
        self,
        stack: Stack,
        design: ClusterDesign,
        outputs: Outputs,
        say: Callable[[str], None],
        *,
        replace: bool,
    ) -> CheckedChanges:
        from cli.providers.local import running

        return running.check_changes(RunDirectory.of(stack), stack, design, say, replace=replace)

    def changes(
        self, stack: Stack, design: ClusterDesign
    ) -> tuple[Sequence[Change], Sequence[Job] | None] | None:
        from cli.providers.local import running

        try:
            run = RunDirectory.of(stack)
        except UserError:  # another user's checkout, or a copy: `up` says so
            return None
        return running.changes(run, stack, design)

    def drain(
        self,
        up: StackUp,
        outputs: Outputs,
        say: Callable[[str], None],
        agree: Callable[[Sequence[Job]], None],
    ) -> None:
        from cli.providers.local import running

        running.drain(RunDirectory.of(up.stack), up.stack, say, agree)

    def repair(self, up: StackUp, say: Callable[[str], None]) -> None:
        from operations.local import cluster

        if not RunDirectory.of(up.stack).path.exists():
            return
        with lock.locked(up.stack, "up"):
            cluster.repair(up.stack, say)

    def force_cleanup(self, up: StackUp, outputs: Outputs) -> None:
        from operations.local.agent import end_cluster

        with lock.locked(up.stack, "down"):
            end_cluster(RunDirectory.of(up.stack))
            owner.release(up.stack)

    def neighbours(self, stack: Stack) -> list[str]:
        from cli.providers.local import host_checks

        return host_checks.neighbours(stack)

    def limits_here(self, stack: Stack, design: ClusterDesign) -> list[str]:
        # Elsewhere a local cluster can only be planned.
        if design.isolation == CONTAINER or sys.platform != "linux":
            return []
        problem = namespaces.unsupported_reason(addresses.planned_block(locations.run_dir(stack)))
        return [] if problem is None else [problem]

    def leftovers(self, up: StackUp, outputs: Outputs) -> list[str]:
        return clusters.leftovers(RunDirectory.of(up.stack))


def _standing(up: StackUp) -> RunDirectory:
    """Return the run directory of a cluster that is up.

    Raises:
        NotUpError: It is not up.
        UserError: Its controller's machine is dead, or its run directory is another user's.
    """
    run, stack = machine_access.run_directory(up), up.stack
    if not machine_access.is_up(run):
        if up.published is not None:
            raise NotUpError(
                f"{up.named} is not up on this machine: it has no {run.path}. A local cluster runs on the "
                "machine where `pulumi up` ran, for the user who ran it",
                code="cluster.not-up",
            )
        from cli.providers.local import clusters

        raise NotUpError(
            clusters.why_gone(stack, run)
            + clusters.other_owners(stack)
            + "".join(f"\n{text}" for text in clusters.gone_messages()),
            code="cluster.not-up",
        )
    if agent.controller_is_dead(run):
        how = agent.how_to_restart(stack.name) if up.published is None else _how_to_replace_head(up)
        raise UserError(how, code="controller.not-running")
    return run


def _how_to_replace_head(up: StackUp) -> str:
    return (
        f"the controller of {up.named} does not run: the machine was restarted, or somebody ended it.\n"
        "`pulumi up --replace URN` starts it again with its queue, with the URN of the resource …-head from "
        "`pulumi stack --show-urns`."
    )
