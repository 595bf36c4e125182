"""Container machines: whether this host can run them, and the image that they start from."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from infra import os_errors
from infra.errors import EXIT_REFUSED, UserError
from infra.program import locations
from localcloud import cgroups, images, volumes
from node.design.model import CONTAINER, ClusterDesign
from operations import programs
from operations.local import system_packages
from operations.local.container_images import image_exists, image_folder

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


def check_support(isolation: str) -> None:
    """Refuse machines that cannot be made here. `up` installs missing packages before this check.

    Raises:
        UserError: Exit 3; the message names the cure.
    """
    if isolation == CONTAINER and (reason := unsupported_reason()) is not None:
        raise UserError(f"{reason} {INSTEAD}", EXIT_REFUSED, code="containers.not-possible")


def support_warnings(design: ClusterDesign) -> list[str]:
    """Return a plan's warnings about this host: why a cluster of that design cannot come up here.

    Raises:
        UserError: Exit 3; the design needs packages that this user may not install.
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
        design: Decides what the image holds; without it, the space for the image is not checked.
        look: Returns the kernel's refusal of what a machine needs; by default `probe`.
    """
    return next(_reasons(design, look or probe), None)


def _reasons(design: ClusterDesign | None, look: Callable[[], str]) -> Iterator[str]:
    if os.geteuid() != 0:
        yield "machines that boot (`local: {isolation: container}`) are made by root: run as root (sudo)."
    if lacking := system_packages.missing(system_packages.CONTAINERS):
        yield (
            f"machines that boot need {' and '.join(lacking)}: as root, {system_packages.command(lacking)} "
            "(`up` does it)."
        )
    try:
        images.recipe(design.image.source if design is not None else None)
    except images.ImageError as error:
        yield f"{error}."
    if not cgroups.hierarchies():
        yield f"{cgroups.NO_VERSION_2}."
    if problem := look():
        yield (
            f"this root may not make containers ({problem}): this seems to be a container itself. "
            "Start that with --privileged, and have /tmp on a file system of its own (--tmpfs /tmp:exec)."
        )
    if design is not None and (missing := state_problem(design)):
        yield missing
    if design is not None and not image_exists(design):
        try:
            images.check_free_space(image_folder())
        except images.ImageError as error:
            yield f"{error}."


def state_problem(design: ClusterDesign) -> str:
    """Return why the disk with Slurm's state cannot be attached here, with the cure; empty if it can."""
    if design.state() is None or not (problem := volumes.unavailable()):
        return ""
    return (
        f"the disk with Slurm's state needs a loop device, and this machine gives none ({problem}): as root, "
        "modprobe loop; or write controller: {state: machine} into the stack file."
    )


def probe() -> str:
    """Try what a container machine needs. Returns the kernel's refusal; empty if all of it works."""
    root, _ = os_errors.nearest(locations.run_root())
    with tempfile.TemporaryDirectory(dir=root) as folder:
        done = programs.capture(
            ["unshare", "--mount", "--net", "--propagation", "private", "sh", "-c", PROBE, "sh", folder],
            env={"PATH": "/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin", "LANG": "C.UTF-8"},
            seconds=PROBE_SECONDS,
        )
        if done.status == programs.TIMED_OUT:
            return done.err
        # overlayfs leaves a folder that nobody may enter, so it could not be removed.
        work = Path(folder) / "work" / "work"
        if work.exists():
            work.chmod(0o700)
    lines = done.err.strip().splitlines() or [f"status {done.status}"]
    return lines[0] if done.failed else ""
