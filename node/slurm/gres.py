"""Generic resources: the accelerators in node lines and in gres.conf."""

from __future__ import annotations

from node.model import Accelerator, ClusterDesign
from node.slurm.hardware import Hardware, Lines
from node.slurm.hostlist import expand, fold


def kinds(design: ClusterDesign, deviation: Lines) -> list[str]:
    """Return the names of the generic resources in use, for `GresTypes`."""
    return sorted({accelerator.resource for accelerator in deviation.accelerators(design)})


def resource(accelerator: Accelerator) -> str:
    """Return the resource in the notation of a node line: `gpu:v100:8`."""
    return f"{accelerator.resource}:{accelerator.type}:{accelerator.units}"


def lines(design: ClusterDesign, deviation: Lines) -> list[str]:
    """Return the lines of gres.conf. Each is for nodes of one partition with accelerators."""
    result: list[str] = []
    for partition in design.partitions:
        for group, hardware in deviation.groups(partition.nodes(), Hardware.of(partition)):
            if (accelerator := hardware.accelerator) is None:
                continue
            nodes = fold(group)
            kind = f"Name={accelerator.resource} Type={accelerator.type}"
            # NeuronCores have no File=: Slurm would then forbid jobs the device files that they share. A
            # process takes as many free cores as NEURON_RT_NUM_CORES says, and no other process gets these.
            what = f"Count={accelerator.units}" if accelerator.cores else f"File={_files(accelerator)}"
            result.append(f"NodeName={nodes} {kind} {what}")
    return result


def devices(accelerator: Accelerator) -> list[str]:
    """Return the device files that a node must have before it registers."""
    return expand(_files(accelerator))


def _files(accelerator: Accelerator) -> str:
    """Return the device files, in the order of the devices' numbers.

    Slurm numbers devices by their files, refuses a name that occurs twice, and waits for ever for a file that
    does not exist. Simulated devices are different spellings of the one device file that every container
    has. Jobs then see CUDA_VISIBLE_DEVICES=0,1,… (a regular file would leave it empty).
    """
    if accelerator.simulated:
        return ",".join(f"/dev/{'./' * i}null" for i in range(accelerator.count))
    # Files are named here, because the distributions' Slurm is built without NVML and cannot find them.
    prefix = "/dev/neuron" if accelerator.gres == "neuron" else "/dev/nvidia"
    return f"{prefix}0" if accelerator.count == 1 else f"{prefix}[0-{accelerator.count - 1}]"
