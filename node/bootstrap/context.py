"""The state of a machine during its boot, and the definition of a step."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from node.bootstrap.command import Runner, run
from node.bootstrap.report import BootReport
from node.bootstrap.services import Services
from node.design.folders import Folders
from node.design.model import Settings
from node.design.sites import MountSource
from node.design.storage import Mount
from node.slurm import environment


class SkipStep(Exception):  # noqa: N818 - not an error: the step has nothing to do here
    """The step does not apply to this machine. The text says why."""


class StepFailedError(RuntimeError):
    """A step failed for a reason outside this project, such as a user's script. The text says everything."""


class Reboot(Exception):  # noqa: N818 - not an error: the boot goes on after it
    """The machine must restart before the next step. The text says why."""


@dataclass(slots=True)
class Context:
    """The state of a machine during its boot, which every step gets.

    Attributes:
        controller_clock: The controller's time in seconds since the epoch, minus this machine's monotonic
            clock. `None` means that it is not known.
    """

    settings: Settings
    settings_file: Path
    role: str
    host: str
    folders: Folders
    services: Services
    report: BootReport
    run: Runner = run
    controller_clock: float | None = None

    @property
    def process(self) -> bool:
        return self.folders.process

    @property
    def vm(self) -> bool:
        """Whether this is a whole machine with systemd and packages: a cloud's machine, or a container."""
        return not self.process

    def mounts(self) -> list[Mount]:
        """Return the mounts of this machine's role."""
        return [mount for mount in self.settings.design.mounts if self.role in mount.roles]

    def mount_source(self, mount: Mount) -> MountSource:
        """Return the source of a mount: a disk or a file system.

        Raises:
            ValueError: The settings have no source for it.
        """
        sources = self.settings.site.mounts
        if mount.path not in sources:
            raise ValueError(
                f"{mount.path}: the settings have no source for this mount (site.mounts): "
                "publish them again with `up`"
            )
        return sources[mount.path]

    @property
    def has_users(self) -> bool:
        """Whether users log in on this machine."""
        return self.host in {host.name for host in self.settings.design.login_hosts()}

    @property
    def slurm_user(self) -> str | None:
        """The user of slurmctld and the elastic daemon, and the owner of their files.

        `None` means the user of this process.
        """
        return None if self.process else self.settings.site.user

    @property
    def munge_user(self) -> str | None:
        """The user of munged. `None` means the user of this process."""
        return "munge" if self.slurm_user else None

    def slurm(
        self,
        *command: str,
        conf: str | None = None,
        timeout: float = 60.0,
        allow: Collection[int] = (0,),
        attempts: int = 1,
        pause: float = 5.0,
    ) -> str:
        """Run one of Slurm's programs, with an environment of ours, as `run` does.

        Args:
            conf: The path of slurm.conf. `None` means this machine's.
        """
        env = environment.of_ours(conf or self.folders.slurm_conf)
        return self.run(*command, env=env, timeout=timeout, allow=allow, attempts=attempts, pause=pause)

    def path(self, pure: object) -> Path:
        return Path(str(pure))

    def at(self, relative: str) -> Path:
        """Return the path of a file in the machine's file system, such as `etc/hosts`."""
        return Path(str(self.folders.root / relative))


@dataclass(frozen=True, slots=True)
class Step:
    """A step of a boot.

    Attributes:
        timeout: The time limit in seconds.
        run: Does the step and returns a line on what it did, and perhaps further lines for the boot report.
            It raises an error if the step fails.
        isolations: The kinds of machines (`ClusterDesign.isolation`) that take the step. `None` means all.
    """

    name: str
    timeout: float
    roles: frozenset[str]
    run: Callable[[Context], str]
    isolations: frozenset[str] | None = None

    def taken_by(self, context: Context) -> bool:
        kinds = self.isolations
        return context.role in self.roles and (kinds is None or context.settings.design.isolation in kinds)


ALL = frozenset({"controller", "login", "compute"})
