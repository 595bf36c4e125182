"""Drivers of a node's devices: NVIDIA's, which depend on the GPU's generation and the kernel, and EFA's."""

from __future__ import annotations

import contextlib
import re
import tarfile
import urllib.parse
from pathlib import Path

from node import plurals
from node.bootstrap import files
from node.bootstrap.command import CommandError
from node.bootstrap.context import Context
from node.bootstrap.vm import apt, neuron, nvidia, pyxis, signed
from node.bootstrap.vm.signed import Signer
from node.cloud import call
from node.model import Accelerator, Partition
from node.waiting import wait_at_most

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
EFA_VERSION = "1.49.0"
"""The version of the EFA installer. Its driver, efa 3.1.0, compiles for the newest kernels of Ubuntu 24.04.
Older drivers may not (NVIDIA/aicr#2870)."""
EFA_URL = f"https://efa-installer.amazonaws.com/aws-efa-installer-{EFA_VERSION}.tar.gz"
EFA_SIGNER = Signer(
    "https://efa-installer.amazonaws.com/aws-efa-installer.key", "4E9091BCBB97A96B26B15E59A05480B1DD2D3CCC"
)
"""Amazon's key and its fingerprint (EC2 user guide, "Get started with EFA and MPI")."""
EFA_FI_INFO = "opt/amazon/efa/bin/fi_info"
EFA_SECONDS = 600.0
EFA_SYSCTL = "etc/sysctl.d/99-slurm-stacks-efa.conf"
EFA_SYSCTL_TEXT = """\
# Written by slurm-stacks: libfabric's processes on one node read each other's memory (cross-memory attach),
# which Ubuntu forbids to processes that are not parent and child.
kernel.yama.ptrace_scope = 0
"""


def has_nvidia(accelerator: Accelerator) -> bool:
    """Whether the accelerator is an NVIDIA GPU that needs a driver, not a simulated one."""
    return accelerator.gres == "gpu" and not accelerator.simulated


def has_neuron(accelerator: Accelerator) -> bool:
    """Whether the accelerator is a Trainium device that needs a driver, not a simulated one."""
    return accelerator.gres == "neuron" and not accelerator.simulated


def closed(accelerator: Accelerator) -> bool:
    return accelerator.type in CLOSED_ONLY


def switched(accelerator: Accelerator) -> bool:
    return accelerator.type in SWITCHED and accelerator.count > 1


def install(context: Context, partition: Partition) -> str:
    """Installs the drivers that this partition's nodes need.

    Returns:
        A note on EFA, empty without it.
    """
    accelerator = partition.accelerator
    if accelerator is not None and has_nvidia(accelerator):
        ensure_gpus(context, accelerator, signed=partition.secure_boot)
        pyxis.install_toolkit(context)
    if accelerator is not None and has_neuron(accelerator):
        neuron.ensure_devices(context, accelerator.count)
    return efa(context, partition.efa) if partition.efa else ""


def install_unloaded(context: Context, partition: Partition) -> list[str]:
    """Installs the drivers without loading them, because a machine that becomes an image has no devices.

    Returns:
        A note for each driver.
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
        placed += pyxis.install_toolkit(context)
    if accelerator is not None and has_neuron(accelerator):
        neuron.install(context)
        placed.append("the Neuron driver")
    if partition.efa:
        if not context.at(EFA_FI_INFO).exists():
            _install_efa(context)
        placed.append(f"EFA {EFA_VERSION}")
    return placed


def ensure_gpus(context: Context, accelerator: Accelerator, *, signed: bool = False) -> None:
    """Makes sure that the driver is installed and that all GPUs work and have device files.

    Args:
        signed: whether the machine loads signed kernel modules only (Secure Boot).

    Raises:
        RuntimeError: The number of GPUs is wrong, or no driver can be installed.
    """
    if _gpus(context) != accelerator.count:
        apt.update(context)
        nvidia.install(context, _flavour(accelerator), signed=signed)
        context.run("modprobe", "nvidia", timeout=120.0)
        # If the machine sees no switches, the cloud manages them, and the fabric manager is not needed.
        if switched(accelerator) and any(context.at(SWITCHES).glob("*")):
            context.run("systemctl", "enable", "--now", "nvidia-fabricmanager", timeout=120.0)
    # Slurm needs the device files. Without this the one for unified memory appears only at the first use.
    context.run("nvidia-modprobe", "-u", "-c=0", allow=(0, 1))
    found = _gpus(context)
    if found != accelerator.count:
        raise RuntimeError(
            f"nvidia-smi sees {plurals.count(found, 'GPU')}, and there should be {accelerator.count}"
        )
    context.run("nvidia-smi", "--persistence-mode=1", timeout=120.0)
    if accelerator.subnet_managed:
        _join_fabric(context, accelerator.count)


def _join_fabric(context: Context, count: int) -> None:
    """Waits until the GPUs have joined their NVLink fabric, which the image's own services bring up.

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


def _joined(said: str) -> int:
    """The number of GPUs in the output of `nvidia-smi --query` whose fabric's state is Completed."""
    fabrics = re.findall(r"^\s+Fabric\n\s+State\s+: (.+)$", said, re.MULTILINE)
    return sum(state.strip() == "Completed" for state in fabrics)


def _flavour(accelerator: Accelerator) -> nvidia.Flavour:
    return nvidia.Flavour(closed(accelerator), switched(accelerator))


def _gpus(context: Context) -> int:
    try:
        said = context.run("nvidia-smi", "--list-gpus", timeout=120.0)
    except CommandError:
        return 0
    return sum(line.startswith("GPU ") for line in said.splitlines())


def efa(context: Context, count: int) -> str:
    """Makes sure that Amazon's EFA software is installed and that all interfaces work.

    Raises:
        RuntimeError: The number of interfaces is wrong.
    """
    tool = context.at(EFA_FI_INFO)
    if not tool.exists():
        _install_efa(context)
    _allow_cross_memory_attach(context)
    seen = _domains(context.run(str(tool), "--provider", "efa", "--type", "FI_EP_RDM", timeout=60.0))
    if len(seen) != count:
        raise RuntimeError(f"fi_info sees {len(seen)} EFA interfaces, and there should be {count}")
    return f"{count} EFA"


def _allow_cross_memory_attach(context: Context) -> None:
    """Allows the cross-memory attach that libfabric needs inside a node, now and after each boot."""
    path = context.at(EFA_SYSCTL)
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write(path, EFA_SYSCTL_TEXT.encode())
    context.run("sysctl", "--load", str(path))


def _install_efa(context: Context) -> None:
    nvidia.leave_one_kernel(context)
    folder = files.folder(context.at("var/tmp/slurm-stacks-efa"), 0o700)
    archive = folder / Path(urllib.parse.urlsplit(EFA_URL).path).name
    signed.fetch(context, EFA_URL, f"{EFA_URL}.sig", EFA_SIGNER, archive, attempts=call.ATTEMPTS)
    with tarfile.open(archive) as packed:
        # Python 3.11.2, which Debian 12 has, knows no filters. The archive comes from AWS into a new folder.
        if hasattr(tarfile, "data_filter"):
            packed.extraction_filter = tarfile.data_filter
        packed.extractall(folder)
    script = folder / "aws-efa-installer" / "efa_installer.sh"
    # The installer looks for its packages in the current folder.
    command = f"cd {script.parent} && ./{script.name} --yes --no-verify"
    context.run("bash", "-c", command, timeout=EFA_SECONDS, env=apt.ENVIRONMENT)


def _domains(said: str) -> set[str]:
    """Returns the interfaces in the output of `fi_info`, which may list one more than once."""
    lines = (line.strip() for line in said.splitlines())
    return {line.partition(":")[2].strip() for line in lines if line.startswith("domain:")}
