"""NVIDIA's driver from Ubuntu's packages: a set in which the kernel's modules and the user space fit.

Ubuntu builds and signs modules for each of its kernels, and each build holds one version of the driver. The
user space follows NVIDIA's point releases for itself, so on most days there is a kernel whose modules hold
another version than the newest user space: apt then cannot install the two, or installs them and NVML refuses
to work. The open modules say which user space they want from both sides, the closed ones only from below, so
what apt would do is asked first, and looked at.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator
from dataclasses import dataclass

from infra.node.bootstrap import files
from infra.node.bootstrap.context import Context
from infra.node.bootstrap.vm import apt

SERIES = "580"
"""The last that knows Volta."""
BRANCH = f"{SERIES}-server"
COMMON = f"nvidia-kernel-common-{BRANCH}"
"""What the modules and the libraries have in common: its version is the driver's."""
PREFERENCES = "etc/apt/preferences.d/99-slurm-stacks-nvidia"
SECURE_BOOT = "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
"""UEFI's variable: four bytes of attributes, then 1 where only signed code is loaded."""
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
    """Which modules a GPU takes, and what belongs to them.

    Attributes:
        closed: NVIDIA's own modules, and not the open ones.
        switched: GPUs that are joined by NVSwitch need the fabric manager.
    """

    closed: bool
    switched: bool

    @property
    def name(self) -> str:
        return BRANCH if self.closed else f"{BRANCH}-open"

    def user_space(self) -> list[str]:
        """What is asked for beside the modules; apt finds the rest."""
        more = [f"nvidia-fabricmanager-{SERIES}"] if self.switched else []
        return [f"nvidia-headless-no-dkms-{self.name}", f"nvidia-utils-{BRANCH}", "nvidia-modprobe", *more]

    def one_driver(self) -> list[str]:
        """The packages that are of one version or do not work together."""
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
    """Packages that fit each other.

    Attributes:
        driver: NVIDIA's version, like 580.173.02.
        pin: what apt has to be told, or empty where it takes them by itself.
        built: whether the modules are Ubuntu's, and not built on this machine.
    """

    packages: tuple[str, ...]
    driver: str
    built: bool
    pin: str = ""


def install(context: Context, flavour: Flavour, *, signed: bool = False, baking: bool = False) -> Choice:
    """Have the driver's packages. The lists have been read a moment ago.

    Args:
        signed: the machine loads signed kernel modules only.
        baking: it is to become an image.

    Raises:
        RuntimeError: no set fits; says what there is, and what to do.
        CommandError: apt could not, though it thought that it could.
    """
    choice = choose(context, flavour, signed=signed or secure_boot(context), baking=baking)
    if not choice.built:
        leave_one_kernel(context)
    apt.install(context, choice.packages, fresh=True, downgrade=bool(choice.pin))
    return choice


def choose(context: Context, flavour: Flavour, *, signed: bool, baking: bool = False) -> Choice:
    """The first set that apt can install and that is of one driver: with Ubuntu's modules as apt would take
    them, with the user space that these modules hold, with modules that are built here.

    Raises:
        RuntimeError: there is none.
    """
    candidates = [*_built(context, flavour), *([] if signed else [_by_hand(context, flavour)])]
    for candidate in filter(None, candidates):
        _pin(context, candidate.pin)
        if _fits(context, flavour, candidate):
            return candidate
    _pin(context, "")
    raise RuntimeError(_refusal(context, flavour, signed=signed, baking=baking))


def secure_boot(context: Context) -> bool:
    """Whether this machine, as it runs, loads signed modules only."""
    path = context.at(SECURE_BOOT)
    return path.exists() and path.read_bytes()[4:] == b"\x01"


def leave_one_kernel(context: Context) -> None:
    """Remove the headers of kernels that do not run: DKMS builds for every kernel that has headers.

    A build for a kernel that the driver does not know yet would fail the whole installation.
    """
    running = platform.release()
    # A link, and its target may be another machine's.
    others = sorted(path.name for path in context.at(KERNELS).glob("*") if os.path.lexists(path / "build"))
    packages = [f"linux-headers-{kernel}" for kernel in others if kernel != running]
    installed = [name for name in packages if name not in apt.missing(context, packages)]
    if installed:
        apt.purge(context, installed)


def _modules(flavour: Flavour) -> str:
    return f"linux-modules-nvidia-{flavour.name}-{platform.release()}"


def _built(context: Context, flavour: Flavour) -> Iterator[Choice | None]:
    """Ubuntu's modules for the running kernel: the newest as they are, then each with its own user space."""
    modules, kernel = _modules(flavour), platform.release()
    builds = sorted(
        ((driver, offer.version) for offer in apt.offers(context, modules) if (driver := _holds(offer))),
        key=lambda build: _order(build[0]),
        reverse=True,
    )
    packages = (modules, *flavour.user_space())
    # What the closed modules come in besides, of the same version.
    parts = (modules.replace("modules", "objects", 1), f"linux-signatures-nvidia-{kernel}")
    if builds:
        yield Choice(packages, builds[0][0], built=True)
    there = _user_space(context)
    for driver, version in builds:
        if driver in there:
            pin = PIN.format(
                driver=driver,
                kernel=kernel,
                names=" ".join(flavour.one_driver()),
                modules=" ".join((modules, *parts)),
                version=version,
            )
            yield Choice(packages, driver, built=True, pin=pin)


def _by_hand(context: Context, flavour: Flavour) -> Choice | None:
    """Modules that DKMS builds for the running kernel, of the newest driver."""
    there = _user_space(context)
    if not there:
        return None
    packages = (f"nvidia-dkms-{flavour.name}", f"linux-headers-{platform.release()}", *flavour.user_space())
    return Choice(packages, there[0], built=False)


def _fits(context: Context, flavour: Flavour, choice: Choice) -> bool:
    """Whether apt can have it, and all of it would be of one driver."""
    plan = apt.simulate(context, choice.packages, downgrade=bool(choice.pin))
    if not plan.possible:
        return False
    ours = flavour.one_driver()
    versions = apt.installed(context, ours) | plan.versions
    drivers = {_upstream(versions[name]) for name in ours if name in versions}
    return drivers == {choice.driver}


def _pin(context: Context, text: str) -> None:
    path = context.at(PREFERENCES)
    if not text:
        path.unlink(missing_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    files.place(path, text.encode())


def _user_space(context: Context) -> list[str]:
    """The drivers whose user space can be had, newest first."""
    found = {_upstream(offer.version) for offer in apt.offers(context, COMMON)}
    return sorted(found, key=_order, reverse=True)


def _refusal(context: Context, flavour: Flavour, *, signed: bool, baking: bool) -> str:
    kernel = platform.release()
    held = sorted({d for offer in apt.offers(context, _modules(flavour)) if (d := _holds(offer))}, key=_order)
    there, headers = _user_space(context), f"linux-headers-{kernel}"
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
        f"hold {' and '.join(held) or 'none'}, the user space is {' and '.join(there) or 'not there'} "
        f"(series {BRANCH}), and {why}; {', '.join(cures)}"
    )


def _holds(offer: apt.Offer) -> str | None:
    """The driver that a build of the modules holds: the least user space that it takes."""
    found = re.search(rf"\b{re.escape(COMMON)} \(>= ([0-9.]+)\)", offer.depends)
    return found[1] if found else None


def _upstream(version: str) -> str:
    return version.partition(":")[2].partition("-")[0] or version.partition("-")[0]


def _order(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version))
