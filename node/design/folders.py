"""Where the files of a cluster are on its machines."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath

from node.design.model import PROCESS, Settings


@dataclass(frozen=True, slots=True)
class Folders:
    """The paths on a machine of the cluster. They are defined only here, so that no two parts can differ."""

    settings: Settings

    @property
    def root(self) -> PurePosixPath:
        return PurePosixPath(self.settings.site.root)

    @property
    def process(self) -> bool:
        return self.settings.design.isolation == PROCESS

    def _of(self, process: str, own_machine: str) -> PurePosixPath:
        return self.root / (process if self.process else own_machine)

    @property
    def etc(self) -> PurePosixPath:
        """slurm.conf and Slurm's other configuration files."""
        return self._of("etc", "etc/slurm")

    @property
    def run(self) -> PurePosixPath:
        """The folder of pid files and sockets."""
        return self._of("run", "run/slurm-stacks")

    @property
    def log(self) -> PurePosixPath:
        return self._of("log", "var/log/slurm")

    @property
    def state(self) -> PurePosixPath:
        """Slurmctld's StateSaveLocation."""
        return self._of("state", "var/spool/slurmctld")

    @property
    def spool(self) -> PurePosixPath:
        """Slurmd's spool; in process mode it has a folder for each node."""
        return self._of("spool", "var/spool/slurmd")

    def temporary(self, node: str) -> PurePosixPath:
        """Return the folder that is a compute machine's /tmp in process mode, as this host sees it.

        The local cloud makes and removes it.
        """
        return self.root / "tmp" / node

    @property
    def shared_in_tmp(self) -> PurePosixPath:
        """The list of paths below /tmp that all process machines see.

        Without it they have no /tmp of their own.
        """
        return self.root / "cloud" / "shared_in_tmp.json"

    @property
    def lib(self) -> PurePosixPath:
        """Boot reports, and what else a machine remembers of its boots."""
        return self._of("lib", "var/lib/slurm-stacks")

    @property
    def elastic(self) -> PurePosixPath:
        """The elastic daemon's ledger, its records, and the requests that wait for it."""
        return self.lib / "elastic"

    @property
    def database(self) -> PurePosixPath:
        """MariaDB's files, if there is accounting."""
        return self._of("lib/database", "var/lib/mysql")

    @property
    def code(self) -> PurePosixPath:
        """The unpacked node archive."""
        return self._of("code/current", "opt/slurm-stacks/current")

    @property
    def munge_socket(self) -> PurePosixPath:
        return self._of("run/munge.sock", "run/munge/munge.socket.2")

    @property
    def munge_key(self) -> PurePosixPath:
        return self._of("munge.key", "etc/munge/munge.key")

    @property
    def daemon_socket(self) -> PurePosixPath:
        return self.run / "elastic.sock"

    @property
    def status_socket(self) -> PurePosixPath:
        """Where the elastic daemon answers every user of the controller, and is told nothing."""
        return self.run / "status.sock"

    @property
    def slurm_conf(self) -> PurePosixPath:
        return self.etc / "slurm.conf"
