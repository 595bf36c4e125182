"""What every machine is told by the metadata server."""

from __future__ import annotations

import pulumi

from infra.gcp import userdata
from infra.gcp.parts import Station
from infra.node.model import ClusterDesign

STARTUP = "startup-script"
"""Run at each boot by Google's guest agent. It never changes for a living machine."""
ALWAYS = {
    # Users, their ids and who may use sudo are the project's IAM: the same on every machine.
    "enable-oslogin": "TRUE",
    # Else everybody whose key is in the project's metadata could log in beside OS Login.
    "block-project-ssh-keys": "TRUE",
    "serial-port-enable": "FALSE",
}
SCOPES = ["https://www.googleapis.com/auth/cloud-platform"]
"""Scopes restrict nothing here: what a machine may do is its service account's roles."""


def metadata(
    design: ClusterDesign, station: Station, role: str, host: str | None = None
) -> dict[str, pulumi.Input[str]]:
    """Args:
    role: controller | login | compute.
    host: the machine's name in the design; None: it finds that by its instance's name.
    """
    bucket = pulumi.Output.from_input(station.bucket)
    script = bucket.apply(lambda name: userdata.render(design, name, role, host))
    return {**ALWAYS, STARTUP: script}
