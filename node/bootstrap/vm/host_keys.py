"""The host keys of the machine's SSH server, which are made at the first boot. systemd starts the server."""

from __future__ import annotations

from pathlib import Path

from node.bootstrap.context import Context

SSHD = Path("/usr/sbin/sshd")
PORT = 22


def host_keys(context: Context) -> list[str]:
    """Return the machine's public host keys, which are made now if there are none.

    The list is empty if the machine has no SSH server. The keys go into the boot report, so that clients can
    verify the machine from the first connection on.
    """
    if not SSHD.exists():
        return []
    folder = context.at("etc/ssh")
    if not list(folder.glob("ssh_host_*_key.pub")):
        context.run("ssh-keygen", "-A")
    return [path.read_text().strip() for path in sorted(folder.glob("ssh_host_*_key.pub"))]
