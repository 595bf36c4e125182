"""The published settings as text, in the one form that this version writes and the two that it reads."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

from node.design.model import SETTINGS_VERSION, Settings
from node.system import foreign
from node.system.codec import from_json

FORMER_VERSION = "slurm-stacks/settings/v1"
"""The version whose designs had no sections `aws` and `gcp`."""
OF_CLUSTER = ("kms_key", "permissions_boundary", "role_path")
OF_PARTITION = {
    "aws": ("efa", "capacity_block", "placement_group", "gp3", "security_groups"),
    "gcp": ("secure_boot", "placement_policy", "disk_type", "min_cpu_platform", "network_tags"),
}
"""Section -> what version 1 had beside it, in a partition. `OF_CLUSTER` is that of a cluster's `aws`."""
OVERRIDES = {"aws": "launch_template_overrides", "gcp": "instance_template_overrides"}
"""Provider -> the name of what version 1 called `template_overrides`."""


def read_settings(file: Path) -> Settings:
    """Read the settings in a file.

    Raises:
        OSError: The file cannot be read.
        ValueError: It holds no settings that this version reads; the message says where.
    """
    return parse_settings(file.read_text())


@functools.lru_cache(maxsize=1)
def parse_settings(text: str | bytes) -> Settings:
    """Read the settings in a text. The last one's are kept: nobody changes settings that were read.

    Raises:
        ValueError: It holds no settings that this version reads; the message says where.
    """
    content = foreign.parse_strictly(text)
    version = content.get("api_version") if isinstance(content, dict) else None
    if version == FORMER_VERSION:
        content = _of_v1(content)
    elif version != SETTINGS_VERSION:
        raise ValueError(
            f"settings of {json.dumps(version)}, and this code reads {json.dumps(SETTINGS_VERSION)}: use the "
            "release that has published them, or a newer one"
        )
    return from_json(Settings, content)


def _of_v1(content: dict[str, Any]) -> dict[str, Any]:
    """Return settings of version 1 in the present form: what only one cloud has moves into its section."""
    try:
        design = dict(content["design"])
        network = dict(design.get("network", {}))
        design["aws"] = _taken(design, OF_CLUSTER) | _taken(network, ("nat",))
        design["network"] = network
        design["partitions"] = [_partition_of_v1(one, design["provider"]) for one in design["partitions"]]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"settings of {json.dumps(FORMER_VERSION)} that are damaged: {error!r}") from error
    return {**content, "design": design, "api_version": SETTINGS_VERSION}


def _partition_of_v1(partition: dict[str, Any], provider: str) -> dict[str, Any]:
    present = dict(partition)
    for section, names in OF_PARTITION.items():
        present[section] = _taken(present, names)
    overrides = present.pop("template_overrides", "")
    if provider in OVERRIDES:
        present[provider][OVERRIDES[provider]] = overrides
    return present


def _taken(part: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """Take fields out of a part and return them."""
    return {name: part.pop(name) for name in names if name in part}
