"""The local stack's part of `./cluster`: its resources, the way in, and the audit after a destroy."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infra import bundle
from infra.errors import UserError
from infra.local import packages
from infra.local.site import RunDirectory
from infra.node.model import ClusterDesign
from infra.provider import Command
from infra.runner import owner

if TYPE_CHECKING:
    from infra.benchmark import Shell
    from infra.provider import ClusterComponent

MACHINE_COMMAND_PATH = "/usr/local/sbin:/usr/sbin:/sbin"


class LocalProvider:
    """Machines are processes on this host."""

    def prepare(self, say: Callable[[str], None]) -> None:
        packages.ensure(say)

    def create(self, design: ClusterDesign) -> ClusterComponent:
        from infra.local.cluster import LocalCluster

        owner.claim_in_program(bundle.ROOT, design.stack)
        return LocalCluster(design.name, design)

    def shell(self, design: ClusterDesign) -> Shell:
        from infra.local.cluster import LocalShell

        return LocalShell(design.stack)

    def access(
        self, project: Path, stack: str, outputs: Mapping[str, Any], argv: Sequence[str], *, tty: bool
    ) -> Command:
        run = RunDirectory.of(project, stack)
        if not run.tool.exists():
            raise UserError(f"stack {stack} is not up: bring it up with `./cluster up --stack {stack}`")
        env = {
            "SLURM_CONF": str(run.path / "etc" / "slurm.conf"),
            "PATH": f"{run.tool.parent}:{os.environ.get('PATH', '/usr/bin:/bin')}:{MACHINE_COMMAND_PATH}",
        }
        return Command(list(argv) or [os.environ.get("SHELL", "/bin/sh")], env)

    def leftovers(self, project: Path, stack: str) -> list[str]:
        from infra.local.operations import processes

        run = RunDirectory.of(project, stack)
        found = [f"process {pid}: {_command_line(pid)}" for pid in processes(run)]
        if run.path.exists():
            found.append(f"folder {run.path}")
        return found


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return "(ended meanwhile)"
