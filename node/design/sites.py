"""What is known of a provider only once its resources are there: a class for each provider, and for mounts.

`node.design.model.Site` holds one of them as its `cloud`. In JSON the field `provider` tells them apart.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeVar


@dataclass(frozen=True, slots=True)
class MountSource:
    """Where machines find a mount: at a service, or on a disk of the controller's.

    Attributes:
        source: What a machine mounts from a service: `10.1.2.3:/home`, an EFS file system's name.
        disk: The disk that the controller exports: an EBS volume's id, a persistent disk's self link.
        device: The name under which the controller has that disk: `/dev/sdf`, `/dev/disk/by-id/google-…`.
    """

    source: str | None = None
    disk: str | None = None
    device: str | None = None


@dataclass(frozen=True, slots=True)
class AwsSite:
    """What the driver and the boot steps need to know of AWS.

    Attributes:
        region: The region; empty where the machine is to ask its metadata service.
        cluster: The tag by which the driver knows the cluster's instances.
        subnets: Zone -> the subnet in which nodes start.
        templates: Partition -> id of its launch template.
        log_group: The log group in CloudWatch; `None` leaves logs on the machines.
    """

    region: str = ""
    cluster: str = ""
    subnets: dict[str, str] = field(default_factory=dict)
    templates: dict[str, str] = field(default_factory=dict)
    log_group: str | None = None
    provider: Literal["aws"] = "aws"


@dataclass(frozen=True, slots=True)
class GcpSite:
    """What the driver and the boot steps need to know of Google Cloud.

    Attributes:
        cluster: The label by which the driver knows the cluster's instances.
        templates: Partition -> self link of its instance template.
        zones: Partition -> zones in which its nodes start, tried in this order.
        logs: Whether machines send their logs to Cloud Logging.
    """

    project: str = ""
    region: str = ""
    cluster: str = ""
    templates: dict[str, str] = field(default_factory=dict)
    zones: dict[str, tuple[str, ...]] = field(default_factory=dict)
    logs: bool = False
    provider: Literal["gcp"] = "gcp"


@dataclass(frozen=True, slots=True)
class LocalSite:
    """What the driver and the boot steps need to know of the local cloud.

    Attributes:
        socket: The socket of the local cloud's agent, as machines see it.
        loopback_only: Process machines: whether the controller's daemons listen on 127.0.0.1 alone. Then the
            controller's namespace calls this host `localhost`, because they listen on the address of the
            host's name.
        ipv6: Process machines: whether this host's kernel has IPv6. With it Slurm works on the loopback
            alone.
    """

    socket: str = ""
    loopback_only: bool = False
    ipv6: bool = False
    provider: Literal["local"] = "local"


CloudSite = TypeVar("CloudSite", AwsSite, GcpSite, LocalSite)
