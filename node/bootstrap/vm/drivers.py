"""Drivers of a node's devices: NVIDIA's, which depend on the GPU's generation and the kernel, and EFA's."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import tarfile
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from node.bootstrap.command import CommandError
from node.bootstrap.context import Context
from node.bootstrap.vm import apt, openpgp, pyxis
from node.bootstrap.vm.openpgp import Signer
from node.design.model import Accelerator, Partition
from node.system import files, http_client, plurals
from node.system.waiting import wait_at_most

# NVIDIA's driver from Ubuntu's packages: a set in which kernel modules and user space have the same version.
#
# Ubuntu builds and signs modules for each of its kernels, and each build has one version of the driver. The
# user space follows NVIDIA's point releases independently. So on most days the modules of some kernel have a
# different version than the newest user space: apt then cannot install both, or installs them and NVML
# refuses to work. The open modules limit the version of the user space on both sides, the closed ones only
# from below. So the installation is simulated first, and its result is checked.

SERIES = "580"
"""The driver's series. It is the last that supports Volta."""
BRANCH = f"{SERIES}-server"
COMMON = f"nvidia-kernel-common-{BRANCH}"
"""The package that modules and libraries share. Its version is the driver's."""
PREFERENCES = "etc/apt/preferences.d/99-slurm-stacks-nvidia"
SECURE_BOOT = "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
"""The UEFI variable: four bytes of attributes, then a byte that is 1 if only signed code is loaded."""
PIN = """\
# Written by slurm-stacks: the user space of the driver {driver}, which the modules for Linux {kernel} hold.
Package: {names}
Pin: version {driver}-*
Pin-Priority: 1001

Package: {modules}
Pin: version {version}
Pin-Priority: 1001
"""
KERNELS = "lib/modules"


@dataclass(frozen=True, slots=True)
class Flavour:
    """The kind of driver that a GPU needs.

    Attributes:
        closed: Whether the GPU needs NVIDIA's proprietary modules instead of the open ones.
        switched: Whether NVSwitch joins the GPUs, so that they need the fabric manager.
    """

    closed: bool
    switched: bool

    @property
    def name(self) -> str:
        return BRANCH if self.closed else f"{BRANCH}-open"

    def user_space(self) -> list[str]:
        """Return the packages to request in addition to the modules. apt adds their dependencies."""
        more = [f"nvidia-fabricmanager-{SERIES}"] if self.switched else []
        return [f"nvidia-headless-no-dkms-{self.name}", f"nvidia-utils-{BRANCH}", "nvidia-modprobe", *more]

    def one_driver(self) -> list[str]:
        """Return the packages that must have the same version to work together."""
        return [
            COMMON,
            f"nvidia-kernel-source-{self.name}",
            f"nvidia-headless-no-dkms-{self.name}",
            f"nvidia-utils-{BRANCH}",
            f"nvidia-compute-utils-{BRANCH}",
            f"libnvidia-compute-{BRANCH}",
            f"libnvidia-cfg1-{BRANCH}",
            *([f"nvidia-fabricmanager-{SERIES}"] if self.switched else []),
        ]


@dataclass(frozen=True, slots=True)
class Choice:
    """A set of packages that work together.

    Attributes:
        driver: NVIDIA's version, such as 580.173.02.
        built: Whether Ubuntu has built the modules. Otherwise they are built on this machine.
        pin: The preferences for apt. It is empty if apt chooses the versions without them.
    """

    packages: tuple[str, ...]
    driver: str
    built: bool
    pin: str = ""


def install_nvidia(
    context: Context, flavour: Flavour, *, signed: bool = False, baking: bool = False
) -> Choice:
    """Install the driver's packages. The package lists must be up to date.

    Args:
        signed: Whether the machine loads signed kernel modules only.
        baking: Whether the machine becomes an image.

    Raises:
        RuntimeError: There is no set that works. The message lists the versions and says what to do.
        CommandError: apt failed, although its simulation did not.
    """
    choice = choose_nvidia(context, flavour, signed=signed or secure_boot(context), baking=baking)
    if not choice.built:
        leave_one_kernel(context)
    apt.install(context, choice.packages, fresh=True, downgrade=bool(choice.pin))
    return choice


def choose_nvidia(context: Context, flavour: Flavour, *, signed: bool, baking: bool = False) -> Choice:
    """Return the first set that apt can install and that has one version of the driver.

    The order is: Ubuntu's modules in the versions that apt prefers; Ubuntu's modules with a user space that
    is pinned to their version; modules that are built on this machine.

    Raises:
        RuntimeError: There is no such set.
    """
    candidates = [*_built(context, flavour), *([] if signed else [_by_hand(context, flavour)])]
    for candidate in filter(None, candidates):
        _pin(context, candidate.pin)
        if _fits(context, flavour, candidate):
            return candidate
    _pin(context, "")
    raise RuntimeError(_refusal(context, flavour, signed=signed, baking=baking))


def secure_boot(context: Context) -> bool:
    """Return whether this machine loads signed modules only."""
    path = context.at(SECURE_BOOT)
    return path.exists() and path.read_bytes()[4:] == b"\x01"


def leave_one_kernel(context: Context) -> None:
    """Remove the headers of all kernels but the running one, because DKMS builds for each that has headers.

    A failed build for a kernel that the driver does not support yet would fail the whole installation.
    """
    running = platform.release()
    # `build` is a link, whose target may be missing here.
    others = sorted(path.name for path in context.at(KERNELS).glob("*") if os.path.lexists(path / "build"))
    packages = [f"linux-headers-{kernel}" for kernel in others if kernel != running]
    installed = [name for name in packages if name not in apt.missing(context, packages)]
    if installed:
        apt.purge(context, installed)


def _modules(flavour: Flavour) -> str:
    return f"linux-modules-nvidia-{flavour.name}-{platform.release()}"


def _built(context: Context, flavour: Flavour) -> Iterator[Choice | None]:
    """Yield the sets with Ubuntu's modules for the running kernel: unpinned first, then pinned versions."""
    modules, kernel = _modules(flavour), platform.release()
    builds = sorted(
        ((driver, offer.version) for offer in apt.offers(context, modules) if (driver := _holds(offer))),
        key=lambda build: apt.version_order(build[0]),
        reverse=True,
    )
    packages = (modules, *flavour.user_space())
    # The further packages of the closed modules, which have the same version.
    parts = (modules.replace("modules", "objects", 1), f"linux-signatures-nvidia-{kernel}")
    if builds:
        yield Choice(packages, builds[0][0], built=True)
    installed = _user_space(context)
    for driver, version in builds:
        if driver in installed:
            pin = PIN.format(
                driver=driver,
                kernel=kernel,
                names=" ".join(flavour.one_driver()),
                modules=" ".join((modules, *parts)),
                version=version,
            )
            yield Choice(packages, driver, built=True, pin=pin)


def _by_hand(context: Context, flavour: Flavour) -> Choice | None:
    """Return the set with modules of the newest driver that DKMS builds for the running kernel."""
    installed = _user_space(context)
    if not installed:
        return None
    packages = (f"nvidia-dkms-{flavour.name}", f"linux-headers-{platform.release()}", *flavour.user_space())
    return Choice(packages, installed[0], built=False)


def _fits(context: Context, flavour: Flavour, choice: Choice) -> bool:
    """Return whether apt can install a set, and all of it would have one version of the driver."""
    plan = apt.simulate(context, choice.packages, downgrade=bool(choice.pin))
    if not plan.possible:
        return False
    packages = flavour.one_driver()
    versions = apt.installed(context, packages) | plan.versions
    drivers = {_upstream(versions[name]) for name in packages if name in versions}
    return drivers == {choice.driver}


def _pin(context: Context, text: str) -> None:
    path = context.at(PREFERENCES)
    if not text:
        path.unlink(missing_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write(path, text.encode())


def _user_space(context: Context) -> list[str]:
    """Return the versions of the available user space, newest first."""
    found = {_upstream(offer.version) for offer in apt.offers(context, COMMON)}
    return sorted(found, key=apt.version_order, reverse=True)


def _refusal(context: Context, flavour: Flavour, *, signed: bool, baking: bool) -> str:
    kernel = platform.release()
    builds = {d for offer in apt.offers(context, _modules(flavour)) if (d := _holds(offer))}
    modules = sorted(builds, key=apt.version_order)
    installed, headers = _user_space(context), f"linux-headers-{kernel}"
    if signed:
        why = "Secure Boot loads no modules that are built here"
    elif not apt.known(context, headers):
        why = f"there is no {headers} to build others with"
    else:
        why = "apt finds no way to install what builds others"
    cures = [
        *([] if baking else ["bake images when the two agree (image: {bake: true})"]),
        "name an image that has the driver (image.id)",
        *(["or do without Secure Boot (secure_boot: false)"] if signed else []),
    ]
    return (
        f"no set of Ubuntu's packages gives Linux {kernel} NVIDIA's driver: signed modules for this kernel "
        f"hold {' and '.join(modules) or 'none'}, the user space is {' and '.join(installed) or 'not there'} "
        f"(series {BRANCH}), and {why}; {', '.join(cures)}"
    )


def _holds(offer: apt.Offer) -> str | None:
    """Return the driver's version in a build of the modules, which is the lowest user space it accepts."""
    found = re.search(rf"\b{re.escape(COMMON)} \(>= ([0-9.]+)\)", offer.depends)
    return found[1] if found else None


def _upstream(version: str) -> str:
    return version.partition(":")[2].partition("-")[0] or version.partition("-")[0]


# AWS Neuron's driver and tools for Trainium, from AWS's repository, built for the running kernel.
#
# The runtime and the collectives library are installed too, because frameworks in users' environments have
# neither.

NEURON_REPOSITORY = "https://apt.repos.neuron.amazonaws.com"
NEURON_KEY_URL = f"{NEURON_REPOSITORY}/GPG-PUB-KEY-AMAZON-AWS-NEURON.PUB"
NEURON_FINGERPRINT = "00FA2C1079260870A76D2C285749CAD8646D9185"
"""The repository's key, as Bottlerocket has it for the same packages (its gpgkey-<fingerprint>.asc)."""
NEURON_PACKAGES = (
    "aws-neuronx-dkms",
    "aws-neuronx-runtime-lib",
    "aws-neuronx-collectives",
    "aws-neuronx-tools",
)
"""AWS's packages for Ubuntu 24.04 (awsdocs-neuron: setup/pytorch)."""
NEURON_MODULE = "neuron"


def install_neuron(context: Context) -> None:
    """Install the packages, and builds the driver for this kernel.

    Raises:
        RuntimeError: Secure Boot would not load the driver.
        ServiceError: The repository's key cannot be fetched.
        CommandError: The driver cannot be installed, or does not compile for this kernel.
    """
    if secure_boot(context):
        raise RuntimeError(
            "the Neuron driver is built on the machine that uses it, and Secure Boot loads no such modules: "
            "use an image without Secure Boot (image.id)"
        )
    apt.add_repository(
        context,
        "aws-neuron",
        NEURON_KEY_URL,
        f"{NEURON_REPOSITORY} noble main",
        fingerprint=NEURON_FINGERPRINT,
    )
    apt.update(context)
    leave_one_kernel(context)
    # The headers come first, because the driver is built during the installation of its package.
    apt.install(context, [f"linux-headers-{platform.release()}"], fresh=True)
    apt.install(context, NEURON_PACKAGES, fresh=True)


def ensure_neuron_devices(context: Context, count: int) -> None:
    """Make sure that the driver is loaded and that all devices of the machine exist.

    Raises:
        RuntimeError: The number of devices is wrong.
    """
    if _neuron_devices(context) != count:
        install_neuron(context)
        context.run("modprobe", NEURON_MODULE, timeout=120.0)
        context.run("udevadm", "settle", "--timeout=60", timeout=90.0)
    found = _neuron_devices(context)
    if found != count:
        raise RuntimeError(
            f"/dev has {plurals.count(found, 'Neuron device')}, and there should be {count}; "
            f"`modinfo {NEURON_MODULE}` and `dmesg` on the machine say more"
        )


def _neuron_devices(context: Context) -> int:
    return sum(path.name.removeprefix("neuron").isdigit() for path in context.at("dev").glob("neuron*"))


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
    """Return whether the accelerator is an NVIDIA GPU that needs a driver, not a simulated one."""
    return accelerator.gres == "gpu" and not accelerator.simulated


def has_neuron(accelerator: Accelerator) -> bool:
    """Return whether the accelerator is a Trainium device that needs a driver, not a simulated one."""
    return accelerator.gres == "neuron" and not accelerator.simulated


def closed(accelerator: Accelerator) -> bool:
    return accelerator.type in CLOSED_ONLY


def switched(accelerator: Accelerator) -> bool:
    return accelerator.type in SWITCHED and accelerator.count > 1


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
    return efa(context, partition.aws.efa) if partition.aws.efa else ""


def install_unloaded(context: Context, partition: Partition) -> list[str]:
    """Install the drivers without loading them, because a machine that becomes an image has no devices.

    Returns:
        A note for each driver.
    """
    placed = []
    accelerator = partition.accelerator
    if accelerator is not None and has_nvidia(accelerator):
        apt.update(context)
        flavour = _flavour(accelerator)
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
            _install_efa(context)
        placed.append(f"EFA {EFA_VERSION}")
    return placed


def ensure_gpus(context: Context, accelerator: Accelerator, *, signed: bool = False) -> None:
    """Make sure that the driver is installed and that all GPUs work and have device files.

    Args:
        signed: Whether the machine loads signed kernel modules only (Secure Boot).

    Raises:
        RuntimeError: The number of GPUs is wrong, or no driver can be installed.
    """
    if _gpus(context) != accelerator.count:
        apt.update(context)
        install_nvidia(context, _flavour(accelerator), signed=signed)
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


def _flavour(accelerator: Accelerator) -> Flavour:
    return Flavour(closed(accelerator), switched(accelerator))


def _gpus(context: Context) -> int:
    try:
        gpus = context.run("nvidia-smi", "--list-gpus", timeout=120.0)
    except CommandError:
        return 0
    return sum(line.startswith("GPU ") for line in gpus.splitlines())


def efa(context: Context, count: int) -> str:
    """Make sure that Amazon's EFA software is installed and that all interfaces work.

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
    """Allow the cross-memory attach that libfabric needs inside a node, now and after each boot."""
    path = context.at(EFA_SYSCTL)
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write(path, EFA_SYSCTL_TEXT.encode())
    context.run("sysctl", "--load", str(path))


def _install_efa(context: Context) -> None:
    leave_one_kernel(context)
    folder = files.folder(context.at("var/tmp/slurm-stacks-efa"), 0o700)
    archive = folder / Path(urllib.parse.urlsplit(EFA_URL).path).name
    openpgp.fetch_signed(
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
