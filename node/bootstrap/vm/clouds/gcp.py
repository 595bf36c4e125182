"""The interface to Compute Engine: the node by the instance's name, disks by device names, OS Login."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from node.bootstrap.context import Context, SkipStep
from node.bootstrap.vm.clouds.interface import Disk
from node.bootstrap.vm.metadata_guard import Openings
from node.bootstrap.vm.ops_agent import asked_for, install_agent, ship
from node.bootstrap.vm.os_login import BY_ID, LOCAL_SSD, NAMING, prepare_os_login
from node.design.model import Settings
from node.design.sites import MountSource
from node.design.storage import Mount
from node.elastic.drivers.gce.names import node_of
from node.gcp.metadata import GPU_MAINTENANCE_SECONDS, Metadata
from node.gcp.services import SCHEME, Bucket, Secret
from node.system import http_client as http
from node.system.cloud_api import Notices


class Gcp:
    """A machine on Compute Engine."""

    scheme = SCHEME
    # Google's time source on every machine. munge refuses machines whose clocks differ by minutes.
    time = ("google.sources", "server metadata.google.internal prefer iburst\n")
    # The driver keeps its connections to Compute Engine with it.
    packages: tuple[str, ...] = ("python3-urllib3",)
    storage: tuple[str, ...] = ("filestore", "gcs")
    # Cloud Storage refuses faster writes of an object.
    write_seconds = 1.0
    tells_controller = False
    # The address is also the server of names, leases (DHCP) and time. Each user's processes make OS Login's
    # look-ups, and systemd-networkd, which renews the lease, runs as a user of its own.
    metadata_openings = Openings(
        ports=(("udp", 53), ("tcp", 53), ("udp", 67), ("udp", 123)), paths=("/computeMetadata/v1/oslogin/",)
    )

    def __init__(self, settings: Settings) -> None:
        self._metadata = Metadata()
        self._design = settings.design
        self._cluster = settings.design.name

    def notices(self, node: str) -> Notices:
        """Return the source of notices.

        Machines with GPUs get a notice of their host's maintenance an hour ahead, other machines a minute.
        """
        partition = self._design.partition_of(node)
        if partition is None or partition.accelerator is None:
            return self._metadata
        return Metadata(maintenance_seconds=GPU_MAINTENANCE_SECONDS)

    def node(self) -> str:
        instance = self._metadata.name()
        try:
            return node_of(self._cluster, instance)
        except ValueError as error:
            raise SystemExit(f"{error}: this machine cannot know which node it is") from error

    def bucket(
        self, url: str, *, attempts: int = http.ATTEMPTS, timeout: float = http.TIMEOUT_SECONDS
    ) -> Bucket:
        return Bucket(url, self._metadata.token, attempts=attempts, timeout=timeout)

    def secret(self, name: str) -> Secret:
        return Secret(name, self._metadata.token)

    def keep_name(self, context: Context) -> None:
        """Move the image's program aside that would restore the instance's name with each network start."""
        # With the diversion the package's next version is moved aside too.
        divert = ("dpkg-divert", "--quiet", "--local", "--rename", "--divert", f"{NAMING}.distrib")
        context.run(*divert, "--add", NAMING)

    def disk(self, context: Context, mount: Mount) -> Disk:
        given = context.settings.site.mounts.get(mount.path, MountSource()).device
        path = str(given or f"{BY_ID}/google-slurm-stacks-{PurePosixPath(mount.path).name}")
        device = context.at(path.lstrip("/"))
        name = device.name.removeprefix("google-")
        return Disk(f"disk {name}", lambda: str(device) if device.exists() else None)

    def scratch(self, context: Context) -> list[str]:
        links = [path for pattern in LOCAL_SSD for path in context.at(BY_ID).glob(pattern)]
        whole = [path for path in links if "-part" not in path.name]
        return [str(path) for path in sorted(whole, key=_order)]

    def prepare_users(self, context: Context) -> None:
        prepare_os_login(context)

    def watched(self, context: Context) -> bool:
        return context.role == "compute"

    def install_agent(self, context: Context) -> None:
        if not asked_for(context):
            raise SkipStep("the settings ask for no logs in Cloud Logging")
        install_agent(context)

    def ship_logs(self, context: Context) -> str:
        return ship(context)


def _order(path: Path) -> tuple[str, int]:
    """Sort `google-local-ssd-2` before `google-local-ssd-10`."""
    kind, _, number = path.name.rpartition("-")
    return kind, int(number) if number.isdigit() else 0
