"""The published settings as text: the present form, and the forms of the versions before.

A command of this version asks running clusters that a version before has published, and a machine may start
new code before the new settings are there. So all forms are read.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from node.codec import from_json
from node.model import Settings

FIRST_VERSION = "slurm-stacks/settings/v1"
"""In this form the site had one `driver`, an object of texts, some of which held JSON."""
SECOND_VERSION = "slurm-stacks/settings/v2"
"""In this form, as in the first, the design said `machine` for an instance type, and `machines` for the
isolation."""
FORMER_JSON = ("mounts", "subnets", "templates", "zones", "blocks")
"""Keys of `driver` whose text held JSON."""
FORMER_SITE = ("bucket", "secret", "cgroups", "cloud_dns", "blocks")
"""Keys of `driver` that are fields of `Site` now."""
FORMER_CLOUD = {
    "aws": ("region", "cluster", "log_group", "subnets", "templates"),
    "gcp": ("project", "region", "cluster", "logs", "templates", "zones"),
    "local": ("socket",),
}
"""Provider -> keys of `driver` that are fields of `Site.cloud` now."""


def read_settings(file: Path) -> Settings:
    """The settings in a file.

    Raises:
        OSError: The file cannot be read.
        ValueError: It holds no settings; the message says where.
    """
    return parse_settings(file.read_text())


def parse_settings(text: str | bytes) -> Settings:
    """The settings in a text.

    Raises:
        ValueError: It holds no settings; the message says where.
    """
    content = json.loads(text)
    version = content.get("api_version") if isinstance(content, dict) else None
    if version in (FIRST_VERSION, SECOND_VERSION):
        try:
            if version == FIRST_VERSION:
                content = _second_form(content)
            content = _present_form(content)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"settings of {version} that are damaged: {error!r}") from error
    return from_json(Settings, content)


def _present_form(content: dict[str, Any]) -> dict[str, Any]:
    """Settings of the second form in the present one."""
    design = dict(content["design"])
    design["isolation"] = design.pop("machines")
    for part in ("hosts", "partitions"):
        design[part] = [_with_instance_type(one) for one in design[part]]
    return {"design": design, "site": content["site"]}


def _with_instance_type(part: dict[str, Any]) -> dict[str, Any]:
    return {"instance_type" if key == "machine" else key: value for key, value in part.items()}


def _second_form(content: dict[str, Any]) -> dict[str, Any]:
    """Settings of the first form in the second one."""
    design, site = dict(content["design"]), dict(content["site"])
    # `image.cuda` was in the design and had no effect.
    design["image"] = {key: value for key, value in design["image"].items() if key != "cuda"}
    driver: dict[str, Any] = dict(site.pop("driver", {}))
    driver |= {key: json.loads(driver[key]) for key in FORMER_JSON if key in driver}
    driver |= {key: driver[key] == "true" for key in ("logs", "cloud_dns") if key in driver}
    site |= {key: driver[key] for key in FORMER_SITE if key in driver}
    site["mounts"] = {
        # AWS called the controller's disk a volume.
        path: {"disk" if key == "volume" else key: value for key, value in its.items()}
        for path, its in driver.get("mounts", {}).items()
    }
    provider = design["provider"]
    cloud = {key: driver[key] for key in FORMER_CLOUD[provider] if key in driver}
    return {"design": design, "site": {**site, "cloud": {**cloud, "provider": provider}}}
