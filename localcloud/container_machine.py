"""What a container machine is made of, as plain data: disk, network interface, files and mounts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Bind:
    """A bind mount: a folder or file of this host that a machine sees, at `target`."""

    source: Path
    target: str
    read_only: bool = False

    def option(self) -> str:
        words = [str(path).replace("\\", "\\\\").replace(":", "\\:") for path in (self.source, self.target)]
        return f"--bind{'-ro' if self.read_only else ''}={':'.join(words)}"


@dataclass(frozen=True, slots=True)
class NetworkInterface:
    """A machine's network interface.

    Attributes:
        namespace: The file of the network namespace that has the bridge (/proc/PID/ns/net).
        address: The address with its prefix length, as in `10.99.1.0/16`.
        routes: Further networks on the link, such as a metadata address (`169.254.169.254/32`).
    """

    namespace: Path
    bridge: str
    address: str
    gateway: str | None = None
    routes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Machine:
    """The definition of a machine.

    Attributes:
        id: Unique on this host; names the machine's cgroups and its link.
        host: The host name.
        folder: The machine's folder on this host, with its disk and its console.
        layers: root folders of the image, the uppermost first. They are never written.
        card: The network interface; `None` means this host's own network.
        user_data: What cloud-init runs, from a NoCloud seed; `None` if a datasource serves it, or if there is
            none.
        datasources: Those that cloud-init may ask. A single one is used without a search.
        files: Further files on the disk: path -> text, or text and mode.
        binds: The bind mounts.
        environment: Variables of the machine's processes on this host, by which they are found.
        disk: The folder of a disk that outlives the machine; `None` means a disk in `folder`.
        log: The file for the console output; `None` means a file in `folder`.
        cores: Cores of this host that the machine's processes may use; empty means all.
        disk_mib: The size in MiB of a disk in memory, for tests that fill it; `None` means a disk in
            `folder`, without a limit.
        options: Further options of systemd-nspawn.
    """

    id: str
    host: str
    folder: Path
    layers: Sequence[Path]
    card: NetworkInterface | None
    user_data: str | None = None
    datasources: Sequence[str] = ("NoCloud",)
    files: Mapping[str, str | tuple[str, int]] = field(default_factory=dict)
    binds: Sequence[Bind] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    disk: Path | None = None
    log: Path | None = None
    disk_mib: int | None = None
    cores: Sequence[int] = ()
    options: Sequence[str] = ()

    @property
    def console(self) -> Path:
        """The file on this host with the console output."""
        return self.log or self.folder / "console.log"
