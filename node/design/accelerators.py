"""The accelerators of a node, as the design describes them. Plain data, which every machine reads."""

from __future__ import annotations

from dataclasses import dataclass

SUBNET_MANAGED = frozenset({"b200"})
"""GPUs whose NVSwitches NVIDIA's NVLink Subnet Manager programs, by the kernel's InfiniBand modules.

Without it nvidia-smi sees all GPUs, and every program fails with CUDA's error 802 (NVIDIA's Fabric Manager
user guide, section 1.3.2; NVIDIA/gpu-operator#2781 on p6-b200).
"""


@dataclass(frozen=True, slots=True)
class Accelerator:
    """The accelerators of a node: Slurm's generic resource `gpu:<type>:<count>`.

    Attributes:
        type: Slurm's GRES type: v100, t4, a100, a10g, trainium.
        count: Devices on each node.
        gres: The name of the generic resource: `gpu`, or `neuron` for Trainium.
        simulated: True on the local stack: Slurm counts and allocates devices that do not exist.
        cores: NeuronCores of a device, if jobs ask for cores; 0: they ask for devices.
    """

    type: str
    count: int
    gres: str = "gpu"
    simulated: bool = False
    cores: int = 0

    @property
    def resource(self) -> str:
        """The generic resource that jobs ask for."""
        return f"{self.gres}core" if self.cores else self.gres

    @property
    def units(self) -> int:
        """How much of it a node has."""
        return self.count * (self.cores or 1)

    @property
    def subnet_managed(self) -> bool:
        """Whether the devices are of no use before a subnet manager has joined them."""
        return self.type in SUBNET_MANAGED and self.count > 1 and not self.simulated
