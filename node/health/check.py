"""Compares a node's devices with the design: which checks apply to it, and what they find."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from node.design.accelerators import Accelerator
from node.design.model import ClusterDesign
from node.health.nvidia import dcgm, gpus, nvlink, xids
from node.health.tools import Tool
from node.system import plurals

NEURON_SECONDS = 20.0
MOST_FAULTS = 3
"""The most findings that a node's reason in Slurm names."""


class When(StrEnum):
    """The moments at which a node is checked."""

    BOOT = "boot"
    """Before it registers."""
    PROLOG = "prolog"
    """Before a job begins on it."""
    INTERVAL = "interval"
    """While it is up, perhaps with jobs."""


@dataclass(frozen=True, slots=True)
class Expected:
    """The devices that a node has by the design.

    Attributes:
        accelerator: Its accelerators.
        efa: The number of its EFA interfaces.
        skip: The checks that are left out.
    """

    accelerator: Accelerator | None
    efa: int
    skip: frozenset[str]

    def text(self) -> str:
        """Return the devices in words."""
        devices = [f"{self.accelerator.count} {self.accelerator.type}"] if self.accelerator else []
        return ", ".join([*devices, *([plurals.count(self.efa, "EFA interface")] if self.efa else [])])


def expected(design: ClusterDesign, node: str) -> Expected | None:
    """Return what a node must have; `None` means that it is not checked."""
    partition = design.partition_of(node)
    if design.health is None or partition is None or not (partition.accelerator or partition.aws.efa):
        return None
    return Expected(partition.accelerator, partition.aws.efa, frozenset(design.health.skip))


def faults(wanted: Expected, when: When, tool: Tool, root: Path = Path("/")) -> list[str]:
    """Return what is wrong with a node's devices, each as a sentence; empty if nothing is.

    Args:
        wanted: The devices by the design.
        when: The moment of the check. DCGM's tests do not run beside jobs.
        tool: Runs a tool.
        root: The root of the file system with /dev and /sys.
    """
    return list(_faults(wanted, when, tool, root))


def _faults(wanted: Expected, when: When, tool: Tool, root: Path) -> Iterator[str]:
    accelerator, skip = wanted.accelerator, wanted.skip
    if accelerator is not None and accelerator.gres == "gpu":
        gpu_faults = list(gpus(tool, accelerator.count, skip))
        yield from gpu_faults
        if "xid" not in skip:
            yield from xids(tool)
        # The further tools ask the same driver: where it hangs, each would only take its whole time.
        if not gpu_faults and "nvlink" not in skip:
            yield from nvlink(tool, accelerator.type, accelerator.count)
        if not gpu_faults and "dcgm" not in skip and when is not When.INTERVAL:
            yield from dcgm(tool)
    elif accelerator is not None and "neuron" not in skip:
        yield from _neuron(tool, accelerator, root)
    if wanted.efa and "efa" not in skip:
        yield from _efa(wanted.efa, root)


def _neuron(tool: Tool, accelerator: Accelerator, root: Path) -> Iterator[str]:
    """Yield Neuron devices that are missing, as files and in the list of AWS's neuron-ls."""
    devices = plurals.count(accelerator.count, "Neuron device")
    if not accelerator.simulated:
        present = sum(p.name.removeprefix("neuron").isdigit() for p in (root / "dev").glob("neuron*"))
        if present != accelerator.count:
            yield f"/dev has {present} of {devices}"
    try:
        ran = tool("neuron-ls", "--json-output", seconds=NEURON_SECONDS)
    except FileNotFoundError:
        yield "neuron-ls is not installed"
        return
    if ran.status is None:
        yield f"neuron-ls did not answer within {NEURON_SECONDS:g} s"
        return
    try:
        listed = len(json.loads(ran.output))
    except ValueError:
        yield f"neuron-ls failed with status {ran.status}: {ran.last_line()}"
        return
    if listed != accelerator.count:
        yield f"neuron-ls shows {listed} of {devices}"


def _efa(count: int, root: Path) -> Iterator[str]:
    """Yield EFA interfaces that are missing or whose port is not active, as the kernel has them.

    The names below /sys/class/infiniband are rdmap… or efa_…, and other adapters stand beside them, so the
    driver decides.
    """
    devices = [d for d in sorted((root / "sys/class/infiniband").glob("*")) if _driver(d) == "efa"]
    if len(devices) != count:
        yield f"the kernel has {len(devices)} of {plurals.count(count, 'EFA interface')}"
    for device in devices:
        for state in sorted(device.glob("ports/*/state")):
            if "ACTIVE" not in (text := state.read_text().strip()):
                yield f"EFA interface {device.name}: its port is {text}"


def _driver(device: Path) -> str:
    return (device / "device" / "driver").resolve().name


def in_a_line(found: list[str]) -> str:
    """Return the findings as the line that Slurm shows as a node's reason."""
    more = len(found) - MOST_FAULTS
    return "; ".join(found[:MOST_FAULTS]) + (f"; and {more} more" if more > 0 else "")
