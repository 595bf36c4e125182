"""Generic resources: what node lines and gres.conf say about accelerators."""

from __future__ import annotations

from infra.node.model import Accelerator, ClusterDesign
from infra.node.slurm.hardware import Hardware, Lines
from infra.node.slurm.hostlist import expand, fold


def kinds(design: ClusterDesign, deviation: Lines) -> list[str]:
    """The names of the generic resources in use, for `GresTypes`."""
    return sorted({accelerator.gres for accelerator in deviation.accelerators(design)})


def resource(accelerator: Accelerator) -> str:
    """`gpu:v100:8`, as in a node line."""
    return f"{accelerator.gres}:{accelerator.type}:{accelerator.count}"


def lines(design: ClusterDesign, deviation: Lines) -> list[str]:
    """The lines of gres.conf, each for nodes of one partition; none without accelerators."""
    result: list[str] = []
    for partition in design.partitions:
        for group, hardware in deviation.groups(partition.nodes(), Hardware.of(partition)):
            if (accelerator := hardware.accelerator) is None:
                continue
            nodes = fold(group)
            kind = f"Name={accelerator.gres} Type={accelerator.type}"
            result.append(f"NodeName={nodes} {kind} File={_files(accelerator)}")
    return result


def devices(accelerator: Accelerator) -> list[str]:
    """The device files that a node must have before it registers."""
    return [device for file in _files(accelerator) for device in expand(file)]


def _files(accelerator: Accelerator) -> str:
    """The device files, in the order of the devices' numbers.

    Slurm numbers devices by their files, refuses a name that occurs twice, and waits for ever for one that is
    not there. For devices that are not there, every count is made of spellings of the one file that every
    container has; jobs then see CUDA_VISIBLE_DEVICES=0,1,… (a regular file would leave it empty).
    """
    if accelerator.simulated:
        return ",".join(f"/dev/{'./' * i}null" for i in range(accelerator.count))
    # Named, not found by NVML: the distributions' packages are built without it.
    prefix = "/dev/neuron" if accelerator.gres == "neuron" else "/dev/nvidia"
    return f"{prefix}0" if accelerator.count == 1 else f"{prefix}[0-{accelerator.count - 1}]"
