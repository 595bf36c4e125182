"""The local stack's part of `./cluster`: its resources, the way in, and the audit after a destroy."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infra import bundle, trouble
from infra.errors import NotUpError, UserError
from infra.local import packages, upkeep, way_in
from infra.local.cloud import containers, kind
from infra.local.site import RunDirectory
from infra.node.model import BenchmarkDesign, ClusterDesign, Settings
from infra.provider import Command, Files, Outputs, StackUp
from infra.runner import lock, owner

if TYPE_CHECKING:
    from infra.benchmark import Shell
    from infra.changes.jobs import Job
    from infra.changes.reach import Weighed
    from infra.changes.table import Change
    from infra.config import StackConfig
    from infra.doctor.finding import Check
    from infra.provider import ClusterComponent
    from infra.ssh.target import Target


class LocalProvider:
    """Machines are made on this host: processes, or containers that boot."""

    def prepare(self, design: ClusterDesign, say: Callable[[str], None]) -> None:
        from infra.local import abandoned, machine

        machine.check()
        if design.machines == kind.CONTAINER:
            from infra.local import image, possible

            if os.geteuid() == 0:
                packages.ensure_for_containers(say)
            possible.check(design.machines)
            image.have(design, say)
        else:
            packages.ensure(say, accounting=design.slurm.accounting)
        for text in abandoned.sentences(bundle.ROOT):
            say(text)

    def create(self, design: ClusterDesign) -> ClusterComponent:
        import pulumi

        from infra.local.cluster import LocalCluster

        if design.machines == kind.CONTAINER:
            from infra.local import possible

            if reason := possible.why_not(design):
                pulumi.warn(f"this cannot come up here: {reason}")
        elif design.slurm.accounting and (text := packages.check_accounting()):
            pulumi.warn(text)
        owner.claim_in_program(bundle.ROOT, design.stack)
        return LocalCluster(design.name, design)

    def shell(self, design: ClusterDesign) -> Shell:
        from infra.local.cluster import LocalShell

        return LocalShell(design.stack, design.machines)

    def access(
        self, project: Path, stack: str, outputs: Mapping[str, Any], argv: Sequence[str], *, tty: bool
    ) -> Command:
        return way_in.command(_standing(project, stack), argv)

    def ssh(self, project: Path, stack: str) -> Target:
        from infra.local import sshd

        return sshd.target(project, stack, _standing(project, stack))

    def files_here(self, project: Path, stack: str) -> Files | None:
        return way_in.files(_standing(project, stack))

    def settings_here(self, project: Path, config: StackConfig | StackUp) -> Settings | None:
        from infra.local import remains

        return remains.settings(project, config)

    def diagnose(
        self,
        project: Path,
        stack: str,
        design: ClusterDesign | None,
        training: BenchmarkDesign | None,
    ) -> Sequence[Check]:
        from infra.local import diagnosis

        return diagnosis.checks(project, stack, design, training)

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
        from infra.local import running

        return running.weigh(RunDirectory.of(project, stack), stack, design, say, replace=replace)

    def changes(
        self, project: Path, stack: str, design: ClusterDesign
    ) -> tuple[Sequence[Change], Sequence[Job] | None] | None:
        from infra.local import running

        return running.changes(RunDirectory.of(project, stack), stack, design)

    def drain(
        self,
        project: Path,
        stack: str,
        outputs: Outputs,
        say: Callable[[str], None],
        agree: Callable[[Sequence[Job]], None],
    ) -> None:
        from infra.local import running

        running.drain(RunDirectory.of(project, stack), stack, say, agree)

    def mend(self, project: Path, stack: str, say: Callable[[str], None]) -> None:
        from infra.local import operations

        if not RunDirectory.of(project, stack).path.exists():
            return
        with lock.held(project, stack, "up"):
            operations.mend(project, stack, say)

    def explain(self, design: ClusterDesign, since: float) -> str | None:
        """`up` itself has said it all."""
        return None

    def clear(self, project: Path, stack: str, outputs: Outputs) -> None:
        from infra.local.upkeep import end_cluster

        with lock.held(project, stack, "down"):
            end_cluster(RunDirectory.of(project, stack))
            owner.release(project, stack)

    def leftovers(self, project: Path, stack: str, outputs: Outputs) -> list[str]:
        from infra.local.operations import processes

        run = RunDirectory.of(project, stack)
        found = [f"process {pid}: {_command_line(pid)}" for pid in processes(run)]
        found += containers.traces(run.path)
        if run.path.exists():
            found.append(f"folder {run.path}{_foreign(run.path)}")
        return found


def _standing(project: Path, stack: str) -> RunDirectory:
    """The run directory of a cluster that is up.

    Raises:
        NotUpError: it is not up.
        UserError: its controller's machine is dead.
    """
    run = RunDirectory.of(project, stack)
    if not way_in.is_up(run):
        from infra.local import abandoned

        raise NotUpError(
            upkeep.why_gone(project, stack, run)
            + abandoned.others(project, stack)
            + "".join(f"\n{text}" for text in abandoned.sentences(project))
        )
    if upkeep.fallen(run):
        raise UserError(upkeep.how_to_restart(stack))
    return run


def _foreign(folder: Path) -> str:
    """Another user's file in it, which only that user, or root, can remove."""
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            if (owner := path.lstat().st_uid) != os.getuid():
                name = trouble.user_name(owner)
                return f" ({path} belongs to {name}; have it removed, as root: rm -r {folder})"
    return ""


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return "(ended meanwhile)"
