"""What is known of a provider only once its resources are there: a class for each provider, and for mounts.

`node.model.Site` holds one of them as its `cloud`. In JSON the field `provider` tells them apart.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeVar


@dataclass(frozen=True, slots=True)
class MountSource:
    """Where machines find a mount: at a service, or on a disk of the controller's."""

    source: str | None = None
    """What a machine mounts from a service: `10.1.2.3:/home`, an EFS file system's name."""
    disk: str | None = None
    """The disk that the controller exports: an EBS volume's id, a persistent disk's self link."""
    device: str | None = None
    """The name under which the controller has that disk: `/dev/sdf`, `/dev/disk/by-id/google-…`."""


@dataclass(frozen=True, slots=True)
class AwsSite:
    """What the driver and the boot steps need to know of AWS."""

    region: str = ""
    """The region; empty where the machine is to ask its metadata service."""
    cluster: str = ""
    """The tag by which the driver knows the cluster's instances."""
    subnets: dict[str, str] = field(default_factory=dict)
    """Zone -> the subnet in which nodes start."""
    templates: dict[str, str] = field(default_factory=dict)
    """Partition -> id of its launch template."""
    log_group: str | None = None
    """The log group in CloudWatch; `None` leaves logs on the machines."""
    provider: Literal["aws"] = "aws"


@dataclass(frozen=True, slots=True)
class GcpSite:
    """What the driver and the boot steps need to know of Google Cloud."""

    project: str = ""
    region: str = ""
    cluster: str = ""
    """The label by which the driver knows the cluster's instances."""
    templates: dict[str, str] = field(default_factory=dict)
    """Partition -> self link of its instance template."""
    zones: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Partition -> zones in which its nodes start, tried in this order."""
    logs: bool = False
    """Whether machines send their logs to Cloud Logging."""
    provider: Literal["gcp"] = "gcp"


@dataclass(frozen=True, slots=True)
class LocalSite:
    """What the driver and the boot steps need to know of the local cloud."""

    socket: str = ""
    """The socket of the local cloud's agent, as machines see it."""
    loopback_only: bool = False
    """Process machines: whether the controller's daemons listen on 127.0.0.1 alone. Then the controller's
    namespace calls this host `localhost`, because they listen on the address of the host's name."""
    ipv6: bool = False
    """Process machines: whether this host's kernel has IPv6. With it Slurm works on the loopback alone."""
    provider: Literal["local"] = "local"


CloudSite = TypeVar("CloudSite", AwsSite, GcpSite, LocalSite)
