"""The Lustre client of FSx, whose module works with exactly one kernel.

The current image of Ubuntu 24.04 boots a kernel for which the repository has no module. So the newest kernel
with a module is installed and made the default, and the boot continues after a restart. An image that has the
client already does not need this.
"""

from __future__ import annotations

import platform
import re

from node.bootstrap.context import Context
from node.bootstrap.vm import apt, apt_repositories
from node.system import files

KEY_URL = "https://fsx-lustre-client-repo-public-keys.s3.amazonaws.com/fsx-ubuntu-public-key.asc"
"""AWS's guide has no fingerprint of this key, so it is the TLS of AWS's own bucket that vouches for it."""
REPOSITORY = "https://fsx-lustre-client-repo.s3.amazonaws.com/ubuntu noble main"
MODULES = "lustre-client-modules-"
UTILITIES = "lustre-client-utils"
"""The package with `mount.lustre`. The module packages only recommend it (lustre-release v2_15_6,
debian/control.modules.in), and recommendations are not installed here."""
HELPER = "sbin/mount.lustre"
"""The program that mount(8) runs for `-t lustre`."""
GRUB = "etc/default/grub.d/99-slurm-stacks.cfg"
GRUB_TEXT = """\
# Written by slurm-stacks: the kernel that has a Lustre client, though there may be newer ones.
GRUB_DEFAULT="{submenu}>Ubuntu, with Linux {kernel}"
"""
SUBMENU = "Advanced options for Ubuntu"
MARK = "kernel"
"""The file in the machine's own folder with the kernel for which it has restarted."""


def install(context: Context, *, fresh: bool) -> tuple[str | None, list[str]]:
    """Install the client's module and its mount helper.

    Returns:
        The kernel for which the machine must restart, if any, and the packages that were installed.

    Raises:
        RuntimeError: There is no module for any of the distribution's kernels, the machine did not boot the
            kernel that was installed, or the packages have no mount helper.
    """
    kernel, installed = _install(context, fresh=fresh)
    if not context.at(HELPER).exists():
        raise RuntimeError(
            f"the Lustre client's packages are installed, but there is no /{HELPER}, which mounts need: "
            "use an image that has the Lustre client (image.id)"
        )
    return kernel, installed


def _install(context: Context, *, fresh: bool) -> tuple[str | None, list[str]]:
    running = platform.release()
    loaded = True
    try:
        context.run("modinfo", "-k", running, "lustre")
    except RuntimeError:
        loaded = False
    if loaded and context.at(HELPER).exists():
        return None, []
    apt_repositories.add_repository(context, "fsx-lustre", KEY_URL, REPOSITORY)
    apt.update(context)
    if loaded:
        return None, apt.install(context, [UTILITIES], fresh=True)
    kernels = {name.removeprefix(MODULES) for name in apt.names(context, MODULES)}
    if running in kernels:
        return None, apt.install(context, [f"{MODULES}{running}", UTILITIES], fresh=True)
    mark = context.path(context.folders.lib) / MARK
    if mark.exists():
        raise RuntimeError(
            f"this machine was to start with Linux {mark.read_text().strip()} and runs {running}: "
            "use an image that has the Lustre client (image.id)"
        )
    kernel = newest(context, kernels)
    installed = apt.install(
        context,
        [
            f"linux-image-{kernel}",
            f"linux-modules-{kernel}",
            f"linux-headers-{kernel}",
            f"{MODULES}{kernel}",
            UTILITIES,
        ],
        fresh=True,
    )
    grub = context.at(GRUB)
    grub.parent.mkdir(parents=True, exist_ok=True)
    files.write(grub, GRUB_TEXT.format(submenu=SUBMENU, kernel=kernel).encode())
    context.run("update-grub", timeout=120.0)
    menu = context.at("boot/grub/grub.cfg").read_text()
    if SUBMENU not in menu or f"'Ubuntu, with Linux {kernel}'" not in menu:
        # Otherwise the machine would start with the same kernel again without any message.
        raise RuntimeError(
            f"GRUB's menu has no entry for Linux {kernel}: use an image of your own (image.id)"
        )
    mark.parent.mkdir(parents=True, exist_ok=True)
    files.write(mark, f"{kernel}\n".encode())
    return kernel, installed


def newest(context: Context, kernels: set[str]) -> str:
    """Return the newest kernel that has a module and that the distribution still offers."""
    for kernel in sorted(filter(_of_aws, kernels), key=apt.version_order, reverse=True):
        if apt.known(context, f"linux-image-{kernel}") and apt.known(context, f"{MODULES}{kernel}"):
            return kernel
    raise RuntimeError(
        "FSx's repository has a Lustre client for no kernel that Ubuntu offers "
        f"({', '.join(sorted(kernels)) or 'none at all'}): use an image that has one (image.id)"
    )


def _of_aws(kernel: str) -> bool:
    return re.fullmatch(r"\d+\.\d+\.\d+-\d+-aws", kernel) is not None
