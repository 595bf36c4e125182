"""NVIDIA's driver from Ubuntu's packages: a set in which kernel modules and user space have the same version.

Ubuntu builds and signs modules for each of its kernels, and each build has one version of the driver. The
user space follows NVIDIA's point releases independently. So on most days the modules of some kernel have a
different version than the newest user space: apt then cannot install both, or installs them and NVML
refuses to work. The open modules limit the version of the user space on both sides, the closed ones only
from below. So the installation is simulated first, and its result is checked.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator
from dataclasses import dataclass

from node.bootstrap.context import Context
from node.bootstrap.vm import apt
from node.bootstrap.vm.running_kernel import leave_one_kernel, secure_boot
from node.system import files

SERIES = "580"
"""The driver's series. It is the last that supports Volta."""
BRANCH = f"{SERIES}-server"
COMMON = f"nvidia-kernel-common-{BRANCH}"
"""The package that modules and libraries share. Its version is the driver's."""
PREFERENCES = "etc/apt/preferences.d/99-slurm-stacks-nvidia"


PIN = """\
# Written by slurm-stacks: the user space of the driver {driver}, which the modules for Linux {kernel} hold.
Package: {names}
Pin: version {driver}-*
Pin-Priority: 1001

Package: {modules}
Pin: version {version}
Pin-Priority: 1001
"""


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
    versions = {_upstream(offer.version) for offer in apt.offers(context, COMMON)}
    return sorted(versions, key=apt.version_order, reverse=True)


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
    match = re.search(rf"\b{re.escape(COMMON)} \(>= ([0-9.]+)\)", offer.depends)
    return match[1] if match else None


def _upstream(version: str) -> str:
    return version.partition(":")[2].partition("-")[0] or version.partition("-")[0]
