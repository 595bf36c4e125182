"""The machine's SSH server: host keys made at its first boot, and the server where no systemd starts it."""

from __future__ import annotations

import subprocess
from pathlib import Path

from infra.node import ports
from infra.node.bootstrap import daemons, files
from infra.node.bootstrap.context import Context
from infra.node.bootstrap.services import Service

SSHD = Path("/usr/sbin/sshd")
PORT = 22
CONFIG = """\
# Written by slurm-stacks at each boot.
Port {port}
HostKey {key}
PidFile {pid}
# Keys only. Without PAM an account that useradd has just made counts as locked: `usermod -p '*' USER`.
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
AuthorizedKeysFile .ssh/authorized_keys {accepted}
AcceptEnv LANG LC_*
# Files go where all machines see them, where `exec` begins.
Subsystem sftp internal-sftp -d /home/%u
"""
ACCEPTED = "run/sshd/accepted_keys"
"""Public keys of whoever made the cluster, brought by `ssh-config`'s way in; below the machine's root.

All folders above it are root's, or sshd would not believe it."""


def host_keys(context: Context) -> list[str]:
    """The machine's public host keys, made now if it has none; none where it has no SSH server.

    They go to the boot report, by which those who connect know the machine from the first time on.
    """
    if absent(context):
        return []
    if context.settings.design.machines == "vm":
        folder = context.at("etc/ssh")
        if not list(folder.glob("ssh_host_*_key.pub")):
            subprocess.run(["ssh-keygen", "-A"], check=True, capture_output=True, text=True)
    else:
        # Not in /etc/ssh: there lie those of the host, whose files a namespace machine sees.
        folder = _folder(context)
        key = folder / "ssh_host_ed25519_key"
        if not key.with_suffix(".pub").exists():
            key.unlink(missing_ok=True)
            make = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", context.host, "-f", str(key)]
            subprocess.run(make, check=True, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    return [path.read_text().strip() for path in sorted(folder.glob("ssh_host_*_key.pub"))]


def absent(context: Context) -> str | None:
    """Why this machine has no SSH server."""
    if context.settings.site.rootless:
        return "sshd needs several users, and this machine has one"
    return None if SSHD.exists() else "openssh-server is not installed"


def start(context: Context) -> str | None:
    """Start it, where nothing else does. Returns a word on it, None where systemd has it."""
    if context.settings.design.machines == "vm":
        return None
    if why := absent(context):
        return f"no sshd: {why}"
    folder = _folder(context)
    # Where it puts its unprivileged half.
    files.folder(context.at("run/sshd"))
    text = CONFIG.format(
        port=PORT,
        key=folder / "ssh_host_ed25519_key",
        pid=context.at("run/sshd.pid"),
        accepted=context.at(ACCEPTED),
    )
    config = folder / "sshd_config"
    files.place(config, text.encode())
    log = context.path(context.folders.log) / "sshd.log"
    pid = context.services.start(Service("sshd", (str(SSHD), "-D", "-e", "-f", str(config)), log))
    daemons.wait("sshd", lambda: not ports.free(PORT), log, pid)
    return "sshd"


def _folder(context: Context) -> Path:
    return files.folder(context.at("var/lib/slurm-stacks/ssh"), 0o700)
