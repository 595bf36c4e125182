"""Where Compute Engine says that instances are: cluster, block and sub-block (`physicalHostTopology`)."""

from __future__ import annotations

from typing import Any

from node.slurm.topology import Place


def place(instance: Any) -> Place:
    """Return an instance's place, the widest part first; it is empty if Compute Engine does not tell.

    The host itself is left out. A machine of these types has a host of its own, so a switch for each host
    would say nothing.

    Args:
        instance: The client's `Instance`.
    """
    told = instance.resource_status.physical_host_topology
    parts = (told.cluster, told.block, told.subblock)
    # A part whose wider part is missing cannot be placed.
    known = next((count for count, part in enumerate(parts) if not part), len(parts))
    return parts[:known]
