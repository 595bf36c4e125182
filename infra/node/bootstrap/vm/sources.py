"""Where a machine's mounts come from: what the site says of disks and file systems."""

from __future__ import annotations

import json
from typing import Any

from infra.node.bootstrap.context import Context
from infra.node.model import Mount


def of(context: Context, mount: Mount) -> dict[str, Any]:
    """Where a mount comes from, as the settings have it.

    Raises:
        ValueError: they say nothing of it.
    """
    found = known(context)
    if mount.path not in found:
        raise ValueError(
            f"{mount.path}: the settings do not say where it comes from (site.driver.mounts): "
            "publish them again with `up`"
        )
    return found[mount.path]


def known(context: Context) -> dict[str, dict[str, Any]]:
    """A mount's path -> where it comes from, for those that need a word on it."""
    found: dict[str, dict[str, Any]] = json.loads(context.settings.site.driver.get("mounts", "{}"))
    return found
