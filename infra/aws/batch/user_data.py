"""The user data of Batch's machines: a MIME multi-part document that mounts the shared file systems.

Batch adds a part of its own, and takes no other form (botocore, batch: LaunchTemplateSpecification). The ECS
agent starts after cloud-init's last scripts, so a machine takes no job before its mounts are there. A machine
without them ends, because its job would otherwise run without data.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from infra.aws.batch import access
from node.model import ClusterDesign, Mount

BOUNDARY = "==slurm-stacks=="
LIMIT = 16 * 1024
"""EC2's limit of user data in bytes, before base64."""
TYPES = {"fsx_lustre": "lustre", "efs": "nfs4"}
"""The kind of a mount -> the type that mount(8) takes."""
_NOT_OF_MOUNT = {"_netdev"}
"""Options of /etc/fstab alone."""
_HEAD = f"""\
MIME-Version: 1.0
Content-Type: multipart/mixed; boundary="{BOUNDARY}"

--{BOUNDARY}
Content-Type: text/x-shellscript; charset="us-ascii"

"""
_SCRIPT = """\
#!/bin/sh
# Written by slurm-stacks: mounts what jobs need, before the ECS agent takes one.
set -u
give_up() {
    echo "slurm-stacks: $1: this machine ends" | tee /dev/console >&2
    systemctl mask --now ecs
    shutdown -h +1
    exit 1
}
mount_one() { # source path type options
    mkdir -p "$2"
    for _try in $(seq 60); do
        grep -qs " $2 " /proc/mounts && return 0
        mount -t "$3" -o "$4" "$1" "$2" && return 0
        sleep 10
    done
    give_up "$1 could not be mounted at $2 for ten minutes"
}
"""
_LUSTRE_CLIENT = """\
# Amazon Linux has the client in its repository; an image of this project has it already.
command -v mount.lustre >/dev/null || dnf install --assumeyes lustre-client || give_up "no Lustre client"
"""
_OF_JOB = """\
# The file system of the job that waits: the state machine wrote its address into a parameter.
metadata=http://169.254.169.254/latest
token=$(curl -sf -X PUT -H 'X-aws-ec2-metadata-token-ttl-seconds: 300' $metadata/api/token)
ask() { curl -sf -H "X-aws-ec2-metadata-token: $token" "$metadata/meta-data/iam/security-credentials/$1"; }
keys=$(ask "$(ask '')")
field() { printf '%%s\\n' "$keys" | sed -n "s/.*\\"$1\\" *: *\\"\\([^\\"]*\\)\\".*/\\1/p"; }
answer=$(curl -sf --retry 30 --retry-all-errors --retry-delay 10 --aws-sigv4 'aws:amz:%(region)s:ssm' \\
    --user "$(field AccessKeyId):$(field SecretAccessKey)" -H "X-Amz-Security-Token: $(field Token)" \\
    -H 'Content-Type: application/x-amz-json-1.1' -H 'X-Amz-Target: AmazonSSM.GetParameter' \\
    -d '{"Name": "%(parameter)s"}' 'https://ssm.%(region)s.amazonaws.com/')
source=$(printf '%%s\\n' "$answer" | sed -n 's/.*"Value" *: *"\\([^"]*\\)".*/\\1/p')
case $source in *@tcp:/*) ;; *) give_up 'no job has a file system' ;; esac
"""


def render(design: ClusterDesign, sources: Mapping[str, str]) -> str:
    """The user data of one design.

    Args:
        sources: path -> what is mounted there, for file systems that live as long as the stack.
    """
    batch = access.of(design)
    parts = [_HEAD, _SCRIPT]
    folders = sorted(set(batch.volumes) - {mount.path for mount in design.mounts})
    if folders:
        parts.append(f"mkdir -p {shlex.join(folders)}\n")
    if any(mount.kind == "fsx_lustre" for mount in design.mounts):
        parts.append(_LUSTRE_CLIENT)
    for mount in design.mounts:
        if mount.path not in sources:
            names = {"region": str(design.region), "parameter": access.parameter(design.name)}
            parts.append(_OF_JOB % names)
        source = shlex.quote(sources[mount.path]) if mount.path in sources else '"$source"'
        parts.append(f"mount_one {source} {shlex.quote(mount.path)} {TYPES[mount.kind]} {_options(mount)}\n")
    return "".join([*parts, f"\n--{BOUNDARY}--\n"])


def _options(mount: Mount) -> str:
    said = (mount.options or "defaults").split(",")
    return shlex.quote(",".join(option for option in said if option not in _NOT_OF_MOUNT))
