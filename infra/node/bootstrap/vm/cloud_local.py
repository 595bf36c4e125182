"""The local stack below a machine that boots: folders of the host's lie where a cloud has services.

The bucket, the secret store and the driver's socket lie below `HOME`, and the host's clock is the machine's.
"""

from __future__ import annotations

import socket
import time
from pathlib import Path

from infra.node.bootstrap import files
from infra.node.bootstrap.context import Context, SkipStep
from infra.node.bootstrap.vm.cloud import Disk
from infra.node.bootstrap.vm.metadata_guard import Openings
from infra.node.cloud.notice import Notice, Notices
from infra.node.model import Mount, Settings

HOME = "/srv/slurm-stacks"
BUCKET = f"{HOME}/bucket"
"""Every machine reads it; it writes its boot report, `boot/<host>.json`."""
SOCKET = f"{HOME}/cloud/agent.sock"
SECRETS = f"{HOME}/secrets"
"""Both on the controller only."""
HOME_OF_ROOT = "/home/root"


class Folder:
    """A bucket that is a folder."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def get(self, key: str) -> bytes:
        return (self._path / key).read_bytes()

    def put(self, key: str, content: bytes) -> None:
        files.place(self._path / key, content)


class File:
    """A secret that is a file, which root alone can read."""

    def __init__(self, path: Path) -> None:
        self.name = path.name
        self._path = path

    def get(self) -> bytes | None:
        try:
            return self._path.read_bytes()
        except FileNotFoundError:
            return None

    def put(self, content: bytes) -> None:
        files.place(self._path, content, 0o600)


class _Silent:
    """The agent tells the controller that it takes a machine, and not the machine."""

    def notice(self) -> Notice | None:
        return None

    def wait(self, seconds: float) -> Notice | None:
        time.sleep(seconds)
        return None


class Local:
    """A container on the engineer's machine."""

    scheme = "local://"
    # A container cannot set a clock: it has the host's.
    time = ("slurm-stacks.sources", "# None: this machine has its host's clock.\n")
    packages: tuple[str, ...] = ()
    storage: tuple[str, ...] = ("bind",)
    write_seconds = 0.0
    tells_controller = True
    metadata_openings = Openings()

    def __init__(self, settings: Settings) -> None:
        """The settings say nothing that it does not know."""

    def notices(self, node: str) -> Notices:
        return _Silent()

    def node(self) -> str:
        return socket.gethostname()

    def bucket(self, url: str, *, attempts: int = 1, timeout: float = 0.0) -> Folder:
        return Folder(Path(url))

    def secret(self, name: str) -> File:
        return File(Path(SECRETS) / name)

    def keep_name(self, context: Context) -> None:
        """Nothing but cloud-init would."""

    def disk(self, context: Context, mount: Mount) -> Disk:
        raise ValueError(f"{mount.path}: machines of the local stack have no disks to export")

    def scratch(self, context: Context) -> list[str]:
        return []

    def people(self, context: Context) -> None:
        """They come as root, who made the machines, and whose home all machines share."""
        accounts = context.at("etc/passwd")
        lines = accounts.read_text().replace(":root:/root:", f":root:{HOME_OF_ROOT}:")
        files.place(accounts, lines.encode())

    def watched(self, context: Context) -> bool:
        return False

    def have_agent(self, context: Context) -> None:
        raise SkipStep("logs stay on the machine")

    def ship_logs(self, context: Context) -> str:
        raise SkipStep("logs stay on the machine")
