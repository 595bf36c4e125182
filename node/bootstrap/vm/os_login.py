"""OS Login: the project's users are known on every machine, with the same number everywhere.

The image's guest agent sets up NSS, PAM and sshd if the machine's metadata has `enable-oslogin`. But it
makes no home on the shared disk, and no key for the cluster's other machines. Users are known only when
they log in, so both are made at each user's first login.

The agent also does not disable keys in a user's `~/.ssh/authorized_keys`. Only the command that gives OS
Login's keys to sshd checks whether the user may log in; PAM does not (`updatePAMsshdPamless` in
GoogleCloudPlatform/guest-agent). With a key in that file its owner could log in for ever, even after OS
Login's key has expired and the role was revoked. So these files are not used for logins from outside.
"""

from __future__ import annotations

from node.bootstrap.context import Context
from node.bootstrap.vm import first_login
from node.system import files
from node.system.waiting import wait_until

NSSWITCH = "etc/nsswitch.conf"
AGENT_SECONDS = 60.0
POLL_SECONDS = 0.5
SSHD = "etc/ssh/sshd_config.d/10-slurm-stacks.conf"
"""The file sorts before others, because sshd uses the first value of each setting. A matching Match block has
priority."""
SSHD_TEXT = """\
# Written by slurm-stacks: OS Login says who comes in from outside, and until when. Keys in files have no end:
# they count between the cluster's own machines only.
AuthorizedKeysFile none
"""
SSHD_INSIDE = """\
Match Address {cidr}
    AuthorizedKeysFile .ssh/authorized_keys
"""


def prepare_os_login(context: Context) -> None:
    """Wait until the machine knows the users. Where users log in, it prepares their first login.

    Raises:
        TimeoutError: The agent has not set up OS Login in time.
    """
    late = (
        f"OS Login is not set up on this machine: google-guest-agent has not written it to /{NSSWITCH} for "
        f"{AGENT_SECONDS:g} s; is the metadata key enable-oslogin TRUE, and has the image the agent?"
    )
    wait_until(lambda: _known(context), AGENT_SECONDS, late, POLL_SECONDS)
    if context.has_users:
        first_login.prepare(context)
    if context.role in ("controller", "login"):
        _only_os_login(context)


def _known(context: Context) -> bool:
    """Return whether the machine asks OS Login for users."""
    try:
        lines = context.at(NSSWITCH).read_text().splitlines()
    except FileNotFoundError:
        return False
    return any(line.startswith("passwd:") and "oslogin" in line.split() for line in lines)


def _only_os_login(context: Context) -> None:
    """Make sshd ignore authorized_keys for logins from outside.

    Nodes do not need it: they are reached only from the cluster.
    """
    cidr = context.settings.design.network.cidr
    # In an existing network it is not known which addresses belong to the cluster.
    text = SSHD_TEXT + (SSHD_INSIDE.format(cidr=cidr) if cidr else "")
    file = context.at(SSHD)
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.exists() and file.read_text() == text:
        return
    files.write(file, text.encode())
    context.run("systemctl", "try-reload-or-restart", "ssh.service")


BY_ID = "dev/disk/by-id"
LOCAL_SSD = ("google-local-ssd-*", "google-local-nvme-ssd-*")
"""The names of a machine's local SSDs by the image's udev rules: on SCSI, and on NVMe."""
NAMING = "/usr/bin/google_set_hostname"
