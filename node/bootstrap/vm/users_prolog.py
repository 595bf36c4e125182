"""Has a node that is up apply a later list of the stack file's users, before its next job.

slurm.conf, which every slurmd has, names the list's digest in its second line. The prolog compares it with
that of the list that the node has, and fetches the published one only where they differ.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

from node.bootstrap.command import CommandError, run
from node.bootstrap.vm import clouds
from node.bootstrap.vm.cluster_users import APPLIED, Machine, apply
from node.design.folders import Folders
from node.design.model import Settings
from node.design.published import read_settings
from node.design.sharing import User, of_machines
from node.system.codec import from_json

PROGRAM = "apply-users"
FETCH_SECONDS = 10.0
PROLOG_TEXT = """\
#!/bin/sh
# Written by slurm-stacks. slurmd calls it as root before each job on this node.
# The second line of slurm.conf says which users this node should have.
PATH=/usr/sbin:/usr/bin:/sbin:/bin
{{ read -r _ && read -r wanted; }} <{conf}
case "$wanted" in
"# users: "*)
    read -r applied <{applied}
    if [ "$wanted" != "$applied" ] || ! getent passwd "$SLURM_JOB_UID" >/dev/null; then
        {program} >>{log} 2>&1
    fi ;;
esac
exec {checks}
"""


def prolog_text(folders: Folders, checks: str) -> str:
    """Return the prolog of a whole machine, which has the users of the stack file before its job begins.

    A few lines of shell look, and Python starts only where something is to do: jobs wait for it.

    Args:
        checks: The command that does what else a prolog does.
    """
    return PROLOG_TEXT.format(
        conf=folders.spool / "conf-cache" / "slurm.conf",
        applied=folders.lib / APPLIED,
        program=folders.code / "bin" / PROGRAM,
        log=folders.log / "users.log",
        checks=checks,
    )


def main(settings_file: str) -> int:
    """Apply the list of users that is published now, on a node that is up.

    Returns:
        Always 0: a node without the list takes jobs of the users whom it knows.
    """
    try:
        settings = read_settings(Path(settings_file))
        folders = Folders(settings)
        root, lib = Path(str(folders.root)), Path(str(folders.lib))
        machine = Machine(root, lib, settings.site.shared, run, host=False, logs_in=False)
        _, told = apply(machine, published_users(settings))
        print("\n".join(told), end="\n" if told else "")
    except (OSError, ValueError, CommandError) as error:
        print(f"the users of the stack file are not applied: {error}", file=sys.stderr)
    return 0


def published_users(settings: Settings) -> list[User]:
    """Return the users of the settings in the bucket, which may be another release's.

    Raises:
        OSError: The bucket cannot be read.
        ValueError: It holds no such settings.
    """
    cloud = clouds.of(settings)
    bucket = cloud.bucket(clouds.bucket_url(settings), attempts=2, timeout=FETCH_SECONDS)
    try:
        entry = json.loads(bucket.get("current.json"))["settings"]
        content = bucket.get(entry["key"])
        if hashlib.sha256(content).hexdigest() != entry["sha256"]:
            raise ValueError(f"{entry['key']}: another digest than current.json names")
        listed = json.loads(content)["design"]["users"]
    except (KeyError, TypeError) as error:
        raise ValueError(f"the published settings have no users: {error!r}") from error
    return of_machines(from_json(User, one) for one in listed)
