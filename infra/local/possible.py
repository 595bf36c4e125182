"""Whether machines can be namespaces here, and in which way: found out by making one, for a moment."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from infra.errors import EXIT_REFUSED, UserError
from infra.local.cloud.kind import NAMESPACE

PROGRAMS = {"unshare": "util-linux", "nsenter": "util-linux", "ip": "iproute2", "mount": "mount"}
PROBE_SECONDS = 60.0
PROBE = """
set -e
ip link add br0 type bridge
ip link add eth0 type veth peer name v0
ip link set v0 master br0
mount --make-rprivate /
mount -t tmpfs tmpfs "$1"
mkdir "$1/upper" "$1/work" "$1/merged"
mount -t overlay overlay -o "lowerdir=/etc,upperdir=$1/upper,workdir=$1/work$2" "$1/merged"
touch "$1/merged/x"
mount -t proc proc /proc
"""
SWITCHES = (
    ("/proc/sys/user/max_user_namespaces", "0", "user.max_user_namespaces=10000"),
    ("/proc/sys/kernel/unprivileged_userns_clone", "0", "kernel.unprivileged_userns_clone=1"),
    (
        "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
        "1",
        "kernel.apparmor_restrict_unprivileged_userns=0",
    ),
)
"""Settings of kernels that keep ordinary users from it: file, value, and what allows it."""
INSTEAD = "Or leave `machines: namespace` out: machines are processes then, which work everywhere."


def way() -> str:
    """`root` or `rootless`.

    Raises:
        UserError: exit 3; it is neither, and the message says why.
    """
    for program, package in PROGRAMS.items():
        if shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") is None:
            raise UserError(
                f"machines as namespaces need the program {program}. Have it installed (package {package}). "
                f"{INSTEAD}",
                EXIT_REFUSED,
            )
    root = os.geteuid() == 0
    if problem := _probe(rootless=not root):
        raise UserError(f"{_why(root, problem)} {INSTEAD}", EXIT_REFUSED)
    return "root" if root else "rootless"


def check(machines: str) -> None:
    """Refuse machines that cannot be made here.

    Raises:
        UserError: exit 3.
    """
    if machines == NAMESPACE:
        way()


def _probe(*, rootless: bool) -> str:
    """What the kernel says to all that a machine needs; empty: it does it."""
    user = ["--user", "--map-root-user"] if rootless else []
    kinds = ["--mount", "--net", "--uts", "--ipc", "--pid", "--fork"]
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = subprocess.run(
                ["unshare", *user, *kinds, "sh", "-c", PROBE, "sh", folder, ",userxattr" if rootless else ""],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=PROBE_SECONDS,
                check=False,
                env={"PATH": "/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin", "LANG": "C.UTF-8"},
            )
        except subprocess.TimeoutExpired:
            return f"no answer within {PROBE_SECONDS:g} s"
    lines = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
    return lines[0] if done.returncode else ""


def _why(root: bool, problem: str) -> str:
    if root:
        return (
            f"this root may not make machines of namespaces ({problem}): it is one of a container, as it "
            "seems. Start the container with --privileged."
        )
    for file, value, cure in SWITCHES:
        if Path(file).exists() and Path(file).read_text().strip() == value:
            return (
                f"this kernel lets no ordinary user make namespaces ({file} is {value}). Run as root, or "
                f"have it allowed (as root: sysctl -w {cure})."
            )
    return f"this kernel does not let an ordinary user make machines of namespaces ({problem}). Run as root."
