"""What people find on the shared disks: places to write, and a key with which the head reaches the nodes."""

from __future__ import annotations

import pwd
from pathlib import Path

from infra.node.bootstrap import accounts, files
from infra.node.bootstrap.context import Context

FIRST_USER = 1000
NOBODY = 65534
KEY = "id_slurm_stacks"
CLIENT = "etc/ssh/ssh_config.d/slurm-stacks.conf"
# Each launch makes another machine of a node's name, in a network of the cluster's own: its key cannot be
# known.
CLIENT_TEXT = """\
# Written by slurm-stacks: the cluster's nodes.
Host {patterns}
    IdentityFile ~/.ssh/{key}
    StrictHostKeyChecking no
    UserKnownHostsFile /dev/null
    LogLevel ERROR
"""


def prepare(context: Context) -> None:
    """On the controller, when its disks are mounted."""
    # Whoever trains keeps data sets there, and nobody takes away another's: as in /tmp.
    files.folder(Path(context.settings.site.apps) / "data", 0o1777)
    for entry in pwd.getpwall():
        home = context.at(entry.pw_dir.lstrip("/"))
        person = FIRST_USER <= entry.pw_uid < NOBODY and (home / ".ssh").is_dir()
        if person and _shared(context, entry.pw_dir):
            keys(context, entry.pw_name, home / ".ssh")


def way_to_nodes(context: Context) -> None:
    """Where people log in: `ssh NODE` needs no key of their own, and asks nothing."""
    client = context.at(CLIENT)
    client.parent.mkdir(parents=True, exist_ok=True)
    patterns = " ".join(f"{partition.name}-*" for partition in context.settings.design.partitions)
    files.place(client, CLIENT_TEXT.format(patterns=patterns, key=KEY).encode())


def keys(context: Context, user: str, folder: Path) -> None:
    """Have a key pair of the user's own for the cluster's machines, which all see the same home."""
    key, authorized = folder / KEY, folder / "authorized_keys"
    public = key.with_suffix(".pub")
    if not public.exists():
        key.unlink(missing_ok=True)
        make = ("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", f"{user}@{context.settings.design.name}")
        context.run(*make, "-f", str(key))
    before = authorized.read_text() if authorized.exists() else ""
    if public.read_text().strip() not in before.splitlines():
        text = f"{before.rstrip()}\n" if before.strip() else ""
        files.place(authorized, f"{text}{public.read_text()}".encode(), 0o600, user)
    for path in (key, public):
        accounts.own(path, user)


def _shared(context: Context, home: str) -> bool:
    return any(home.startswith(f"{mount.path.rstrip('/')}/") for mount in context.settings.design.mounts)
