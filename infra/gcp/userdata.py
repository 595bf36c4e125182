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
AFTER = ("cloud-config.service", "google-guest-agent.service")
"""cloud-init chooses the package mirrors, and the agent sets up OS Login: a boot goes on from there. An image
that has not the one or the other waits for neither."""


def render(design: ClusterDesign, bucket: str, role: str, host: str | None = None) -> str:
    """The script that makes the boot's unit and starts it.

    The guest agent runs it at each boot as the startup script, on Ubuntu after multi-user.target and after
    snapd has seeded its snaps; cloud-init runs it sooner (`early`), and it changes nothing the second time.

    Args:
        role: controller | login | compute.
        host: the machine's name; None: it finds that by its instance's name.

    Raises:
        ValueError: it would be longer than the metadata takes.
    """
    arguments = ["--bucket", bucket, "--region", str(design.region), "--cluster", design.name, "--role", role]
    if host is not None:
        arguments += ["--host", host]
    return userdata.script(START, arguments, host or role, LIMIT - len(userdata.HOOK), AFTER)


def early(script: str) -> str:
    """The same for cloud-init, as the metadata's `user-data`."""
    return userdata.HOOK + script
