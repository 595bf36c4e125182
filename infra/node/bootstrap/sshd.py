"""The machine's SSH server, which systemd starts: its host keys, made at the first boot."""

from __future__ import annotations

import subprocess
from pathlib import Path

from infra.node.bootstrap.context import Context

SSHD = Path("/usr/sbin/sshd")
PORT = 22


def host_keys(context: Context) -> list[str]:
    """The machine's public host keys, made now if it has none; none where it has no SSH server.

    They go to the boot report, by which those who connect know the machine from the first time on.
    """
    if not SSHD.exists():
        return []
    folder = context.at("etc/ssh")
    if not list(folder.glob("ssh_host_*_key.pub")):
        subprocess.run(["ssh-keygen", "-A"], check=True, capture_output=True, text=True)
    return [path.read_text().strip() for path in sorted(folder.glob("ssh_host_*_key.pub"))]
