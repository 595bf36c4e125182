"""Amazon's EFA: its driver and libfabric, from AWS's signed archive."""

from __future__ import annotations

import tarfile
import urllib.parse
from pathlib import Path

from node.bootstrap.context import Context
from node.bootstrap.vm import apt, signed_files
from node.bootstrap.vm.running_kernel import leave_one_kernel
from node.bootstrap.vm.signed_files import Signer
from node.system import files, http_client

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


def ensure_interfaces(context: Context, count: int) -> str:
    """Make sure that Amazon's EFA software is installed and that all interfaces work.

    Raises:
        RuntimeError: The number of interfaces is wrong.
    """
    tool = context.at(EFA_FI_INFO)
    if not tool.exists():
        install_efa(context)
    _allow_cross_memory_attach(context)
    seen = _domains(context.run(str(tool), "--provider", "efa", "--type", "FI_EP_RDM", timeout=60.0))
    if len(seen) != count:
        raise RuntimeError(f"fi_info sees {len(seen)} EFA interfaces, and there should be {count}")
    return f"{count} EFA"


def _allow_cross_memory_attach(context: Context) -> None:
    """Allow the cross-memory attach that libfabric needs inside a node, now and after each boot."""
    path = context.at(EFA_SYSCTL)
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write(path, EFA_SYSCTL_TEXT.encode())
    context.run("sysctl", "--load", str(path))


def install_efa(context: Context) -> None:
    leave_one_kernel(context)
    folder = files.folder(context.at("var/tmp/slurm-stacks-efa"), 0o700)
    archive = folder / Path(urllib.parse.urlsplit(EFA_URL).path).name
    signed_files.fetch_signed(
        context, EFA_URL, f"{EFA_URL}.sig", EFA_SIGNER, archive, attempts=http_client.ATTEMPTS
    )
    with tarfile.open(archive) as packed:
        # Python 3.11.2, which Debian 12 has, knows no filters. The archive comes from AWS into a new folder.
        if hasattr(tarfile, "data_filter"):
            packed.extraction_filter = tarfile.data_filter
        packed.extractall(folder)
    script = folder / "aws-efa-installer" / "efa_installer.sh"
    # The installer looks for its packages in the current folder.
    command = f"cd {script.parent} && ./{script.name} --yes --no-verify"
    context.run("bash", "-c", command, timeout=EFA_SECONDS, env=apt.ENVIRONMENT)


def _domains(output: str) -> set[str]:
    """Return the interfaces in the output of `fi_info`, which may list one more than once."""
    lines = (line.strip() for line in output.splitlines())
    return {line.partition(":")[2].strip() for line in lines if line.startswith("domain:")}
