"""How the local cloud behaves. Its agent follows these settings."""

from __future__ import annotations

from dataclasses import dataclass, field

# The part of a design that says how the local cloud behaves. Its agent follows these settings.


@dataclass(frozen=True, slots=True)
class CloudBehaviour:
    """The limits and the simulated failures of the local cloud. `None` means no limit.

    Attributes:
        boot_delay: Seconds from the launch of a machine until it runs.
        boot_spread: The greatest additional delay in seconds. Each machine gets its own random delay up to
            this value.
        quota_nodes: The number of compute machines at one time. A launch beyond it fails, as it would on a
            cloud.
        quota_gpus: The number of the machines' devices at one time.
        capacity: Pool -> the number of machines at one time. A pool is a partition's name, or
            `partition/zone`.
        never_register: The share of compute machines (0 to 1) that run but never register as a node.
        api_error: The error with which calls fail: quota | capacity | placement | permission | throttled |
            config.
        api_latency: Seconds that are added to every call.
        list_lag: Seconds for which a new machine is missing from the list.
    """

    boot_delay: float = 0.0
    boot_spread: float = 0.0
    quota_nodes: int | None = None
    quota_gpus: int | None = None
    capacity: dict[str, int] = field(default_factory=dict)
    never_register: float = 0.0
    api_error: str | None = None
    api_latency: float = 0.0
    list_lag: float = 0.0
