"""AWS Neuron's driver and tools for Trainium, from AWS's repository, built for the running kernel.

The runtime and the collectives library are installed too, because frameworks in users' environments have
neither.
"""

from __future__ import annotations

import platform

from node.bootstrap.context import Context
from node.bootstrap.vm import apt, apt_repositories
from node.bootstrap.vm.running_kernel import leave_one_kernel, secure_boot
from node.system import plurals

NEURON_REPOSITORY = "https://apt.repos.neuron.amazonaws.com"
NEURON_KEY_URL = f"{NEURON_REPOSITORY}/GPG-PUB-KEY-AMAZON-AWS-NEURON.PUB"
NEURON_FINGERPRINT = "00FA2C1079260870A76D2C285749CAD8646D9185"
"""The repository's key, as Bottlerocket has it for the same packages (its gpgkey-<fingerprint>.asc)."""
NEURON_PACKAGES = (
    "aws-neuronx-dkms",
    "aws-neuronx-runtime-lib",
    "aws-neuronx-collectives",
    "aws-neuronx-tools",
)
"""AWS's packages for Ubuntu 24.04 (awsdocs-neuron: setup/pytorch)."""
NEURON_MODULE = "neuron"


def install_neuron(context: Context) -> None:
    """Install the packages, and builds the driver for this kernel.

    Raises:
        RuntimeError: Secure Boot would not load the driver.
        ServiceError: The repository's key cannot be fetched.
        CommandError: The driver cannot be installed, or does not compile for this kernel.
    """
    if secure_boot(context):
        raise RuntimeError(
            "the Neuron driver is built on the machine that uses it, and Secure Boot loads no such modules: "
            "use an image without Secure Boot (image.id)"
        )
    apt_repositories.add_repository(
        context,
        "aws-neuron",
        NEURON_KEY_URL,
        f"{NEURON_REPOSITORY} noble main",
        fingerprint=NEURON_FINGERPRINT,
    )
    apt.update(context)
    leave_one_kernel(context)
    # The headers come first, because the driver is built during the installation of its package.
    apt.install(context, [f"linux-headers-{platform.release()}"], fresh=True)
    apt.install(context, NEURON_PACKAGES, fresh=True)


def ensure_neuron_devices(context: Context, count: int) -> None:
    """Make sure that the driver is loaded and that all devices of the machine exist.

    Raises:
        RuntimeError: The number of devices is wrong.
    """
    if _neuron_devices(context) != count:
        install_neuron(context)
        context.run("modprobe", NEURON_MODULE, timeout=120.0)
        context.run("udevadm", "settle", "--timeout=60", timeout=90.0)
    present = _neuron_devices(context)
    if present != count:
        raise RuntimeError(
            f"/dev has {plurals.count(present, 'Neuron device')}, and there should be {count}; "
            f"`modinfo {NEURON_MODULE}` and `dmesg` on the machine say more"
        )


def _neuron_devices(context: Context) -> int:
    return sum(path.name.removeprefix("neuron").isdigit() for path in context.at("dev").glob("neuron*"))
