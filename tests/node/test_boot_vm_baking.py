"""Tests of the role `image`: what is installed, what is removed, and how the machine ends."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from infra import bundle
from node.bootstrap import machine_steps
from node.bootstrap.context import Context
from node.bootstrap.vm import baking, drivers, lustre, mariadb, nvidia_driver, packages
from node.bootstrap.vm.clouds import cloudwatch
from node.design.model import Partition, Settings, SlurmSettings
from node.design.sites import AwsSite
from node.design.storage import Mount
from node.system import http_client
from node.system.http_client import Answer
from tests.support.doubles import settings
from tests.support.recorded import COMPUTE, NFS, T4, V100, Recorder, machine

OTHERS = {
    "etc/ssh/sshd_config": "Port 22\n",
    "etc/munge/other": "",
    "opt/aws/amazon-cloudwatch-agent/bin/amazon-cloudwatch-agent-ctl": "",
    "home/ubuntu/.bashrc": "",
    "var/lib/other/state": "",
}
GONE = (
    "etc/munge/munge.key", "etc/ssh/ssh_host_ed25519_key", "etc/ssh/ssh_host_ed25519_key.pub",
    "root/.ssh/authorized_keys", "home/ubuntu/.ssh/authorized_keys", "home/ubuntu/.bash_history",
    "var/lib/slurm-stacks/kernel", "var/lib/apt/lists/archive", "var/lib/systemd/random-seed",
    "var/log/journal/0123/system.journal", "opt/slurm-stacks/settings.json",
    "etc/systemd/system/slurm-stacks-boot.service",
)  # fmt: skip
Bake = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine's root with files that must be removed and files that must stay."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(machine_steps, "_make_user", lambda *_a: True)
    made = tmp_path / "root"
    fill(made)
    return made


def fill(root: Path) -> None:
    for path in (*GONE, *OTHERS):
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(OTHERS.get(path, "this machine's\n"))
    (root / "etc/machine-id").write_text("0123456789abcdef\n")


def bake(
    tmp_path: Path, host: str, run: Recorder, *partitions: Partition, power_off: bool = False, **changes: Any
) -> tuple[int, dict[str, Any]]:
    """Runs a machine of the role `image`. Returns its exit status and the report in the bucket."""
    context, _ = machine(
        tmp_path,
        "image",
        host,
        partitions=partitions or (COMPUTE,),
        driver={"region": "eu-west-1"},
        **changes,
    )
    bucket = tmp_path / "bucket"
    its = context.settings
    status = baking.bake(its, context.settings_file, host, str(bucket), power_off=power_off, runner=run)
    return status, json.loads((bucket / "boot" / f"{host}.json").read_text())


def states(report: dict[str, Any]) -> dict[str, str]:
    return {step["name"]: step["state"] for step in report["steps"]}


def test_a_node_image_is_its_packages_and_nothing_of_a_machine(root: Path, tmp_path: Path) -> None:
    run = Recorder()
    status, report = bake(tmp_path, "image-compute", run)
    assert status == 0
    assert (report["host"], report["role"], report["state"]) == ("image-compute", "image", "ready")
    assert states(report) == {
        "users": "done", "packages": "done", "accelerators": "skipped", "logs": "done", "clean": "done",
    }  # fmt: skip
    (install,) = run.having("install")
    assert install.endswith(
        "--no-install-recommends munge chrony slurmd slurm-client libpmix-dev rsync nfs-common nftables"
    )
    for path in GONE:
        assert not (root / path).exists(), path
    for path in OTHERS:
        assert (root / path).exists(), path
    assert (root / "etc/machine-id").read_bytes() == b"", "empty, so that systemd makes one"
    assert list(root.glob("opt/slurm-stacks")) == list(root.glob("var/lib/slurm-stacks")) == []
    assert "cloud-init clean --logs" in run.calls
    programs = {call.split()[0] for call in run.calls}
    assert not programs & {"mount", "modprobe", "nvidia-smi", "munged", "systemctl reboot"}
    assert run.calls.index("cloud-init clean --logs") > run.calls.index(install)
    masked = {path.name for path in (root / "etc/systemd/system").iterdir() if path.is_symlink()}
    assert masked == {*packages.MASKED, *packages.UPGRADES}, "an upgrade would take the kernel of the drivers"


def test_a_controllers_image_has_its_packages(root: Path, tmp_path: Path) -> None:
    run, settings = Recorder(), root / "etc/mysql/mariadb.conf.d/90-slurm-stacks.cnf"
    at_boot = root / mariadb.AT_BOOT

    def installed(*argv: str) -> str:
        if "install" not in argv or "--simulate" in argv:
            return ""
        assert "innodb_buffer_pool_size" in settings.read_text(), "so that its first start is its only one"
        at_boot.parent.mkdir(parents=True, exist_ok=True)
        at_boot.symlink_to("/lib/systemd/system/mariadb.service")
        return ""

    run.answer("apt-get", installed)
    status, _ = bake(tmp_path, "image-controller", run, slurm=SlurmSettings(accounting=True))
    assert status == 0
    assert settings.exists()
    assert not at_boot.is_symlink(), "no node that starts from the image needs it"
    (install,) = run.having("install")
    assert {"slurmctld", "nfs-kernel-server", "mariadb-server"} <= set(install.split())
    assert "systemctl stop mariadb" in run.calls, "its files are whole"
    assert not (root / "etc/systemd/system/apt-daily.timer").is_symlink()


def nvidia_packages(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, bool]]]:
    """Records the requested NVIDIA packages. `test_drivers_apt.py` tests which versions work together."""
    asked: list[tuple[str, dict[str, bool]]] = []

    def install(_context: Context, flavour: nvidia_driver.Flavour, **how: bool) -> nvidia_driver.Choice:
        asked.append((flavour.name, how))
        return nvidia_driver.Choice((), "580.173.02", built=True)

    monkeypatch.setattr(drivers, "install_nvidia", install)
    return asked


@pytest.mark.parametrize(
    ("partition", "host", "flavour"),
    [
        (T4, "image-compute-nvidia-open", "580-server-open"),
        (V100, "image-compute-nvidia-closed-efa", "580-server"),
    ],
)
def test_drivers_are_placed_and_not_loaded(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, partition: Partition, host: str, flavour: str
) -> None:
    """The machine that becomes the image has neither a GPU nor EFA."""
    fetched: list[Context] = []
    monkeypatch.setattr(drivers, "install_efa", fetched.append)
    asked = nvidia_packages(monkeypatch)
    run = Recorder()
    run.answer("nvidia-smi", AssertionError("there is none"))
    run.answer("modprobe", AssertionError("there is none"))
    status, report = bake(tmp_path, host, run, partition)
    assert status == 0
    assert asked == [(flavour, {"signed": False, "baking": True})]
    assert len(fetched) == partition.aws.efa
    (said,) = [step["note"] for step in report["steps"] if step["name"] == "accelerators"]
    assert f"NVIDIA's driver 580.173.02 ({flavour})" in said
    assert ("EFA" in said) == bool(partition.aws.efa)


@pytest.mark.usefixtures("root")
def test_joined_gpus_get_their_fabric_at_the_boot_of_a_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from node.design.accelerators import Accelerator

    nvidia_packages(monkeypatch)
    run = Recorder()
    a100 = Partition("a", "p4d.24xlarge", 96, 9, 0, 1, Accelerator("a100", 8))
    assert bake(tmp_path, "image-compute-nvidia-open-switched", run, a100)[0] == 0
    assert "systemctl enable nvidia-fabricmanager" in run.calls


def lustre_world(run: Recorder, root: Path, monkeypatch: pytest.MonkeyPatch, running: str) -> None:
    monkeypatch.setattr(platform, "release", lambda: running)
    key = b"-----BEGIN PGP PUBLIC KEY BLOCK-----\n"
    monkeypatch.setattr(http_client, "call", lambda *_a, **_k: Answer(200, key))
    wanted = "6.8.0-1021-aws"
    if running != wanted:
        run.fail("modinfo")
    run.answer("apt-cache pkgnames", f"lustre-client-modules-{wanted}\n")
    run.answer("apt-cache show", "Package: x\nVersion: 1\n")
    if running != wanted:
        (root / "var/lib/slurm-stacks/kernel").unlink()  # the machine has not restarted yet
    (root / "boot/grub").mkdir(parents=True, exist_ok=True)
    (root / "boot/grub/grub.cfg").write_text(f"'{lustre.SUBMENU}'\n'Ubuntu, with Linux {wanted}'\n")
    (root / lustre.GRUB).parent.mkdir(parents=True, exist_ok=True)
    (root / lustre.HELPER).parent.mkdir(parents=True, exist_ok=True)
    (root / lustre.HELPER).touch()


def test_another_kernel_is_a_restart_and_then_the_same_again(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts = (*NFS, Mount("/fsx", "fsx_lustre"))
    run = Recorder()
    lustre_world(run, root, monkeypatch, "6.14.0-1018-aws")
    status, report = bake(tmp_path, "image-compute", run, mounts=mounts)
    assert (status, report["state"]) == (194, "rebooting"), "Image Builder restarts it, nobody else"
    assert "systemctl reboot" not in run.calls
    assert (root / "var/lib/slurm-stacks/kernel").read_text() == "6.8.0-1021-aws\n"
    assert (root / "opt/slurm-stacks/settings.json").exists(), "it goes on with it"
    run = Recorder()
    lustre_world(run, root, monkeypatch, "6.8.0-1021-aws")
    status, report = bake(tmp_path, "image-compute", run, mounts=mounts)
    assert (status, report["state"]) == (0, "ready")
    assert not (root / "var/lib/slurm-stacks/kernel").exists(), "a node's own restart is not this one's"
    assert (root / lustre.GRUB).exists(), "nodes boot that kernel"


def test_a_machine_that_is_ours_alone_restarts_and_stops_itself(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts = (*NFS, Mount("/fsx", "fsx_lustre"))
    run = Recorder()
    lustre_world(run, root, monkeypatch, "6.14.0-1018-aws")
    status, _ = bake(tmp_path, "image-compute", run, mounts=mounts, power_off=True)
    assert (status, run.calls[-1]) == (194, "systemctl reboot")
    run = Recorder()
    status, _ = bake(tmp_path, "image-compute", run, power_off=True)
    assert (status, run.calls[-1]) == (0, "systemctl poweroff")


def test_a_failure_is_told_and_leaves_the_disk_as_it_is(root: Path, tmp_path: Path) -> None:
    run = Recorder()
    run.fail("apt-get", 100, "E: Unable to locate package slurmd")
    status, report = bake(tmp_path, "image-compute", run, power_off=True)
    assert (status, report["state"]) == (1, "failed")
    assert report["steps"][-1]["tail"] == ["E: Unable to locate package slurmd"]
    assert (root / "opt/slurm-stacks/settings.json").exists()
    assert run.calls[-1] == "systemctl poweroff", "it neither tries for ever nor costs"
    status, report = bake(tmp_path, "image-compute", run)
    assert (status, report["state"]) == (1, "failed")
    assert len(run.having("poweroff")) == 1, "Image Builder ends its machine itself"


def test_without_the_agent_an_image_is_one_all_the_same(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / cloudwatch.AGENT).unlink()
    monkeypatch.setattr(http_client, "call", lambda *_a, **_k: Answer(503, b""))
    status, report = bake(tmp_path, "image-compute", Recorder())
    assert (status, states(report)["logs"]) == (0, "skipped")


PROGRAMS = ("apt-get", "dpkg-query", "systemctl", "cloud-init", "useradd")


def test_the_whole_way_from_the_loader_to_its_own_end(tmp_path: Path) -> None:
    """A separate process removes the code from which it runs, and still reports how it ended."""
    root, bucket, programs = tmp_path / "root", tmp_path / "bucket", tmp_path / "programs"
    fill(root)
    programs.mkdir()
    for name in PROGRAMS:
        (programs / name).write_text(f'#!/bin/sh\necho {name} "$@" >>{tmp_path}/calls\n')
        (programs / name).chmod(0o755)
    context, _ = machine(tmp_path, "image", "image-compute", driver={"region": "eu-west-1"})
    (root / "opt/slurm-stacks/current").rmdir()
    publish(bucket, settings(root, context.settings.design, user="slurm", cloud=AwsSite("eu-west-1")))
    code = root / "opt" / "slurm-stacks"
    (code / "loader.py").write_bytes(bundle.loader_archive("aws"))
    line = [sys.executable, str(code / "loader.py"), "--bucket", str(bucket), "--code", str(code)]
    line += ["--role", "image", "--host", "image-compute", "--power-off"]
    as_root = [] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user"]
    done = subprocess.run(
        [*as_root, *line],
        env={"PATH": f"{programs}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads((bucket / "boot" / "image-compute.json").read_text())
    assert report["state"] == "ready"
    assert not code.exists()
    assert not (root / "etc/munge/munge.key").exists()
    assert (tmp_path / "calls").read_text().splitlines()[-1] == "systemctl poweroff"


def publish(bucket: Path, settings: Settings) -> None:
    """The code comes from `image.json`, because the cluster of `current.json` does not exist yet."""
    archive, text = bundle.node_archive(settings.design), bundle.settings_object(settings)
    named = bundle.current(archive, text)
    for part, content in (("code", archive), ("settings", text)):
        file = bucket / named[part]["key"]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    (bucket / "image.json").write_text(json.dumps(named))
