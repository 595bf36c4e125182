"""The interface to EC2: the machine's name by the launch's tag, EBS volumes by their ids, CloudWatch."""

from __future__ import annotations

from pathlib import Path

from node.aws.imds import Metadata
from node.aws.services import SCHEME, Bucket, Secret
from node.bootstrap.context import Context, SkipStep
from node.bootstrap.vm import cluster_users
from node.bootstrap.vm.clouds import cloudwatch
from node.bootstrap.vm.clouds.interface import Disk
from node.bootstrap.vm.metadata_guard import Openings
from node.design.model import Settings
from node.design.sites import AwsSite
from node.design.storage import Mount
from node.elastic.drivers.ec2.names import NODES, node_of, nodes_in
from node.system import http_client as http
from node.system.cloud_api import Notices

EBS, INSTANCE_STORE = "Amazon Elastic Block Store", "Amazon EC2 NVMe Instance Storage"
"""Models of NVMe disks, as the kernel reports them."""


class Aws:
    """A machine on EC2."""

    scheme = SCHEME
    # Amazon's time source on every instance. munge refuses machines whose clocks differ by minutes.
    time = ("amazon.sources", "server 169.254.169.123 prefer iburst minpoll 4 maxpoll 4\n")
    packages: tuple[str, ...] = ()
    storage: tuple[str, ...] = ("efs", "fsx_lustre", "s3")
    write_seconds = 0.0
    # The driver learns of interruptions two minutes ahead (`drivers.ec2.notices`), not of recommendations.
    tells_controller = True
    # Ubuntu's sshd fetches the keys of EC2 Instance Connect as this user.
    metadata_openings = Openings(users=("ec2-instance-connect",))

    def __init__(self, settings: Settings) -> None:
        self._metadata = Metadata()
        self._region = settings.site.of(AwsSite).region

    def notices(self, node: str) -> Notices:
        return self._metadata

    def node(self) -> str:
        """Return the node from the launch's host list, by the machine's number in the launch."""
        nodes = nodes_in(self._metadata.tag)
        if nodes is None:
            raise SystemExit(
                f"this instance has no tag {NODES}, or its launch template does not put tags into the "
                "metadata (InstanceMetadataTags): it cannot know which node it is"
            )
        try:
            return node_of(nodes, self._metadata.launch_index())
        except ValueError as error:
            raise SystemExit(f"tag {NODES}: {error}") from error

    def bucket(
        self, url: str, *, attempts: int = http.ATTEMPTS, timeout: float = http.TIMEOUT_SECONDS
    ) -> Bucket:
        return Bucket(url, self._own_region(), self._metadata.credentials, attempts=attempts, timeout=timeout)

    def secret(self, name: str) -> Secret:
        return Secret(name, self._own_region(), self._metadata.credentials)

    def _own_region(self) -> str:
        return self._region or self._metadata.region()

    def keep_name(self, context: Context) -> None:
        """Do nothing, because only cloud-init would change the name."""

    def disk(self, context: Context, mount: Mount) -> Disk:
        source = context.mount_source(mount)
        volume = str(source.disk)
        return Disk(f"volume {volume}", lambda: find(context, volume, source.device))

    def scratch(self, context: Context) -> list[str]:
        return [str(context.at(f"dev/{name}")) for name, model in _nvme(context) if model == INSTANCE_STORE]

    def prepare_users(self, context: Context) -> None:
        """Put the stack file's users into groups that a hook has made; the image's user is there."""
        cluster_users.prepare_late(context)

    def watched(self, context: Context) -> bool:
        if context.role != "compute":
            return False
        partition = context.settings.design.partition_of(context.host)
        return partition is not None and partition.spot

    def install_agent(self, context: Context) -> None:
        region = context.settings.site.of(AwsSite).region
        if not region:
            raise SkipStep("the settings name no region")
        cloudwatch.install_agent(context, region)

    def ship_logs(self, context: Context) -> str:
        return cloudwatch.ship(context)


def find(context: Context, volume_id: str, attached_as: str | None) -> str | None:
    """Return a volume's device: on NVMe by its serial number, on Xen by the name at its attachment."""
    serial = volume_id.replace("-", "")
    for name, model in _nvme(context):
        if model == EBS and _read(context.at(f"sys/block/{name}/device/serial")) == serial:
            return str(context.at(f"dev/{name}"))
    if attached_as:
        letter = Path(attached_as).name.removeprefix("sd").removeprefix("xvd")
        if (device := context.at(f"dev/xvd{letter}")).exists():
            return str(device)
    return None


def _nvme(context: Context) -> list[tuple[str, str]]:
    """Return the names and models of NVMe disks, `nvme2n1` before `nvme10n1`."""
    folders = context.at("sys/block").glob("nvme*n1")
    names = sorted((folder.name for folder in folders), key=lambda name: (len(name), name))
    return [(name, _read(context.at(f"sys/block/{name}/device/model"))) for name in names]


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
