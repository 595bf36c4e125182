"""Whether machines can be containers on this host. A probe mounts what a container needs."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from cli.local import image, system_packages
from infra.errors import EXIT_REFUSED, UserError
from infra.program import locations
from localcloud import cgroups, images, layers
from node.model import CONTAINER, ClusterDesign

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
INSTEAD = "Or leave `isolation: container` out: machines are processes then, which work everywhere."


def check(isolation: str) -> None:
    """Refuse machines that cannot be made here. `up` installs missing packages before this check.

    Raises:
        UserError: exit 3; the message names the cure.
    """
    if isolation == CONTAINER and (reason := unsupported_reason()) is not None:
        raise UserError(f"{reason} {INSTEAD}", EXIT_REFUSED)


def warnings(design: ClusterDesign) -> list[str]:
    """Return a plan's warnings about this host: why a cluster of that design cannot come up here.

    Raises:
        UserError: exit 3; the design needs packages that this user may not install.
    """
    if design.isolation == CONTAINER:
        reason = unsupported_reason(design)
        return [f"this cannot come up here: {reason}"] if reason else []
    text = system_packages.check_accounting() if design.slurm.accounting else ""
    return [text] if text else []


def unsupported_reason(
    design: ClusterDesign | None = None, look: Callable[[], str] | None = None
) -> str | None:
    """Return why machines cannot boot here, with the cure; `None` if they can, once their image is made.

    Args:
        design: decides what the image holds; without it, the space for the image is not checked.
        look: returns the kernel's refusal of what a machine needs; by default `probe`.
    """
    return next(_reasons(design, look or probe), None)


def _reasons(design: ClusterDesign | None, look: Callable[[], str]) -> Iterator[str]:
    if os.geteuid() != 0:
        yield "machines that boot (`local: {isolation: container}`) are made by root: run as root (sudo)."
    if lacking := system_packages.missing_for_containers():
        yield (
            f"machines that boot need {' and '.join(lacking)}: as root, {system_packages.command(lacking)} "
            "(`up` does it)."
        )
    try:
        images.recipe(design.image.source if design is not None else None)
    except layers.ImageError as error:
        yield f"{error}."
    if not cgroups.hierarchies():
        yield f"{cgroups.NO_VERSION_2}."
    if problem := look():
        yield (
            f"this root may not make containers ({problem}): this seems to be a container itself. "
            "Start that with --privileged, and have /tmp on a file system of its own (--tmpfs /tmp:exec)."
        )
    if design is not None and not image.exists(design):
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
    """Try what a container machine needs. Returns the kernel's refusal; empty if all of it works."""
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
        # overlayfs leaves a folder that nobody may enter, so it could not be removed.
        work = Path(folder) / "work" / "work"
        if work.exists():
            work.chmod(0o700)
    lines = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
    return lines[0] if done.returncode else ""
