"""Drivers of a node's devices: NVIDIA's, which depend on the GPU's generation and the kernel, and EFA's."""

from __future__ import annotations

from node.bootstrap.context import Context
from node.bootstrap.vm import apt, pyxis
from node.bootstrap.vm.efa import EFA_FI_INFO, EFA_VERSION, ensure_interfaces, install_efa
from node.bootstrap.vm.neuron import ensure_neuron_devices, install_neuron
from node.bootstrap.vm.nvidia_driver import install_nvidia
from node.bootstrap.vm.nvidia_gpus import ensure_gpus, flavour_of, switched
from node.design.accelerators import Accelerator
from node.design.model import Partition


def has_nvidia(accelerator: Accelerator) -> bool:
    """Return whether the accelerator is an NVIDIA GPU that needs a driver, not a simulated one."""
    return accelerator.gres == "gpu" and not accelerator.simulated


def has_neuron(accelerator: Accelerator) -> bool:
    """Return whether the accelerator is a Trainium device that needs a driver, not a simulated one."""
    return accelerator.gres == "neuron" and not accelerator.simulated


def install(context: Context, partition: Partition) -> str:
    """Install the drivers that this partition's nodes need.

    Returns:
        A note on EFA, empty without it.
    """
    accelerator = partition.accelerator
    if accelerator is not None and has_nvidia(accelerator):
        ensure_gpus(context, accelerator, signed=partition.gcp.secure_boot)
        pyxis.install_toolkit(context)
    if accelerator is not None and has_neuron(accelerator):
        ensure_neuron_devices(context, accelerator.count)
    return ensure_interfaces(context, partition.aws.efa) if partition.aws.efa else ""


def install_unloaded(context: Context, partition: Partition) -> list[str]:
    """Install the drivers without loading them, because a machine that becomes an image has no devices.

    Returns:
        A note for each driver.
    """
    placed = []
    accelerator = partition.accelerator
    if accelerator is not None and has_nvidia(accelerator):
        apt.update(context)
        flavour = flavour_of(accelerator)
        choice = install_nvidia(context, flavour, signed=partition.gcp.secure_boot, baking=True)
        if switched(accelerator):
            context.run("systemctl", "enable", "nvidia-fabricmanager", timeout=120.0)
        placed.append(f"NVIDIA's driver {choice.driver} ({flavour.name})")
        placed += pyxis.install_toolkit(context)
    if accelerator is not None and has_neuron(accelerator):
        install_neuron(context)
        placed.append("the Neuron driver")
    if partition.aws.efa:
        if not context.at(EFA_FI_INFO).exists():
            install_efa(context)
        placed.append(f"EFA {EFA_VERSION}")
    return placed
