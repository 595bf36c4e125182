"""The cloud below a machine: all in which one differs from another while a machine boots, in one place."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from infra.node.bootstrap.context import Context
from infra.node.bootstrap.vm.metadata_guard import Openings
from infra.node.cloud.notice import Notices
from infra.node.model import Mount

LOGS = {
    "controller": ("slurmctld.log", "elastic.log", "slurmdbd.log"),
    "login": (),
    "compute": ("slurmd.log",),
}
"""Role -> its daemons' logs, which a cloud keeps beside the system's."""


class Bucket(Protocol):
    """The cluster's objects. What it raises is an OSError, in words."""

    def get(self, key: str) -> bytes: ...

    def put(self, key: str, content: bytes) -> None: ...


class Secret(Protocol):
    """One secret of the cloud's store."""

    name: str

    def get(self) -> bytes | None:
        """None: it was given no value yet."""
        ...

    def put(self, content: bytes) -> None: ...


class Disk(NamedTuple):
    """A disk of its own that a machine exports.

    Attributes:
        name: for messages.
        find: its device, None while it is not attached.
    """

    name: str
    find: Callable[[], str | None]


class Cloud(Protocol):
    """Attributes:
    scheme: of addresses of objects, like `s3://`.
    time: chrony's source: the name of its file, and its line.
    packages: of the distribution's, for what the elastic driver asks the cloud with.
    storage: the kinds of shared storage that it offers beside disks.
    write_seconds: an object takes no second write within this time.
    tells_controller: the driver hears of it too, without a word of the machine's.
    metadata_openings: what every user of a controller may ask the metadata address.
    """

    scheme: str
    time: tuple[str, str]
    packages: tuple[str, ...]
    storage: tuple[str, ...]
    write_seconds: float
    tells_controller: bool
    metadata_openings: Openings

    def notices(self, node: str) -> Notices:
        """What tells this machine, which is that node, of its end."""
        ...

    def node(self) -> str:
        """The node that this machine is.

        Raises:
            SystemExit: the cloud does not know.
        """
        ...

    def bucket(self, url: str, *, attempts: int = ..., timeout: float = ...) -> Bucket: ...

    def secret(self, name: str) -> Secret: ...

    def keep_name(self, context: Context) -> None:
        """Have nothing of the cloud's in the image give the machine another name later."""
        ...

    def disk(self, context: Context, mount: Mount) -> Disk:
        """Raises:
        ValueError: the settings do not say which one it is.
        """
        ...

    def scratch(self, context: Context) -> list[str]:
        """Devices of the disks that come with the machine, in their order."""
        ...

    def people(self, context: Context) -> None:
        """Have those known here whom the cloud lets in.

        Raises:
            TimeoutError: they are not.
        """
        ...

    def watched(self, context: Context) -> bool:
        """Whether the machine has to tell Slurm itself that it will be taken: its cloud tells nobody else, or
        not in time."""
        ...

    def have_agent(self, context: Context) -> None:
        """Have what ships logs installed, and not started: an image holds it.

        Raises:
            SkipStep: the settings want none.
            OSError, CommandError: it cannot be had.
        """
        ...

    def ship_logs(self, context: Context) -> str:
        """Have the cloud keep this role's logs. Returns a word on it.

        Raises:
            SkipStep: they stay on the machine.
        """
        ...
