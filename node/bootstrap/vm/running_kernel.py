"""The running kernel: whether it loads signed modules only, and that a machine has no other one."""

from __future__ import annotations

import os
import platform

from node.bootstrap.context import Context
from node.bootstrap.vm import apt

SECURE_BOOT = "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
"""The UEFI variable: four bytes of attributes, then a byte that is 1 if only signed code is loaded."""


KERNELS = "lib/modules"


def secure_boot(context: Context) -> bool:
    """Return whether this machine loads signed modules only."""
    path = context.at(SECURE_BOOT)
    return path.exists() and path.read_bytes()[4:] == b"\x01"


def leave_one_kernel(context: Context) -> None:
    """Remove the headers of all kernels but the running one, because DKMS builds for each that has headers.

    A failed build for a kernel that the driver does not support yet would fail the whole installation.
    """
    running = platform.release()
    # `build` is a link, whose target may be missing here.
    others = sorted(path.name for path in context.at(KERNELS).glob("*") if os.path.lexists(path / "build"))
    packages = [f"linux-headers-{kernel}" for kernel in others if kernel != running]
    installed = [name for name in packages if name not in apt.missing(context, packages)]
    if installed:
        apt.purge(context, installed)
