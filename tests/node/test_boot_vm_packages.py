"""Tests of packages on Ubuntu: which are installed, when lists are updated, and the kernel for Lustre."""

from __future__ import annotations

import dataclasses
import json
import platform
from pathlib import Path
from typing import Any

import pytest

from node.bootstrap import step_runner
from node.bootstrap.context import Reboot
from node.bootstrap.steps import STEPS
from node.bootstrap.vm import apt, lustre, packages
from node.design.containers import Containers
from node.design.model import Host, SlurmSettings
from node.design.storage import Mount
from node.system import http_client
from node.system.http_client import Answer
from tests.support.recorded import NFS, Recorder, machine

FSX = Mount("/fsx", "fsx_lustre", options="relatime,flock")
MODULES = (
    "lustre-client-modules-6.8.0-1009-aws\nlustre-client-modules-6.8.0-1021-aws\n"
    "lustre-client-modules-6.8.0-1030-aws\nlustre-client-modules-aws\n"
)


def there(*names: str) -> str:
    return "".join(f"installed {name}\n" for name in names)


@pytest.fixture
def ubuntu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose kernel has no Lustre client, and FSx's key."""
    monkeypatch.setattr(platform, "release", lambda: "6.14.0-1018-aws")
    key = b"-----BEGIN PGP PUBLIC KEY BLOCK-----\n"
    monkeypatch.setattr(http_client, "call", lambda *_a, **_k: Answer(200, key))


def test_each_role_has_its_packages(tmp_path: Path) -> None:
    def wanted(role: str, host: str, **changes: Any) -> list[str]:
        return packages.wanted(machine(tmp_path, role, host, **changes)[0])

    assert wanted("controller", "controller") == [
        "munge", "chrony", "slurmctld", "slurm-client", "libpmix-dev", "rsync",
        "nfs-common", "nfs-kernel-server", "nftables",
            "dnsmasq-base",
        "python3-venv", "build-essential",
    ]  # fmt: skip
    assert wanted("compute", "compute-0") == [
        "munge", "chrony", "slurmd", "slurm-client", "libpmix-dev", "rsync", "nfs-common", "nftables",
    ]  # fmt: skip
    assert wanted("login", "login-0") == [
        "munge",
        "chrony",
        "slurm-client",
        "libpmix-dev",
        "rsync",
        "nfs-common",
        "nftables",
    ]
    local = (Mount("/local_scratch", "nvme", roles=("compute",)),)
    assert wanted("compute", "compute-0", mounts=local) == [
        "munge", "chrony", "slurmd", "slurm-client", "libpmix-dev", "rsync", "mdadm", "nftables",
    ]  # fmt: skip
    oci = Containers("oci")
    assert wanted("compute", "compute-0", mounts=(), containers=oci)[-2] == "crun"
    assert wanted("login", "login-0", mounts=(), containers=oci)[-3:-1] == ["skopeo", "umoci"]
    pyxis = Containers("pyxis")
    assert wanted("compute", "compute-0", mounts=(), containers=pyxis)[-3:-1] == ["squashfs-tools", "zstd"]
    accounts = wanted("controller", "controller", slurm=SlurmSettings(accounting=True), mounts=())
    # The plugin is named, because apt leaves it out where it is only recommended.
    assert accounts[4:6] == ["slurmdbd", "slurm-wlm-mysql-plugin"]
    assert accounts[-3:-1] == ["mariadb-server", "python3-venv"]
    elsewhere = wanted("controller", "controller", slurm=SlurmSettings(accounting=True, source="debian-13"))
    assert [name for name in elsewhere if "slurm" in name] == [], "no name of the distribution's own Slurm"


def test_users_can_make_environments_where_they_log_in_and_only_there(tmp_path: Path) -> None:
    """The posts build a Python and make a virtual environment on the login machine."""
    ours = {"build-essential", "python3-venv"}
    alone = machine(tmp_path, "controller", "controller", trains=False)[0].settings.design
    login = Host("login-0", "login", ("login",), "m5.large", 50)
    with_login = dataclasses.replace(alone, hosts=(*alone.hosts, login))
    assert ours <= set(packages.of_role(alone, "controller"))
    assert ours <= set(packages.of_role(with_login, "login"))
    # The controller has the other one for the training environment, whether somebody trains or not.
    assert "build-essential" not in packages.of_role(with_login, "controller")
    assert not ours & set(packages.of_role(alone, "compute"))
    # Machines of the local stack share this host's programs, or its image.
    here = dataclasses.replace(alone, isolation="container")
    assert "build-essential" not in packages.of_role(here, "controller")


def test_missing_packages_are_installed_behind_the_lock(tmp_path: Path) -> None:
    context, run = machine(tmp_path)
    run.answer("dpkg-query", there("munge", "nfs-common"))
    assert packages.install(context) == "installed chrony, slurmd, slurm-client, libpmix-dev, rsync, nftables"
    (update,), (install,) = run.having("update"), run.having("install")
    assert install.endswith("--no-install-recommends chrony slurmd slurm-client libpmix-dev rsync nftables")
    for line in (update, install):
        assert "--option=DPkg::Lock::Timeout=300" in line.split()
    assert run.calls.index(update) < run.calls.index(install)
    its = run.options[run.calls.index(install)]
    assert its["env"]["DEBIAN_FRONTEND"] == "noninteractive"
    assert its["attempts"] > 1
    root = tmp_path / "root"
    # Units are masked before the packages, which would start daemons without a configuration.
    masked = {path.name: str(path.readlink()) for path in (root / "etc/systemd/system").iterdir()}
    assert masked == dict.fromkeys([*packages.MASKED, *packages.UPGRADES], "/dev/null")
    assert run.having("stop") == [f"systemctl stop {' '.join(packages.UPGRADES)}"]
    assert "169.254.169.123" in (root / "etc/chrony/sources.d/amazon.sources").read_text()

    run.calls.clear()
    packages.install(context)
    assert run.having("stop") == [], "what is masked in an image was never started"


def test_an_image_that_has_all_asks_no_mirror(tmp_path: Path) -> None:
    context, run = machine(tmp_path, "controller", "controller")
    run.answer("dpkg-query", there(*packages.wanted(context)))
    assert packages.install(context) == "all are there"
    assert [call.split()[0] for call in run.calls] == ["dpkg-query"]


def test_a_package_that_is_only_mentioned_cannot_be_installed(tmp_path: Path) -> None:
    context, run = machine(tmp_path)
    run.answer("apt-cache show", "")
    run.answer("apt-cache show --no-all-versions real", "Package: real\nVersion: 1\n")
    assert (apt.known(context, "real"), apt.known(context, "mentioned")) == (True, False)


def helper(root: Path) -> None:
    """Makes the program that mount(8) needs for Lustre."""
    path = root / lustre.HELPER
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()


def kernels(run: Recorder, root: Path, *offered: str) -> None:
    """The packages of FSx and Ubuntu. `update-grub` adds all kernels to GRUB's menu."""

    def menu(*_argv: str) -> str:
        lines = [f"menuentry 'Ubuntu, with Linux {kernel}' --class ubuntu {{" for kernel in offered]
        grub = root / "boot" / "grub" / "grub.cfg"
        grub.parent.mkdir(parents=True, exist_ok=True)
        grub.write_text("\n".join(["submenu 'Advanced options for Ubuntu' {", *lines]))
        return ""

    def installed(*argv: str) -> str:
        # As in FSx's repository, the module packages only recommend the mount helper.
        if lustre.UTILITIES in argv:
            helper(root)
        return ""

    run.answer("apt-get", installed)
    run.answer("update-grub", menu)
    run.fail("modinfo")
    run.answer("apt-cache pkgnames", MODULES)
    run.answer("apt-cache show", "")
    for kernel in offered:
        for name in (f"linux-image-{kernel}", f"lustre-client-modules-{kernel}"):
            run.answer(f"apt-cache show --no-all-versions {name}", f"Package: {name}\nVersion: 1\n")


@pytest.mark.usefixtures("ubuntu")
def test_lustre_takes_the_newest_kernel_that_has_a_client_and_starts_again(tmp_path: Path) -> None:
    context, run = machine(tmp_path, mounts=(*NFS, FSX))
    kernels(run, tmp_path / "root", "6.8.0-1009-aws", "6.8.0-1021-aws")
    with pytest.raises(Reboot, match=r"Linux 6\.8\.0-1021-aws"):
        packages.install(context)
    last = run.having("install")[-1]
    for name in ("linux-image-6.8.0-1021-aws", "lustre-client-modules-6.8.0-1021-aws"):
        assert name in last.split()
    root = tmp_path / "root"
    assert "with Linux 6.8.0-1021-aws" in (root / lustre.GRUB).read_text()
    assert run.calls[-1] == "update-grub"
    assert "signed-by=/etc/apt/keyrings" in (root / "etc/apt/sources.list.d/fsx-lustre.list").read_text()


@pytest.mark.usefixtures("ubuntu")
def test_after_the_restart_the_boot_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context, run = machine(tmp_path, mounts=(*NFS, FSX))
    kernels(run, tmp_path / "root", "6.8.0-1021-aws")
    (step,) = [step for step in STEPS if step.name == "packages"]
    assert step_runner.run_steps(context, [step]) is False
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["state"], report["steps"][-1]["state"]) == ("rebooting", "done")
    assert report["steps"][-1]["note"].endswith("the machine starts again")
    assert run.calls[-1] == "systemctl reboot"

    monkeypatch.setattr(platform, "release", lambda: "6.8.0-1021-aws")
    again, run = machine(tmp_path, mounts=(*NFS, FSX))
    assert (tmp_path / "root" / lustre.HELPER).exists()
    run.answer("dpkg-query", there(*packages.wanted(again)))
    assert step_runner.run_steps(again, [step]) is True
    assert run.calls[-1] == "modinfo -k 6.8.0-1021-aws lustre"
    assert not run.having("reboot")


@pytest.mark.usefixtures("ubuntu")
def test_a_machine_starts_again_once_and_no_more(tmp_path: Path) -> None:
    context, run = machine(tmp_path, mounts=(FSX,))
    kernels(run, tmp_path / "root", "6.8.0-1021-aws")
    with pytest.raises(Reboot):
        packages.install(context)
    with pytest.raises(RuntimeError, match=r"was to start with Linux 6\.8\.0-1021-aws and runs 6\.14"):
        packages.install(context)


@pytest.mark.usefixtures("ubuntu")
def test_a_kernel_that_grub_does_not_know_is_not_started(tmp_path: Path) -> None:
    context, run = machine(tmp_path, mounts=(FSX,))
    kernels(run, tmp_path / "root", "6.8.0-1021-aws")
    (tmp_path / "root/boot/grub").mkdir(parents=True)
    (tmp_path / "root/boot/grub/grub.cfg").write_text("menuentry 'Ubuntu' {\n")
    run.answer("update-grub", "")
    with pytest.raises(RuntimeError, match=r"no entry for Linux 6\.8\.0-1021-aws"):
        packages.install(context)


@pytest.mark.usefixtures("ubuntu")
def test_no_kernel_with_a_client_is_said(tmp_path: Path) -> None:
    context, run = machine(tmp_path, mounts=(FSX,))
    kernels(run, tmp_path / "root")
    with pytest.raises(RuntimeError, match=r"no kernel that Ubuntu offers \(6\.8\.0-1009-aws, .*image\.id"):
        packages.install(context)
    assert not run.having("update-grub")


@pytest.mark.usefixtures("ubuntu")
def test_a_kernel_that_has_a_client_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "release", lambda: "6.8.0-1030-aws")
    context, run = machine(tmp_path, mounts=(FSX,))
    kernels(run, tmp_path / "root")
    assert "lustre-client-modules-6.8.0-1030-aws, lustre-client-utils" in packages.install(context)
    assert not (tmp_path / "root" / lustre.GRUB).exists()


@pytest.mark.usefixtures("ubuntu")
def test_a_client_without_its_mount_helper_is_completed(tmp_path: Path) -> None:
    context, run = machine(tmp_path, mounts=(FSX,))
    kernels(run, tmp_path / "root")
    run.answer("modinfo", "filename: lustre.ko\n")
    assert packages.install(context).endswith("lustre-client-utils")
    assert run.having("install")[-1].endswith("--no-install-recommends lustre-client-utils")


@pytest.mark.usefixtures("ubuntu")
def test_packages_that_bring_no_mount_helper_are_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "release", lambda: "6.8.0-1030-aws")
    context, run = machine(tmp_path, mounts=(FSX,))
    kernels(run, tmp_path / "root")
    run.answer("apt-get", "")
    with pytest.raises(RuntimeError, match=r"there is no /sbin/mount\.lustre"):
        packages.install(context)


def test_a_head_without_lustre_asks_nothing_of_it(tmp_path: Path) -> None:
    elsewhere = Mount("/fsx", "fsx_lustre", roles=("compute",))
    context, run = machine(tmp_path, "controller", "controller", mounts=(*NFS, elsewhere))
    run.answer("dpkg-query", there(*packages.wanted(context)))
    assert packages.install(context) == "all are there"
    assert [call for call in run.calls if "lustre" in call] == []
