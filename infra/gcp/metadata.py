"""The metadata of machines. Whoever may list the machines can read it."""

from __future__ import annotations

import pulumi

from infra import bundle
from infra.clouds.userdata import HOOK, BootScript
from infra.config import distributions
from infra.gcp.role_resources import RoleResources
from node.bootstrap.vm.images import ROLE as IMAGE
from node.elastic.drivers.gce.names import BUCKET
from node.model import ClusterDesign

STARTUP = "startup-script"
"""The key of the script that Google's guest agent runs late in each boot. It never changes while a machine
lives."""
USER_DATA = "user-data"
"""The key of the script that cloud-init runs early. It never changes while a machine lives."""
BOOT_SCRIPT = BootScript(
    start=bundle.ROOT / "node" / "gcp" / "start.py",
    # A value in the metadata has 256 KiB at most, and cloud-init's copy begins with `HOOK`.
    limit=256 * 1024 - len(HOOK),
    # cloud-init chooses the package mirrors, and the agent sets up OS Login: the boot goes on from there.
    # An image that lacks one of the two does not wait for it.
    after=("cloud-config.service", "google-guest-agent.service"),
)
"""The script of every machine. Google's guest agent runs it at each boot as the startup script. On Ubuntu
that is after multi-user.target and after snapd has seeded its snaps. cloud-init runs it earlier (`HOOK`).
Debian's images have no cloud-init."""
ALWAYS = {
    # The project's IAM defines the users, their ids and who may use sudo: the same on every machine.
    "enable-oslogin": "TRUE",
    # Otherwise everybody whose key is in the project's metadata could log in beside OS Login.
    "block-project-ssh-keys": "TRUE",
    "serial-port-enable": "FALSE",
}
OPEN = {"slurm-stacks-open-metadata": "true"}
"""Says that every user of a node may ask the metadata address. The boot reads the settings instead. With this
a partition has another template, so that nodes which booted otherwise retire."""
SCOPES = ["https://www.googleapis.com/auth/cloud-platform"]
"""The scopes restrict nothing here. The roles of its service account say what a machine may do."""


def metadata(
    design: ClusterDesign, resources: RoleResources, role: str, host: str | None = None
) -> dict[str, pulumi.Input[str]]:
    """The metadata of a machine.

    Args:
        role: controller | login | compute | image.
        host: The machine's name in the design. `None` means that the machine finds it by its instance's name.
    """
    bucket = pulumi.Output.from_input(resources.bucket)
    script = bucket.apply(lambda name: BOOT_SCRIPT.render(design, name, role, host))
    # On a node this would change its template, and nobody asks for a node's bucket.
    named: dict[str, pulumi.Input[str]] = {BUCKET: bucket} if host is not None else {}
    scripts: dict[str, pulumi.Input[str]] = {}
    cloud_init = distributions.of(design.image.source).google.cloud_init
    if cloud_init:
        scripts[USER_DATA] = script.apply(HOOK.__add__)
    if role != IMAGE or not cloud_init:
        # Where cloud-init has run the other key on a machine that becomes an image, this script would run
        # late, and make the unit again after cleanup.
        scripts[STARTUP] = script
    return {**ALWAYS, **named, **scripts}
