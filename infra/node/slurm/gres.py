"""Generic resources: what node lines and gres.conf say about accelerators."""

from __future__ import annotations

from collections.abc import Iterator

from infra.node.model import Accelerator, ClusterDesign
from infra.node.slurm.hostlist import expand, fold


def kinds(design: ClusterDesign) -> list[str]:
    """The names of the generic resources in use, for `GresTypes`."""
    return sorted({p.accelerator.gres for p in design.partitions if p.accelerator is not None})


def resource(accelerator: Accelerator) -> str:
    """`gpu:v100:8`, as in a node line."""
    return f"{accelerator.gres}:{accelerator.type}:{accelerator.count}"


def lines(design: ClusterDesign) -> list[str]:
    """The lines of gres.conf, each for the nodes of one partition; none without accelerators."""
    result: list[str] = []
    for partition in design.partitions:
        accelerator = partition.accelerator
        if accelerator is not None:
            nodes = fold(partition.nodes())
            head = f"NodeName={nodes} Name={accelerator.gres} Type={accelerator.type}"
            result += [f"{head} File={file}" for file in _files(accelerator)]
    return result


def devices(accelerator: Accelerator) -> list[str]:
    """The device files that a node must have before it registers."""
    return [device for file in _files(accelerator) for device in expand(file)]


def _files(accelerator: Accelerator) -> Iterator[str]:
    if accelerator.simulated:
        yield "/dev/null"
    elif accelerator.gres == "neuron":
        yield _numbered("/dev/neuron", accelerator.count)
    else:
        # Named, not found by NVML: the distributions' packages are built without it.
        yield _numbered("/dev/nvidia", accelerator.count)


def _numbered(prefix: str, count: int) -> str:
    return f"{prefix}0" if count == 1 else f"{prefix}[0-{count - 1}]"
