"""Tests of device drivers with a real apt: the packages of today, after a release, for older kernels."""

from __future__ import annotations

import dataclasses
import platform
from pathlib import Path

import pytest

from node.bootstrap import steps
from node.bootstrap.context import Context
from node.bootstrap.vm import apt, apt_repositories, lustre, neuron, nvidia_driver, openpgp, running_kernel
from node.bootstrap.vm import drivers as drivers_of_nodes
from node.design.accelerators import Accelerator
from node.design.model import Partition
from node.slurm import hardware
from node.system import http_client
from node.system.http_client import Answer
from tests.support.apt_world import Machine, Repository
from tests.support.recorded import V100, machine
from tests.support.wide import wide

KERNEL = "6.17.0-1022-gcp"
OLD, NEW = "580.173.02", "580.178.04"
OPEN = nvidia_driver.Flavour(closed=False, switched=False)
CLOSED = nvidia_driver.Flavour(closed=True, switched=False)
SWITCHED = nvidia_driver.Flavour(closed=False, switched=True)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    return Repository(tmp_path_factory.mktemp("noble"))


@pytest.fixture
def node(tmp_path: Path, repository: Repository, monkeypatch: pytest.MonkeyPatch) -> tuple[Context, Machine]:
    monkeypatch.setattr(platform, "release", lambda: KERNEL)
    context, _ = machine(tmp_path, host="v100-0", partitions=(V100,))
    context.run = run = Machine(tmp_path / "root", repository)
    return context, run


def kernel(name: str, *, headers: bool = True) -> list[tuple[str, dict[str, str]]]:
    words = {"kernel": name, "build": name.replace("-gcp", ".22").replace("-aws", ".22")}
    return [("tools", {}), ("kernel", words), *([("headers", words)] if headers else [])]


def modules(driver: str, build: str = "6.17.0-1022.22", name: str = KERNEL) -> tuple[str, dict[str, str]]:
    return "nvidia_modules", {"kernel": name, "driver": driver, "build": build}


def user_space(*drivers: str) -> list[tuple[str, dict[str, str]]]:
    return [(group, {"driver": driver}) for driver in drivers for group in ("nvidia", "fabric_manager")]


def ready(run: Machine, *archive: tuple[str, dict[str, str]], there: tuple[str, ...] = ()) -> None:
    """A package archive, and a machine with its kernel."""
    run.archive(*archive)
    run.have(f"linux-image-{platform.release()}", *there)


def drivers(run: Machine, flavour: nvidia_driver.Flavour) -> set[str]:
    """The upstream versions of the packages that must have one version. All of them are installed."""
    versions = run.versions()
    return {versions[name].partition("-")[0] for name in flavour.one_driver()}


@pytest.mark.parametrize("flavour", [CLOSED, *wide(SWITCHED)])
def test_today_all_is_of_one_driver_and_nothing_is_pinned(
    node: tuple[Context, Machine], flavour: nvidia_driver.Flavour
) -> None:
    context, run = node
    ready(run, *kernel(KERNEL), modules(OLD), *user_space(OLD))
    choice = nvidia_driver.install_nvidia(context, flavour, signed=True)
    assert (choice.driver, choice.built, drivers(run, flavour)) == (OLD, True, {OLD})
    assert run.versions()[f"linux-modules-nvidia-{flavour.name}-{KERNEL}"] == "6.17.0-1022.22"
    assert not context.at(nvidia_driver.PREFERENCES).exists()


@pytest.mark.parametrize("flavour", [OPEN, CLOSED, *wide(SWITCHED)])
def test_after_a_point_release_the_user_space_is_that_of_the_modules(
    node: tuple[Context, Machine], flavour: nvidia_driver.Flavour
) -> None:
    """The archive still has the older version, as when noble-updates is ahead of noble-security."""
    context, run = node
    ready(run, *kernel(KERNEL), modules(OLD), *user_space(OLD, NEW))
    choice = nvidia_driver.install_nvidia(context, flavour, signed=True)
    assert (choice.driver, choice.built, drivers(run, flavour)) == (OLD, True, {OLD})
    assert "dkms" not in run.versions()
    # Later installations and upgrades keep the version.
    run("apt-get", "--yes", "--allow-downgrades", "upgrade")
    assert drivers(run, flavour) == {OLD}


@pytest.mark.parametrize("flavour", [OPEN, *wide(CLOSED)])
def test_where_the_archive_has_the_newer_only_the_modules_are_built_here(
    node: tuple[Context, Machine], flavour: nvidia_driver.Flavour
) -> None:
    context, run = node
    ready(run, *kernel(KERNEL), modules(OLD), *user_space(NEW))
    choice = nvidia_driver.install_nvidia(context, flavour)
    assert (choice.driver, choice.built, drivers(run, flavour)) == (NEW, False, {NEW})
    versions = run.versions()
    assert {f"nvidia-dkms-{flavour.name}", f"linux-headers-{KERNEL}", "gcc"} <= versions.keys()
    assert f"linux-modules-nvidia-{flavour.name}-{KERNEL}" not in versions


def test_the_case_is_real_what_was_asked_for_before_cannot_be_installed(
    node: tuple[Context, Machine],
) -> None:
    """The open modules have both bounds, so apt refuses. With the closed ones apt would mix two versions."""
    context, run = node
    ready(run, *kernel(KERNEL), modules(OLD), *user_space(NEW))
    plan = apt.simulate(context, [f"linux-modules-nvidia-{OPEN.name}-{KERNEL}", *OPEN.user_space()])
    assert not plan.possible
    assert f"nvidia-kernel-common-580-server (<= {OLD}-1)" in plan.output
    closed = apt.simulate(context, [f"linux-modules-nvidia-{CLOSED.name}-{KERNEL}", *CLOSED.user_space()])
    assert closed.possible
    assert closed.versions["nvidia-utils-580-server"].startswith(NEW)


def test_tools_that_no_dependency_holds_are_not_newer_than_the_modules(node: tuple[Context, Machine]) -> None:
    """With the packages before October 2025 apt installs the mix, and NVML refuses at the first call."""
    context, run = node
    archive = [*kernel(KERNEL), modules(OLD), *user_space(OLD), ("nvidia_loose", {"driver": NEW})]
    ready(run, *archive)
    plan = apt.simulate(context, [f"linux-modules-nvidia-{OPEN.name}-{KERNEL}", *OPEN.user_space()])
    assert plan.versions["nvidia-utils-580-server"].startswith(NEW)
    assert nvidia_driver.install_nvidia(context, OPEN, signed=True).driver == OLD
    assert drivers(run, OPEN) == {OLD}


def test_modules_that_are_ahead_of_the_user_space_are_taken_in_their_older_build(
    node: tuple[Context, Machine],
) -> None:
    """The mirror has only half of a release."""
    context, run = node
    builds = [modules(OLD), modules(NEW, "6.17.0-1022.22+1")]
    ready(run, *kernel(KERNEL), *builds, *user_space(OLD))
    for flavour in (OPEN, CLOSED):
        assert nvidia_driver.choose_nvidia(context, flavour, signed=True).driver == OLD
    nvidia_driver.install_nvidia(context, CLOSED, signed=True)
    assert run.versions()[f"linux-signatures-nvidia-{KERNEL}"] == "6.17.0-1022.22"


def test_an_image_with_newer_user_space_gets_that_of_its_modules(node: tuple[Context, Machine]) -> None:
    """Downgrades must be allowed explicitly."""
    context, run = node
    ready(run, *kernel(KERNEL), modules(OLD), *user_space(OLD, NEW), there=("libnvidia-compute-580-server",))
    assert run.versions()["libnvidia-compute-580-server"].startswith(NEW)
    nvidia_driver.install_nvidia(context, OPEN, signed=True)
    assert drivers(run, OPEN) == {OLD}


def test_an_older_kernel_that_lustre_holds_has_modules_built_for_it(
    node: tuple[Context, Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No modules are built for this kernel any more. Those of the newest kernel do not fit."""
    context, run = node
    older, newest = "6.8.0-1021-aws", "6.17.0-1022-aws"
    monkeypatch.setattr(platform, "release", lambda: older)
    build = {"kernel": newest, "build": "6.17.0-1022.22"}
    ready(
        run,
        *kernel(older), *kernel(newest), ("kernel_meta", build),
        modules(NEW, name=newest), *user_space(NEW),
        there=("linux-aws", f"linux-headers-{older}"),
    )  # fmt: skip
    choice = nvidia_driver.install_nvidia(context, CLOSED)
    assert (choice.driver, choice.built, drivers(run, CLOSED)) == (NEW, False, {NEW})
    versions = run.versions()
    # DKMS would also build for the other kernel, and fail.
    assert f"linux-headers-{newest}" not in versions
    assert {f"linux-headers-{older}", f"linux-image-{newest}", "nvidia-dkms-580-server"} <= versions.keys()


def test_headers_of_other_kernels_go_before_the_modules_are_built(node: tuple[Context, Machine]) -> None:
    context, run = node
    other = "6.14.0-1018-gcp"
    ready(run, *kernel(KERNEL), *kernel(other), *user_space(NEW), there=(f"linux-headers-{other}",))
    nvidia_driver.install_nvidia(context, OPEN)
    (purge,) = run.having("purge")
    assert purge.endswith(f" linux-headers-{other}")
    (install,) = [call for call in run.having("install", "nvidia-modprobe") if "--simulate" not in call]
    assert run.calls.index(purge) < run.calls.index(install)
    assert f"linux-headers-{other}" not in run.versions()


@pytest.mark.parametrize("by_firmware", [False, True])
def test_secure_boot_without_a_fitting_set_is_refused_and_names_baking(
    node: tuple[Context, Machine], by_firmware: bool
) -> None:
    context, run = node
    ready(run, *kernel(KERNEL), modules(OLD), *user_space(NEW))
    if by_firmware:
        variable = context.at(running_kernel.SECURE_BOOT)
        variable.parent.mkdir(parents=True)
        variable.write_bytes(b"\x06\0\0\0\x01")
    for flavour in (OPEN, CLOSED):
        with pytest.raises(RuntimeError) as caught:
            nvidia_driver.install_nvidia(context, flavour, signed=not by_firmware)
        assert str(caught.value) == (
            f"no set of Ubuntu's packages gives Linux {KERNEL} NVIDIA's driver: signed modules for this "
            f"kernel hold {OLD}, the user space is {NEW} (series 580-server), and Secure Boot loads no "
            "modules that are built here; bake images when the two agree (image: {bake: true}), name an "
            "image that has the driver (image.id), or do without Secure Boot (secure_boot: false)"
        )
    assert not context.at(nvidia_driver.PREFERENCES).exists()
    assert not run.versions().keys() & {"nvidia-utils-580-server", "dkms"}


def test_firmware_without_secure_boot_lets_modules_be_built(node: tuple[Context, Machine]) -> None:
    context, run = node
    ready(run, *kernel(KERNEL), modules(OLD), *user_space(NEW))
    variable = context.at(running_kernel.SECURE_BOOT)
    variable.parent.mkdir(parents=True)
    variable.write_bytes(b"\x06\0\0\0\0")
    assert not nvidia_driver.install_nvidia(context, OPEN).built


def test_a_kernel_without_modules_and_without_headers_is_refused(node: tuple[Context, Machine]) -> None:
    context, run = node
    ready(run, *kernel(KERNEL, headers=False), *user_space(NEW))
    with pytest.raises(
        RuntimeError, match=rf"hold none, .* there is no linux-headers-{KERNEL} to build"
    ) as why:
        nvidia_driver.install_nvidia(context, OPEN, baking=True)
    # The message must not recommend baking during baking.
    assert "bake" not in str(why.value)


def test_the_mount_helper_of_lustre_comes_though_recommendations_do_not(
    node: tuple[Context, Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    context, run = node
    monkeypatch.setattr(apt_repositories, "add_repository", lambda *_args, **_options: None)
    run.fail("modinfo")
    ready(run, *kernel(KERNEL), ("lustre", {"kernel": KERNEL}), ("lustre_utilities", {}))
    # The module's package alone, which was installed formerly, has no mount helper.
    assert lustre.UTILITIES not in apt.simulate(context, [f"{lustre.MODULES}{KERNEL}"]).versions
    assert lustre.install(context, fresh=True)[0] is None
    assert context.at(lustre.HELPER).exists()


TRAINIUM = Partition("trn", "trn1.32xlarge", 128, 9, 0, 1, Accelerator("trainium", 16, gres="neuron"))


@pytest.fixture
def trainium(node: tuple[Context, Machine], monkeypatch: pytest.MonkeyPatch) -> tuple[Context, Machine]:
    """A machine whose kernel makes 16 devices when the driver is loaded."""
    context, run = node
    design = dataclasses.replace(context.settings.design, partitions=(TRAINIUM,))
    context.settings = dataclasses.replace(context.settings, design=design)
    context.host = "trn-0"
    monkeypatch.setattr(
        http_client, "call", lambda *_a, **_k: Answer(200, b"-----BEGIN PGP PUBLIC KEY BLOCK-----\n")
    )
    # AWS's key itself is not here: `test_boot_vm_openpgp.py` has what is done with another one.
    monkeypatch.setattr(openpgp, "fingerprints", lambda _key: [neuron.NEURON_FINGERPRINT])
    devices = ",".join(map(str, neuron_devices(context)))
    monkeypatch.setattr(hardware, "device_files", lambda _a: devices)
    ready(
        run,
        *kernel(KERNEL),
        *kernel("6.14.0-1018-gcp"),
        ("neuron", {}),
        there=("linux-headers-6.14.0-1018-gcp",),
    )

    def load(*_argv: str) -> str:
        assert {f"linux-headers-{KERNEL}", *neuron.NEURON_PACKAGES} <= run.versions().keys()
        for path in neuron_devices(context):
            path.touch()
        return ""

    run.answer("modprobe neuron", load)
    return context, run


def neuron_devices(context: Context) -> list[Path]:
    return [context.at(f"dev/neuron{number}") for number in range(16)]


def test_trainium_has_its_driver_and_its_devices(trainium: tuple[Context, Machine]) -> None:
    context, run = trainium
    assert steps.accelerators(context) == "16 trainium"
    # The driver would also be built for this kernel, and may not compile.
    assert "linux-headers-6.14.0-1018-gcp" not in run.versions()
    source = context.at("etc/apt/sources.list.d/aws-neuron.list").read_text()
    assert source == (
        "deb [signed-by=/etc/apt/keyrings/aws-neuron.asc] https://apt.repos.neuron.amazonaws.com noble main\n"
    )
    run.calls.clear()
    assert steps.accelerators(context) == "16 trainium"
    assert run.calls == [], "an image that has it installs nothing"


def test_a_neuron_device_that_is_missing_keeps_the_node_away(trainium: tuple[Context, Machine]) -> None:
    context, run = trainium

    def settle(*_argv: str) -> str:
        neuron_devices(context)[3].unlink()
        return ""

    run.answer("udevadm", settle)
    with pytest.raises(RuntimeError, match="/dev has 15 Neuron devices, and there should be 16"):
        steps.accelerators(context)


def test_an_image_has_neurons_driver_and_loads_none_of_it(trainium: tuple[Context, Machine]) -> None:
    context, run = trainium
    assert drivers_of_nodes.install_unloaded(context, TRAINIUM) == ["the Neuron driver"]
    assert neuron.NEURON_PACKAGES[0] in run.versions()
    assert not run.having("modprobe")


def test_neurons_driver_is_refused_where_nothing_that_is_built_here_is_loaded(
    trainium: tuple[Context, Machine],
) -> None:
    context, _ = trainium
    variable = context.at(running_kernel.SECURE_BOOT)
    variable.parent.mkdir(parents=True)
    variable.write_bytes(b"\x06\0\0\0\x01")
    with pytest.raises(RuntimeError, match=r"the Neuron driver is built .* use an image without Secure Boot"):
        steps.accelerators(context)
