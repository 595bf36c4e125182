"""How long each step of a boot may take, in seconds; how long a node may take that takes all of it.

Whoever waits for a node waits so long (Slurm's ResumeTimeout): else it would be given back while it installs.
A boot that fails says so at once, so only a machine that never says anything costs this time.
"""

from __future__ import annotations

from infra.node.model import ClusterDesign, Partition

USERS = 30
HOSTS = 30
SECRETS = 120
HOSTS_SECRETS = 780
"""Of the controller and login machines."""
DISKS = 300
PACKAGES = 1500
METADATA = 60
MOUNTS = 300
SLURM = 300
ACCELERATORS = 1500
"""Reading the lists, the modules and the user space, the EFA installer: each with a build for this kernel."""
HOOKS = 3600
READY = 120
READY_HOSTS = 480
"""The controller's database may have files to repair."""
LOGS = 240
ENVIRONMENT = 1800

START = 180
"""From the launch to the first step: the machine's start, cloud-init, the code's way."""
RESTART = 180
"""Another kernel, for Lustre."""
FOUND = 120
"""For a step that finds its work done, in a baked image."""


def boot(design: ClusterDesign, partition: Partition) -> int:
    """The longest that a node of a cloud may take from its launch to its registration."""
    devices = partition.accelerator is not None or bool(partition.efa)
    if baked(design, partition):
        installs = FOUND + (FOUND if devices else 0)
    else:
        lustre = any(mount.kind == "fsx_lustre" and "compute" in mount.roles for mount in design.mounts)
        installs = PACKAGES + (RESTART if lustre else 0) + (ACCELERATORS if devices else 0)
    hooks = sum(hook.timeout for hook in design.hooks if hook.role in ("compute", "all"))
    return START + USERS + HOSTS + SECRETS + DISKS + installs + MOUNTS + SLURM + hooks + READY


def baked(design: ClusterDesign, partition: Partition) -> bool:
    """Whether its nodes start from an image that has all that they need. What one of the user's own has is
    not known."""
    return design.image.bake and partition.image is None
