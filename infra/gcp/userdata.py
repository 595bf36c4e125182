"""What a machine is told before it has anything: where its code is, and which role it has.

The text never changes for a living cluster: a change would restart or replace machines. So it has the names
of bucket, region, role and host, and no digest, no version and no secret.
"""

from __future__ import annotations

from pathlib import Path

from infra.clouds import userdata
from infra.node.model import ClusterDesign

START = Path(__file__).with_name("start.py")
LIMIT = 256 * 1024
"""Of a value in the metadata, in bytes."""


def render(design: ClusterDesign, bucket: str, role: str, host: str | None = None) -> str:
    """The startup script, which Google's guest agent runs at each boot.

    Args:
        role: controller | login | compute.
        host: the machine's name; None: it finds that by its instance's name.

    Raises:
        ValueError: it would be longer than the metadata takes.
    """
    arguments = ["--bucket", bucket, "--region", str(design.region), "--cluster", design.name, "--role", role]
    if host is not None:
        arguments += ["--host", host]
    return userdata.script(START, arguments, host or role, LIMIT)
