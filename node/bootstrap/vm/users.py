"""Prepares the shared disks for users: folders to write to, and a key for SSH to the nodes."""

from __future__ import annotations

import pwd
import sys
from pathlib import Path

from node.bootstrap.command import CommandError
from node.bootstrap.context import Context
from node.design.sharing import of_machines
from node.system import files

FIRST_USER, NOBODY = 1000, 65534
"""System users, below the first, neither log in nor submit."""
KEY = "id_slurm_stacks"
KEY_SECONDS = 20.0
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
KEY_TEXT = """\
umask 077
mkdir -p "$1/.ssh" && cd "$1/.ssh" || exit 1
exec 9>.{key}.lock && flock 9
[ -e {key}.pub ] || {{ rm -f {key}; ssh-keygen -q -t ed25519 -N "" -C "$2@{cluster}" -f {key} </dev/null; }}
grep -qxFf {key}.pub authorized_keys 2>/dev/null && exit 0
[ -z "$(tail -c 1 authorized_keys 2>/dev/null)" ] || echo >>authorized_keys
cat {key}.pub >>authorized_keys
"""
"""A shell script that makes a user's key pair and lets its owner in. It runs as the user.

Its arguments are the home folder and the user's name. It has no single quotes, because another script holds
it in such quotes.
"""


def prepare(context: Context) -> None:
    """Prepare the folders and the users' keys, on the controller, when its disks are mounted."""
    # The folder is for data sets. As in /tmp, users cannot remove the files of others.
    files.folder(Path(context.settings.site.apps) / "data", 0o1777)
    # Those of the stack file have theirs by then (`cluster_users`).
    made = {user.name for user in of_machines(context.settings.design.users)}
    for entry in pwd.getpwall():
        home = context.at(entry.pw_dir.lstrip("/"))
        is_user = FIRST_USER <= entry.pw_uid < NOBODY and (home / ".ssh").is_dir()
        if is_user and entry.pw_name not in made and _shared(context, entry.pw_dir):
            keys_if_possible(context, entry)


def keys_if_possible(context: Context, entry: pwd.struct_passwd) -> None:
    """Make the user's key pair, or says why not: no user can stop the boot by what is in a home folder."""
    try:
        keys(context, entry)
    except CommandError as error:
        print(f"{entry.pw_name} gets no key for `ssh NODE`: {error}", file=sys.stderr, flush=True)


def configure_ssh(context: Context) -> None:
    """Configure SSH where users log in, so that `ssh NODE` needs no key of the user's and asks nothing."""
    client = context.at(CLIENT)
    client.parent.mkdir(parents=True, exist_ok=True)
    patterns = " ".join(f"{partition.name}-*" for partition in context.settings.design.partitions)
    files.write(client, CLIENT_TEXT.format(patterns=patterns, key=KEY).encode())


def keys(context: Context, entry: pwd.struct_passwd) -> None:
    """Make the user's key pair for the cluster's machines, which all share the user's home.

    This is done as the user. In a folder that belongs to a user root would follow the user's links.
    """
    script = KEY_TEXT.format(key=KEY, cluster=context.settings.design.name)
    become = ("setpriv", "--reuid", str(entry.pw_uid), "--regid", str(entry.pw_gid), "--init-groups")
    home = str(context.at(entry.pw_dir.lstrip("/")))
    context.run(
        *become, "--reset-env", "/bin/sh", "-c", script, "keys", home, entry.pw_name, timeout=KEY_SECONDS
    )


def _shared(context: Context, home: str) -> bool:
    return any(home.startswith(f"{mount.path.rstrip('/')}/") for mount in context.settings.design.mounts)
