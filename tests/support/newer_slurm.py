"""A Slurm that is newer than this machine's: commands run in a container of Debian 13, whose Slurm is 24.11.

Its image is the one from which a stack with `suite: trixie` starts its machines. Programs inside see this
machine's network, Python and checkout at their own paths. The container is killed at the end of the test's
process.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from infra.errors import UserError
from localcloud import cgroups, nspawn
from localcloud.container_machine import Bind, Machine
from localcloud.interpreters import interpreter_binds
from node.design.model import ClusterDesign, Image
from node.slurm import version
from node.system.processes import ProcessId
from operations.local import container_images
from tests.support.checkout import ROOT
from tests.support.containers import why_not
from tests.support.doubles import design

SUITE = "trixie"
RELEASE = (24, 11)
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
BOOT_SECONDS = 180.0


class Unavailable(Exception):  # noqa: N818 - a reason to skip, no error
    """There can be no newer Slurm here, for the given reason."""


def stack() -> ClusterDesign:
    """Return a stack file whose machines are such containers."""
    return design(isolation="container", image=Image(source=SUITE))


def layers(say: Callable[[str], None]) -> list[Path]:
    """Return the image's layers, the uppermost first. They are made on first use (some minutes and 900 MB).

    Raises:
        Unavailable: The image cannot be made here.
    """
    if (reason := why_not()) is not None:
        raise Unavailable(reason)
    done = subprocess.run(["slurmctld", "-V"], capture_output=True, text=True, check=False)
    if done.returncode == 0 and (release := version.parse(done.stdout)) >= RELEASE:
        raise Unavailable(f"this machine's own Slurm is {version.spell(release)}: every test runs on it")
    try:
        return container_images.ensure_image(stack(), say)
    except UserError as error:
        raise Unavailable(str(error)) from error


class NewerSlurm:
    """A machine that runs, until `close` or this process's end.

    Args:
        made: the layers of its image.
        work: the one folder that is shared with this machine and writable, at the same path.

    Raises:
        Unavailable: The machine does not boot here.
    """

    def __init__(self, made: Sequence[Path], work: Path) -> None:
        # A checkout's environment may be a link to another one's.
        environment = (ROOT / ".venv").resolve()
        more = [] if environment.is_relative_to(ROOT.resolve()) or not environment.exists() else [environment]
        seen = [Bind(path, str(path), read_only=True) for path in dict.fromkeys([ROOT, *more])]
        self._folder = work.with_name(f"{work.name}-machine")
        self._machine = Machine(
            id=f"newer-{os.getpid()}",
            host="newer",
            folder=self._folder,
            layers=made,
            card=None,
            files={"etc/hosts": Path("/etc/hosts").read_text()},
            binds=[*seen, *interpreter_binds(), Bind(work, str(work))],
        )
        self._child = nspawn.start(self._machine, die_with_parent=True)
        launcher = ProcessId.of(self._child.pid)
        assert launcher is not None
        self._launcher = launcher
        try:
            self.pid = nspawn.wait_for(launcher, self._machine.console)
            nspawn.execute(launcher, "systemctl", "is-system-running", "--wait", seconds=BOOT_SECONDS)
        except OSError as error:
            self.close()
            raise Unavailable(f"a machine of {SUITE} does not boot: {error}") from error
        self.root = Path(f"/proc/{self.pid}/root")
        """The container's root as seen from this machine."""
        self.work = work
        self.namespace = str(Path(f"/proc/{self.pid}/ns/pid").readlink())
        """The pid namespace of everything inside."""

    def command(self, *command: str) -> list[str]:
        """Return a command that runs this one inside, in our folder and with our environment."""
        enter = ("--mount", "--pid", "--uts", "--ipc", "--cgroup", "--root", "--wd")
        return ["nsenter", f"--target={self.pid}", *enter, "--", *command]

    def run(
        self, *command: str, env: Mapping[str, str] | None = None, timeout: float = 60
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*command),
            env={"PATH": PATH, "HOME": "/root", "LANG": "C.UTF-8", **(env or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def close(self) -> None:
        """End everything inside."""
        nspawn.kill(self._machine.id, self._launcher)
        self._child.wait()
        nspawn.clear(self._machine.folder, self._machine.id)
        assert cgroups.of(nspawn.group(self._machine.id)) == []
