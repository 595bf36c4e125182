"""The user data of a machine on AWS: `infra.clouds.userdata` with where its code is, and its role."""

from __future__ import annotations

from pathlib import Path

from infra.clouds.userdata import script
from infra.node.model import ClusterDesign

LIMIT = 16 * 1024
"""EC2's, in bytes, before base64."""


def render(design: ClusterDesign, bucket: str, role: str, host: str | None = None) -> str:
    """The script that cloud-init runs at a machine's first boot.

    Args:
        role: controller | login | compute.
        host: the machine's name; None: it finds that by its number in the launch.

    Raises:
        ValueError: it would be longer than EC2 takes.
    """
    arguments = ["--bucket", bucket, "--region", str(design.region), "--cluster", design.name, "--role", role]
    if host is not None:
        arguments += ["--host", host]
    return script(Path(__file__).with_name("start.py"), arguments, host or role, LIMIT)
