"""The time limits of the steps of a boot, in seconds, and the longest boot of a node.

Slurm waits for a node as long as its longest boot (ResumeTimeout). Otherwise the node would be given back
while it installs packages. A failed boot is reported at once, so only a machine that never reports anything
costs this time.
"""

from __future__ import annotations

from node.design.model import ClusterDesign, Partition

USERS = 30
HOSTS = 30
SECRETS = 120
HOSTS_SECRETS = 780
"""The limit of the step `secrets` on the controller and on login machines."""
DISKS = 300
PACKAGES = 1500
SOURCE = 3600
"""What the step `packages` may take longer on a machine that builds Slurm for its image."""
METADATA = 600
"""The limit of the step `metadata`, which may have to install nftables."""
MOUNTS = 300
SLURM = 300
ACCELERATORS = 1500
"""The limit of the step for drivers: package lists, modules and libraries, the EFA installer, and builds."""
HOOKS = 3600
HEALTH = 300
"""The limit of the step `health`, which runs several tools with a limit of their own."""
READY = 120
READY_HOSTS = 480
"""The limit of the step `ready` on the controller, whose database may have to repair files."""
LOGS = 240
ENVIRONMENT = 1800

START = 180
"""The time from the launch to the first step: the machine's start, cloud-init, and fetching the code."""
RESTART = 180
"""The time of a restart with another kernel, for Lustre."""
FOUND = 120
"""The time of a step whose work is done already, in a baked image."""


def boot(design: ClusterDesign, partition: Partition) -> int:
    """Return the longest time from the launch of a cloud's node to its registration, in seconds."""
    devices = partition.accelerator is not None or bool(partition.aws.efa)
    if baked(design, partition):
        installs = FOUND + (FOUND if devices else 0)
        closed = FOUND
    else:
        lustre = any(mount.kind == "fsx_lustre" and "compute" in mount.roles for mount in design.mounts)
        installs = PACKAGES + (RESTART if lustre else 0) + (ACCELERATORS if devices else 0)
        closed = METADATA
    hooks = sum(hook.timeout for hook in design.hooks if hook.role in ("compute", "all"))
    health = HEALTH if devices and design.health is not None else 0
    return (
        START + USERS + HOSTS + closed + SECRETS + DISKS + installs + MOUNTS + SLURM + hooks + health + READY
    )


def baked(design: ClusterDesign, partition: Partition) -> bool:
    """Return whether nodes start from a baked image that has all that they need.

    The content of a user's own image is not known.
    """
    return design.image.bake and partition.image is None
