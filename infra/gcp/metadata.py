"""What every machine is told by the metadata server, and whoever may list machines reads of them."""

from __future__ import annotations

import pulumi

from infra.gcp import userdata
from infra.gcp.parts import Station
from infra.node.bootstrap.vm.images import ROLE as IMAGE
from infra.node.elastic.drivers.gce_names import BUCKET
from infra.node.model import ClusterDesign

STARTUP = "startup-script"
"""Run at each boot by Google's guest agent, late. It never changes for a living machine."""
USER_DATA = "user-data"
"""Read by cloud-init, early; images without it have the other. It never changes for a living machine."""
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
    role: controller | login | compute | image.
    host: the machine's name in the design; None: it finds that by its instance's name.
    """
    bucket = pulumi.Output.from_input(station.bucket)
    script = bucket.apply(lambda name: userdata.render(design, name, role, host))
    # A node's would be a change of its template, and nobody asks for a node's.
    named: dict[str, pulumi.Input[str]] = {BUCKET: bucket} if host is not None else {}
    told: dict[str, pulumi.Input[str]] = {USER_DATA: script.apply(userdata.early)}
    if role != IMAGE:
        # Where that becomes an image it would come late, and make its unit anew after all was tidied up.
        told[STARTUP] = script
    return {**ALWAYS, **named, **told}
