"""Installs GDRCopy on nodes with GPUs: a library, and the kernel module gdrdrv, built on the machine.

Sources: NVIDIA's repository gdrcopy, `packages/dkms` (the package and its service) and
`src/gdrdrv/Makefile` (the build takes the driver's sources from /usr/src/nvidia-*, where
`nvidia-kernel-source-…` puts them).
"""

from __future__ import annotations

import contextlib
import platform
import re

from node.bootstrap.command import CommandError
from node.bootstrap.context import Context
from node.bootstrap.vm import apt, nvidia, pinned

MODULE = "gdrdrv"
DRIVER = "gdrdrv-dkms"
LIBRARY = "libgdrapi"
UNIT = f"{MODULE}.service"
"""The package's own service. It fails, and with it apt, where NVIDIA's driver is not loaded."""
DEVICES = "proc/devices"
NODE = f"dev/{MODULE}"


def place(context: Context) -> list[str]:
    """Installs what the stack file names, and does not load it. NVIDIA's driver must be installed.

    Returns:
        The packages that were missing.

    Raises:
        ServiceError: A package cannot be fetched, or has another hash.
        CommandError: apt cannot install one.
        RuntimeError: The module was not built for the running kernel.
    """
    packages = context.settings.design.gdrcopy
    if not packages:
        return []
    apt.mask(context, UNIT)
    nvidia.leave_one_kernel(context)
    apt.install(context, [f"linux-headers-{platform.release()}"])
    made = pinned.install(context, packages)
    try:
        context.run("modinfo", "--field=filename", MODULE)
    except CommandError as error:
        state = ""
        with contextlib.suppress(CommandError):
            state = context.run("dkms", "status", MODULE).strip()
        raise RuntimeError(
            f"GDRCopy: the kernel module {MODULE} was not built for Linux {platform.release()} "
            f"({state or 'dkms does not know it'}); its log is "
            f"/var/lib/dkms/{MODULE}/*/build/make.log, and a newer {DRIVER} may know this kernel"
        ) from error
    return made


def ensure_loaded(context: Context) -> str:
    """Makes sure that GDRCopy is installed, that its module is loaded and that programs can open its device.

    Returns:
        A note, which is empty if the stack file does not ask for GDRCopy.

    Raises:
        RuntimeError: The module was not built, or does not work with the loaded driver.
    """
    if not context.settings.design.gdrcopy:
        return ""
    place(context)
    try:
        context.run("modprobe", MODULE, timeout=120.0)
    except CommandError as error:
        raise RuntimeError(
            f"GDRCopy: the kernel does not load {MODULE}, although it was built: {error}"
        ) from error
    major = re.search(rf"^ *(\d+) {MODULE}$", context.at(DEVICES).read_text(), re.MULTILINE)
    if major is None:
        raise RuntimeError(f"GDRCopy: {MODULE} is loaded, and /proc/devices has no device of its own")
    # Each load may get another number. Every user may open it, as with the package's own service: the driver
    # maps only memory of the process that asks.
    context.at(NODE).unlink(missing_ok=True)
    context.run("mknod", "--mode=666", str(context.at(NODE)), "c", major[1], "0")
    version = apt.installed(context, [DRIVER]).get(DRIVER, "")
    return f"GDRCopy {version}".rstrip()
