"""Prepares the shared disks for users: folders to write to, and a key for SSH to the nodes."""

from __future__ import annotations

import pwd
from pathlib import Path

from node.bootstrap import accounts, files
from node.bootstrap.context import Context

FIRST_USER = 1000
NOBODY = 65534
KEY = "id_slurm_stacks"
CLIENT = "etc/ssh/ssh_config.d/slurm-stacks.conf"
# Host keys are not checked, because each launch makes a new machine for a node's name, with a new key, and
# nodes are in the cluster's own network.
CLIENT_TEXT = """\
# Written by slurm-stacks: the cluster's nodes.
Host {patterns}
    IdentityFile ~/.ssh/{key}
    StrictHostKeyChecking no
    UserKnownHostsFile /dev/null
    LogLevel ERROR
"""


def prepare(context: Context) -> None:
    """Prepares the folders and the users' keys, on the controller, when its disks are mounted."""
    # The folder is for data sets. As in /tmp, users cannot remove the files of others.
    files.folder(Path(context.settings.site.apps) / "data", 0o1777)
    for entry in pwd.getpwall():
        home = context.at(entry.pw_dir.lstrip("/"))
        is_user = FIRST_USER <= entry.pw_uid < NOBODY and (home / ".ssh").is_dir()
        if is_user and _shared(context, entry.pw_dir):
            keys(context, entry.pw_name, home / ".ssh")


def configure_ssh(context: Context) -> None:
    """Configures SSH where users log in, so that `ssh NODE` needs no key of the user's and asks nothing."""
    client = context.at(CLIENT)
    client.parent.mkdir(parents=True, exist_ok=True)
    patterns = " ".join(f"{partition.name}-*" for partition in context.settings.design.partitions)
    files.write(client, CLIENT_TEXT.format(patterns=patterns, key=KEY).encode())


def keys(context: Context, user: str, folder: Path) -> None:
    """Makes the user's key pair for the cluster's machines, which all share the user's home."""
    key, authorized = folder / KEY, folder / "authorized_keys"
    public = key.with_suffix(".pub")
    if not public.exists():
        key.unlink(missing_ok=True)
        make = ("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", f"{user}@{context.settings.design.name}")
        context.run(*make, "-f", str(key))
    before = authorized.read_text() if authorized.exists() else ""
    if public.read_text().strip() not in before.splitlines():
        text = f"{before.rstrip()}\n" if before.strip() else ""
        files.write(authorized, f"{text}{public.read_text()}".encode(), 0o600, user)
    for path in (key, public):
        accounts.chown(path, user)


def _shared(context: Context, home: str) -> bool:
    return any(home.startswith(f"{mount.path.rstrip('/')}/") for mount in context.settings.design.mounts)
