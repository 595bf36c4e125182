"""The sources of a machine's mounts (disks and file systems), from the settings."""

from __future__ import annotations

from node.bootstrap.context import Context
from node.model import Mount
from node.sites import MountSource


def of(context: Context, mount: Mount) -> MountSource:
    """Returns the source of a mount.

    Raises:
        ValueError: The settings have no source for it.
    """
    found = context.settings.site.mounts
    if mount.path not in found:
        raise ValueError(
            f"{mount.path}: the settings have no source for this mount (site.mounts): "
            "publish them again with `up`"
        )
    return found[mount.path]
