"""NVIDIA's GPUs of a machine: the driver that their generation needs, and that all of them work."""

from __future__ import annotations

import contextlib
import re

from node.bootstrap.command import CommandError
from node.bootstrap.context import Context
from node.bootstrap.vm import apt
from node.bootstrap.vm.nvidia_driver import Flavour, install_nvidia
from node.design.accelerators import Accelerator
from node.system import plurals
from node.system.waiting import wait_at_most

CLOSED_ONLY = frozenset({"p4", "p100", "v100"})
"""GPUs older than Turing, which the open kernel modules do not support."""
SWITCHED = frozenset({"a100", "h100", "h200", "b200"})
"""GPUs that are joined by NVSwitch. Programs cannot use them without the fabric manager."""
SWITCHES = "proc/driver/nvidia-nvswitch/devices"
"""The folder of the switches that this machine sees, when the driver is loaded."""
SUBNET_MODULES = ("mlx5_ib", "ib_umad")
"""The kernel's InfiniBand modules, by which the subnet manager reaches the switches."""
FABRIC_SECONDS = 180.0
"""How long the GPUs may take until all have joined their fabric."""
FABRIC_PAUSE = 5.0


def closed(accelerator: Accelerator) -> bool:
    return accelerator.type in CLOSED_ONLY


def switched(accelerator: Accelerator) -> bool:
    return accelerator.type in SWITCHED and accelerator.count > 1


def ensure_gpus(context: Context, accelerator: Accelerator, *, signed: bool = False) -> None:
    """Make sure that the driver is installed and that all GPUs work and have device files.

    Args:
        signed: Whether the machine loads signed kernel modules only (Secure Boot).

    Raises:
        RuntimeError: The number of GPUs is wrong, or no driver can be installed.
    """
    if _gpus(context) != accelerator.count:
        apt.update(context)
        install_nvidia(context, flavour_of(accelerator), signed=signed)
        context.run("modprobe", "nvidia", timeout=120.0)
        # If the machine sees no switches, the cloud manages them, and the fabric manager is not needed.
        if switched(accelerator) and any(context.at(SWITCHES).glob("*")):
            context.run("systemctl", "enable", "--now", "nvidia-fabricmanager", timeout=120.0)
    # Slurm needs the device files. Without this the one for unified memory appears only at the first use.
    context.run("nvidia-modprobe", "-u", "-c=0", allow=(0, 1))
    seen = _gpus(context)
    if seen != accelerator.count:
        raise RuntimeError(
            f"nvidia-smi sees {plurals.count(seen, 'GPU')}, and there should be {accelerator.count}"
        )
    context.run("nvidia-smi", "--persistence-mode=1", timeout=120.0)
    if accelerator.subnet_managed:
        _join_fabric(context, accelerator.count)


def _join_fabric(context: Context, count: int) -> None:
    """Wait until the GPUs have joined their NVLink fabric, which the image's own services bring up.

    Raises:
        RuntimeError: A GPU has not joined it in time: no program could use it.
    """
    for command in (("modprobe", "--all", *SUBNET_MODULES), ("systemctl", "start", "nvidia-fabricmanager")):
        # Without them the check below fails, and says what to do.
        with contextlib.suppress(CommandError):
            context.run(*command, timeout=120.0)
    joined = 0

    def all_joined() -> bool:
        nonlocal joined
        joined = _joined(context.run("nvidia-smi", "--query", timeout=120.0))
        return joined == count

    if not wait_at_most(all_joined, FABRIC_SECONDS, FABRIC_PAUSE):
        raise RuntimeError(
            f"{joined} of {plurals.count(count, 'GPU')} have joined the NVLink fabric: NVIDIA's NVLink "
            "Subnet Manager (nvlsm) or the kernel's InfiniBand modules are missing, and CUDA would fail "
            "with error 802; use an image that has them, like AWS's Deep Learning Base AMI of Ubuntu "
            "24.04 (image.id)"
        )


def _joined(output: str) -> int:
    """Return the number of GPUs in the output of `nvidia-smi --query` whose fabric's state is Completed."""
    fabrics = re.findall(r"^\s+Fabric\n\s+State\s+: (.+)$", output, re.MULTILINE)
    return sum(state.strip() == "Completed" for state in fabrics)


def flavour_of(accelerator: Accelerator) -> Flavour:
    return Flavour(closed(accelerator), switched(accelerator))


def _gpus(context: Context) -> int:
    try:
        gpus = context.run("nvidia-smi", "--list-gpus", timeout=120.0)
    except CommandError:
        return 0
    return sum(line.startswith("GPU ") for line in gpus.splitlines())
