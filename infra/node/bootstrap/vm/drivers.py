"""Drivers of a node's devices: NVIDIA's, which depend on the GPU's age and the running kernel, and EFA's."""

from __future__ import annotations

import tarfile
import urllib.parse
from pathlib import Path

from infra.node import words
from infra.node.bootstrap import files
from infra.node.bootstrap.command import CommandError
from infra.node.bootstrap.context import Context
from infra.node.bootstrap.vm import apt, neuron, nvidia
from infra.node.cloud import call
from infra.node.cloud.errors import ServiceError
from infra.node.model import Accelerator, Partition

CLOSED_ONLY = frozenset({"p4", "p100", "v100"})
"""Older than Turing: the open kernel modules do not drive them."""
SWITCHED = frozenset({"a100", "h100", "h200", "b200"})
"""Where GPUs of a machine are joined by NVSwitch, nothing starts without the fabric manager."""
SWITCHES = "proc/driver/nvidia-nvswitch/devices"
"""The switches that this machine sees, once the driver is loaded."""
EFA_VERSION = "1.49.0"
"""Its driver, efa 3.1.0, compiles for the newest kernels of Ubuntu 24.04; older ones may not
(NVIDIA/aicr#2870)."""
EFA_URL = f"https://efa-installer.amazonaws.com/aws-efa-installer-{EFA_VERSION}.tar.gz"
EFA_FI_INFO = "opt/amazon/efa/bin/fi_info"
EFA_SECONDS = 600.0
EFA_SYSCTL = "etc/sysctl.d/99-slurm-stacks-efa.conf"
EFA_SYSCTL_TEXT = """\
# Written by slurm-stacks: libfabric's processes on one node read each other's memory (cross-memory attach),
# which Ubuntu forbids to processes that are not parent and child.
kernel.yama.ptrace_scope = 0
"""


def has_nvidia(accelerator: Accelerator) -> bool:
    """Whether it is a GPU with a driver, and not one that Slurm only counts."""
    return accelerator.gres == "gpu" and not accelerator.simulated


def has_neuron(accelerator: Accelerator) -> bool:
    """Whether it is a Trainium device with a driver."""
    return accelerator.gres == "neuron" and not accelerator.simulated


def closed(accelerator: Accelerator) -> bool:
    return accelerator.type in CLOSED_ONLY


def switched(accelerator: Accelerator) -> bool:
    return accelerator.type in SWITCHED and accelerator.count > 1


def install(context: Context, partition: Partition) -> str:
    """What this partition's nodes need. Returns a word on EFA; empty where it has none."""
    accelerator = partition.accelerator
    if accelerator is not None and has_nvidia(accelerator):
        have_gpus(context, accelerator, signed=partition.secure_boot)
    if accelerator is not None and has_neuron(accelerator):
        neuron.have(context, accelerator.count)
    return efa(context, partition.efa) if partition.efa else ""


def place(context: Context, partition: Partition) -> list[str]:
    """Install the same without loading any of it: the machine that becomes an image has no such devices.

    Returns a word for each driver.
    """
    placed = []
    accelerator = partition.accelerator
    if accelerator is not None and has_nvidia(accelerator):
        apt.update(context)
        flavour = _flavour(accelerator)
        choice = nvidia.install(context, flavour, signed=partition.secure_boot, baking=True)
        if switched(accelerator):
            context.run("systemctl", "enable", "nvidia-fabricmanager", timeout=120.0)
        placed.append(f"NVIDIA's driver {choice.driver} ({flavour.name})")
    if accelerator is not None and has_neuron(accelerator):
        neuron.install(context)
        placed.append("the Neuron driver")
    if partition.efa:
        if not context.at(EFA_FI_INFO).exists():
            _install_efa(context)
        _allow_shared_memory(context)
        placed.append(f"EFA {EFA_VERSION}")
    return placed


def have_gpus(context: Context, accelerator: Accelerator, *, signed: bool = False) -> None:
    """Have the driver, and all of the machine's GPUs with their device files.

    Args:
        signed: the machine loads signed kernel modules only (Secure Boot).

    Raises:
        RuntimeError: fewer answer than there should be, or no driver can be had.
    """
    if _gpus(context) != accelerator.count:
        apt.update(context)
        nvidia.install(context, _flavour(accelerator), signed=signed)
        context.run("modprobe", "nvidia", timeout=120.0)
        # Where the cloud keeps the switches to itself it manages them, and the manager finds nothing to do.
        if switched(accelerator) and any(context.at(SWITCHES).glob("*")):
            context.run("systemctl", "enable", "--now", "nvidia-fabricmanager", timeout=120.0)
    # Slurm wants the device files; nothing makes that of the unified memory before the first use.
    context.run("nvidia-modprobe", "-u", "-c=0", allow=(0, 1))
    found = _gpus(context)
    if found != accelerator.count:
        raise RuntimeError(
            f"nvidia-smi sees {words.count(found, 'GPU')}, and there should be {accelerator.count}"
        )
    context.run("nvidia-smi", "--persistence-mode=1", timeout=120.0)


def _flavour(accelerator: Accelerator) -> nvidia.Flavour:
    return nvidia.Flavour(closed(accelerator), switched(accelerator))


def _gpus(context: Context) -> int:
    try:
        said = context.run("nvidia-smi", "--list-gpus", timeout=120.0)
    except CommandError:
        return 0
    return sum(line.startswith("GPU ") for line in said.splitlines())


def efa(context: Context, count: int) -> str:
    """Have Amazon's installer's stack and every interface of it.

    Raises:
        RuntimeError: fewer answer than there should be.
    """
    tool = context.at(EFA_FI_INFO)
    if not tool.exists():
        _install_efa(context)
    _allow_shared_memory(context)
    seen = _domains(context.run(str(tool), "--provider", "efa", "--type", "FI_EP_RDM", timeout=60.0))
    if len(seen) != count:
        raise RuntimeError(f"fi_info sees {len(seen)} EFA interfaces, and there should be {count}")
    return f"{count} EFA"


def _allow_shared_memory(context: Context) -> None:
    """Let libfabric's shared-memory provider work inside a node, now and after each boot."""
    path = context.at(EFA_SYSCTL)
    path.parent.mkdir(parents=True, exist_ok=True)
    files.place(path, EFA_SYSCTL_TEXT.encode())
    context.run("sysctl", "--load", str(path))


def _install_efa(context: Context) -> None:
    nvidia.leave_one_kernel(context)
    answer = call.call("GET", EFA_URL, dict, timeout=60.0)
    if answer.status != 200:
        raise ServiceError(f"{EFA_URL}: HTTP status {answer.status}", status=answer.status)
    folder = files.folder(context.at("var/tmp/slurm-stacks-efa"), 0o700)
    archive = folder / Path(urllib.parse.urlsplit(EFA_URL).path).name
    archive.write_bytes(answer.body)
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    script = folder / "aws-efa-installer" / "efa_installer.sh"
    # It finds its packages in the folder in which it is called.
    command = f"cd {script.parent} && ./{script.name} --yes --no-verify"
    context.run("bash", "-c", command, timeout=EFA_SECONDS, env=apt.ENVIRONMENT)


def _domains(said: str) -> set[str]:
    """Of `fi_info`: an interface may be listed more than once."""
    lines = (line.strip() for line in said.splitlines())
    return {line.partition(":")[2].strip() for line in lines if line.startswith("domain:")}
