"""The interface to the local stack, in which folders of the host take the place of a cloud's services.

The bucket, the secret store and the driver's socket are below `HOME`. The machine has the host's clock.
"""

from __future__ import annotations

import pwd
import socket
import time
from pathlib import Path

from node.bootstrap.context import Context, SkipStep
from node.bootstrap.vm import cluster_users, users
from node.bootstrap.vm.clouds.interface import Disk
from node.bootstrap.vm.metadata_guard import Openings
from node.design.model import Settings
from node.design.storage import Mount
from node.system import files
from node.system.cloud_api import Notice, Notices

HOME = "/srv/slurm-stacks"
BUCKET = f"{HOME}/bucket"
"""The bucket's folder. Every machine reads it and writes its boot report there, `boot/<host>.json`."""
SOCKET = f"{HOME}/cloud/agent.sock"
BACKUPS = f"{HOME}/backups"
"""The folder of this machine that the stack file names for backups, on the controller only."""
SECRETS = f"{HOME}/secrets"
"""The secret store's folder. It and the socket are on the controller only."""
HOME_OF_ROOT = "/home/root"
STATE_DEVICE = "/dev/slurm-stacks-state"
"""The disk that outlives the controller, on the controller only."""


class Folder:
    """A bucket in a folder.

    Args:
        path: The folder.
        mode: The mode of its files.
    """

    def __init__(self, path: Path, mode: int = 0o644) -> None:
        self._path = path
        self._mode = mode

    def get(self, key: str) -> bytes:
        return (self._path / key).read_bytes()

    def put(self, key: str, content: bytes) -> None:
        files.write(self._path / key, content, self._mode)

    def names(self, prefix: str) -> list[str]:
        return [file.name for file in self._path.iterdir() if file.name.startswith(prefix)]

    def delete(self, key: str) -> None:
        (self._path / key).unlink(missing_ok=True)


class File:
    """A secret in a file that only root can read."""

    def __init__(self, path: Path) -> None:
        self.name = path.name
        self._path = path

    def get(self) -> bytes | None:
        try:
            return self._path.read_bytes()
        except FileNotFoundError:
            return None

    def put(self, content: bytes) -> None:
        files.write(self._path, content, 0o600)


class _Silent:
    """A source without notices, because the agent informs the controller when it takes a machine."""

    def notice(self) -> Notice | None:
        return None

    def wait(self, seconds: float) -> Notice | None:
        time.sleep(seconds)
        return None


class Local:
    """A container on the engineer's machine."""

    scheme = "local://"
    # A container has the host's clock and cannot set it.
    time = ("slurm-stacks.sources", "# None: this machine has its host's clock.\n")
    packages: tuple[str, ...] = ()
    storage: tuple[str, ...] = ("bind",)
    write_seconds = 0.0
    tells_controller = True
    metadata_openings = Openings()

    def __init__(self, settings: Settings) -> None:
        backup = settings.design.backup
        self._backups = None if backup is None else backup.place()[0]

    def notices(self, node: str) -> Notices:
        return _Silent()

    def node(self) -> str:
        return socket.gethostname()

    def bucket(self, url: str, *, attempts: int = 1, timeout: float = 0.0) -> Folder:
        return Folder(Path(BACKUPS), 0o600) if url == self._backups else Folder(Path(url))

    def secret(self, name: str) -> File:
        return File(Path(SECRETS) / name)

    def keep_name(self, context: Context) -> None:
        """Do nothing, because only cloud-init would change the name."""

    def disk(self, context: Context, mount: Mount) -> Disk:
        if mount.kind != "disk":
            raise ValueError(f"{mount.path}: machines of the local stack have no disks to export")
        device = context.at(STATE_DEVICE.lstrip("/"))
        return Disk("the state's disk", lambda: str(device) if device.exists() else None)

    def scratch(self, context: Context) -> list[str]:
        return []

    def prepare_users(self, context: Context) -> None:
        """Give root a home on the shared disk, and a key for `ssh NODE`, because users log in as root."""
        accounts = context.at("etc/passwd")
        lines = accounts.read_text().replace(":root:/root:", f":root:{HOME_OF_ROOT}:")
        files.write(accounts, lines.encode())
        if context.role == "controller":
            root = pwd.struct_passwd(("root", "x", 0, 0, "root", HOME_OF_ROOT, "/bin/sh"))
            users.keys_if_possible(context, root)
        cluster_users.prepare_late(context)

    def watched(self, context: Context) -> bool:
        return False

    def install_agent(self, context: Context) -> None:
        raise SkipStep("logs stay on the machine")

    def ship_logs(self, context: Context) -> str:
        raise SkipStep("logs stay on the machine")
