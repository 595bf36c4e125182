"""What has to be known to start a slurmd."""

from __future__ import annotations

from infra.node.slurm.version import Version, traits

QUIET_SECONDS = 0.4
"""What a slurmd takes at most from its first look at the clock to its registration."""


def start_delay(version: Version, uptime: float) -> float:
    """Seconds to wait before `slurmd -b` is started on a machine whose nodes come up within a second.

    With -b a slurmd reports that its node booted when it started, and slurmctld ignores a node that booted
    before it was asked for: the node stays POWERING_UP until ResumeTimeout. 22.05 counts the seconds since
    then as differences of the kernel's whole seconds of uptime: if one begins between slurmd's start and its
    registration, the node seems a second older, and if that was also the second of the request, it is lost
    (measured: 17 of 80 nodes on a cluster whose ticks fell so; none in 240 with this delay). So no slurmd is
    started shortly before a second of uptime ends. A later SIGHUP makes a lost slurmd register once more.

    Args:
        uptime: `time.clock_gettime(time.CLOCK_BOOTTIME)`.
    """
    left = 1.0 - uptime % 1.0
    return left if traits(version).boot_time_in_uptime and left < QUIET_SECONDS else 0.0
