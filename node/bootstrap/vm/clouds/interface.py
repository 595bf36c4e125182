"""The interface to a machine's cloud: all that differs between the clouds during a boot."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from node.bootstrap.context import Context
from node.bootstrap.vm.metadata_guard import Openings
from node.design.storage import Mount
from node.system.cloud_api import Notices

LOGS = {
    "controller": ("slurmctld.log", "elastic.log", "slurmdbd.log"),
    "login": (),
    "compute": ("slurmd.log",),
}
"""Role -> the logs of its daemons, which are sent to the cloud together with the system's logs."""


class Bucket(Protocol):
    """The cluster's bucket, or one with backups. Its errors are OSErrors."""

    def get(self, key: str) -> bytes: ...

    def put(self, key: str, content: bytes) -> None: ...

    def names(self, prefix: str) -> list[str]:
        """Return the keys that begin with a prefix."""
        ...

    def delete(self, key: str) -> None:
        """Delete an object. There may be none."""
        ...


class Secret(Protocol):
    """A secret in the cloud's secret store."""

    name: str

    def get(self) -> bytes | None:
        """Return the value. `None` means that the secret has no value yet."""
        ...

    def put(self, content: bytes) -> None: ...


class Disk(NamedTuple):
    """A machine's own disk, which the machine exports.

    Attributes:
        name: The name for messages.
        find: Returns the disk's device. `None` means that the disk is not attached yet.
    """

    name: str
    find: Callable[[], str | None]


class Cloud(Protocol):
    """The cloud of a machine.

    Attributes:
        scheme: The scheme of URLs of objects, such as `s3://`.
        time: chrony's time source: the name of its file, and its line.
        packages: The distribution's packages for the elastic driver's client of the cloud.
        storage: The kinds of shared storage that the cloud offers in addition to disks.
        write_seconds: The shortest time between two writes of an object.
        tells_controller: Whether the elastic driver learns of notices without a report of the machine.
        metadata_openings: What every user may request from a closed metadata address.
    """

    scheme: str
    time: tuple[str, str]
    packages: tuple[str, ...]
    storage: tuple[str, ...]
    write_seconds: float
    tells_controller: bool
    metadata_openings: Openings

    def notices(self, node: str) -> Notices:
        """Return the source of notices for this machine, which is the given node."""
        ...

    def node(self) -> str:
        """Return the name of the node that this machine is.

        Raises:
            SystemExit: The cloud's metadata does not say it.
        """
        ...

    def bucket(self, url: str, *, attempts: int = ..., timeout: float = ...) -> Bucket: ...

    def secret(self, name: str) -> Secret: ...

    def keep_name(self, context: Context) -> None:
        """Prevent the cloud's software in the image from changing the machine's name later."""
        ...

    def disk(self, context: Context, mount: Mount) -> Disk:
        """Return the disk for an exported mount.

        Raises:
            ValueError: The settings do not say which disk it is.
        """
        ...

    def scratch(self, context: Context) -> list[str]:
        """Return the devices of the disks that come with the machine, in their order."""
        ...

    def prepare_users(self, context: Context) -> None:
        """Wait until this machine knows the users whom the cloud allows to log in.

        Raises:
            TimeoutError: The machine does not know them in time.
        """
        ...

    def watched(self, context: Context) -> bool:
        """Return whether the machine itself must watch for notices: nobody else is informed in time."""
        ...

    def install_agent(self, context: Context) -> None:
        """Install the logging agent without starting it, so that an image can hold it.

        Raises:
            SkipStep: The settings do not want logs in the cloud.
            OSError: The agent cannot be fetched.
            CommandError: The agent cannot be installed.
        """
        ...

    def ship_logs(self, context: Context) -> str:
        """Start to send this role's logs to the cloud, and return the step's note.

        Raises:
            SkipStep: The logs stay on the machine.
        """
        ...
