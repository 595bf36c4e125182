"""AWS Neuron's driver and tools, for Trainium: from AWS's repository, built for the running kernel.

The runtime and the collective library go with the driver: a framework in a user's environment brings neither.
"""

from __future__ import annotations

import platform

from infra.node import words
from infra.node.bootstrap.context import Context
from infra.node.bootstrap.vm import apt, nvidia, repositories

REPOSITORY = "https://apt.repos.neuron.amazonaws.com"
KEY_URL = f"{REPOSITORY}/GPG-PUB-KEY-AMAZON-AWS-NEURON.PUB"
PACKAGES = ("aws-neuronx-dkms", "aws-neuronx-runtime-lib", "aws-neuronx-collectives", "aws-neuronx-tools")
"""As AWS names them for Ubuntu 24.04 (awsdocs-neuron: setup/pytorch)."""
MODULE = "neuron"


def install(context: Context) -> None:
    """Have the packages, with the driver built for this kernel.

    Raises:
        RuntimeError: the machine would not load it.
        ServiceError: nobody has the repository's key for us.
        CommandError: it cannot be installed, or does not compile for this kernel.
    """
    if nvidia.secure_boot(context):
        raise RuntimeError(
            "the Neuron driver is built on the machine that uses it, and Secure Boot loads no such modules: "
            "use an image without Secure Boot (image.id)"
        )
    repositories.add(context, "aws-neuron", KEY_URL, f"{REPOSITORY} noble main")
    apt.update(context)
    nvidia.leave_one_kernel(context)
    # Before the driver: it is built as its package is installed, where there are headers.
    apt.install(context, [f"linux-headers-{platform.release()}"], fresh=True)
    apt.install(context, PACKAGES, fresh=True)


def have(context: Context, count: int) -> None:
    """Have the driver loaded and all of the machine's devices.

    Raises:
        RuntimeError: there are fewer or more than there should be.
    """
    if _devices(context) != count:
        install(context)
        context.run("modprobe", MODULE, timeout=120.0)
        context.run("udevadm", "settle", "--timeout=60", timeout=90.0)
    found = _devices(context)
    if found != count:
        raise RuntimeError(
            f"/dev has {words.count(found, 'Neuron device')}, and there should be {count}; "
            f"`modinfo {MODULE}` and `dmesg` on the machine say more"
        )


def _devices(context: Context) -> int:
    return sum(path.name.removeprefix("neuron").isdigit() for path in context.at("dev").glob("neuron*"))
