"""A machine during its boot, and what a step is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from infra.node.bootstrap.command import Runner, run
from infra.node.bootstrap.report import BootReport
from infra.node.bootstrap.services import Services
from infra.node.model import Folders, Mount, Settings


class SkipStep(Exception):  # noqa: N818 - not an error: the step has nothing to do here
    """The step does not apply to this machine; the text says why."""


class Reboot(Exception):  # noqa: N818 - not an error: the boot goes on after it
    """The machine has to start again before the next step; the text says what for."""


@dataclass(slots=True)
class Context:
    """A machine during its boot."""

    settings: Settings
    settings_file: Path
    role: str
    host: str
    folders: Folders
    services: Services
    report: BootReport
    run: Runner = run

    @property
    def process(self) -> bool:
        return self.folders.process

    @property
    def vm(self) -> bool:
        """Whether this is a whole machine, with systemd and packages: a cloud's, or a container."""
        return not self.process

    def mounts(self) -> list[Mount]:
        """What this role mounts."""
        return [mount for mount in self.settings.design.mounts if self.role in mount.roles]

    @property
    def people(self) -> bool:
        """Whether this is where users log in."""
        return self.host in {host.name for host in self.settings.design.login_hosts()}

    @property
    def slurm_user(self) -> str | None:
        """Who runs slurmctld and the elastic daemon, and owns their files; None: who boots the machine."""
        return None if self.process else self.settings.site.user

    @property
    def munge_user(self) -> str | None:
        """As `slurm_user`, for munged."""
        return "munge" if self.slurm_user else None

    def path(self, pure: object) -> Path:
        return Path(str(pure))

    def at(self, relative: str) -> Path:
        """A path of the machine's file system, like `etc/hosts`."""
        return Path(str(self.folders.root / relative))


@dataclass(frozen=True, slots=True)
class Step:
    """`run` returns a line on what it did, or raises."""

    name: str
    timeout: float
    roles: frozenset[str]
    run: Callable[[Context], str]
    machines: frozenset[str] | None = None
    """The kinds of machines that take it; None for all."""

    def taken_by(self, context: Context) -> bool:
        kinds = self.machines
        return context.role in self.roles and (kinds is None or context.settings.design.machines in kinds)


ALL = frozenset({"controller", "login", "compute"})
