"""Whether machines can be containers here: found out from this host, and by mounting what one needs."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from infra.errors import EXIT_REFUSED, UserError
from infra.local import image, packages
from infra.local.cloud import groups, images, layers
from infra.local.cloud.kind import CONTAINER
from infra.node.model import ClusterDesign
from infra.runner import locations

PROBE_SECONDS = 60.0
PROBE = """
set -e
ip link add br0 type bridge
ip link add eth0 type veth peer name v0
ip link set v0 master br0
mkdir "$1/upper" "$1/work" "$1/merged"
mount -t overlay overlay -o "lowerdir=/etc,upperdir=$1/upper,workdir=$1/work" "$1/merged"
touch "$1/merged/x"
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
"""Settings of kernels that keep ordinary users from namespaces: file, value, and what allows them."""
INSTEAD = "Or leave `machines: container` out: machines are processes then, which work everywhere."


def check(machines: str) -> None:
    """Refuse machines that cannot be made here, as far as `up` cannot help it.

    Raises:
        UserError: exit 3; the message names the cure.
    """
    if machines == CONTAINER and (reason := why_not()) is not None:
        raise UserError(f"{reason} {INSTEAD}", EXIT_REFUSED)


def why_not(design: ClusterDesign | None = None, look: Callable[[], str] | None = None) -> str | None:
    """Why machines cannot boot here, with the cure; None: they can, once their image is made.

    Args:
        design: decides what the image holds; None: whether there is room for it is not asked.
        look: what the kernel says to all that a machine needs; by default it is asked.
    """
    return next(_reasons(design, look or probe), None)


def _reasons(design: ClusterDesign | None, look: Callable[[], str]) -> Iterator[str]:
    if os.geteuid() != 0:
        yield "machines that boot (`local: {machines: container}`) are made by root: run as root (sudo)."
    if lacking := packages.missing_for_containers():
        yield (
            f"machines that boot need {' and '.join(lacking)}: as root, {packages.command(lacking)} "
            "(`up` does it)."
        )
    try:
        images.recipe(design.image.source if design is not None else None)
    except layers.ImageError as error:
        yield f"{error}."
    if not groups.hierarchies():
        yield f"{groups.NO_VERSION_2}."
    if problem := look():
        yield (
            f"this root may not make containers ({problem}): it is one of a container itself, as it seems. "
            "Start that with --privileged, and have /tmp on a file system of its own (--tmpfs /tmp:exec)."
        )
    if design is not None and not image.there(design):
        place = image.folder()
        while not place.exists():
            place = place.parent
        free = shutil.disk_usage(place).free // 2**20
        if free < layers.NEEDED_MIB:
            yield (
                f"the image of machines that boot takes {layers.NEEDED_MIB} MiB in {image.folder()}, and "
                f"{free} MiB are free there: make room, or have XDG_CACHE_HOME name another folder."
            )


def probe() -> str:
    """What the kernel says to all that a machine needs; empty: it does it."""
    root = locations.run_root()
    while not root.exists():
        root = root.parent
    with tempfile.TemporaryDirectory(dir=root) as folder:
        try:
            done = subprocess.run(
                ["unshare", "--mount", "--net", "--propagation", "private", "sh", "-c", PROBE, "sh", folder],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=PROBE_SECONDS,
                check=False,
                env={"PATH": "/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin", "LANG": "C.UTF-8"},
            )
        except subprocess.TimeoutExpired:
            return f"no answer within {PROBE_SECONDS:g} s"
        # overlayfs has left a folder there that nobody may enter.
        work = Path(folder) / "work" / "work"
        if work.exists():
            work.chmod(0o700)
    lines = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
    return lines[0] if done.returncode else ""
