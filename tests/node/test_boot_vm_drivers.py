"""Tests of the drivers of a node's devices: NVIDIA's variants, and missing interfaces or GPUs."""

from __future__ import annotations

import dataclasses
import io
import platform
import tarfile
from pathlib import Path

import pytest

from node.bootstrap import steps
from node.bootstrap.command import CommandError
from node.bootstrap.command import run as really
from node.bootstrap.context import Context, SkipStep
from node.bootstrap.vm import drivers, efa, nvidia_driver, nvidia_gpus, signed_files
from node.bootstrap.vm.signed_files import Signer
from node.design.accelerators import Accelerator
from node.design.model import AwsPartition, Partition
from node.slurm import hardware
from node.system import http_client
from node.system.http_client import Answer
from tests.support.recorded import COMPUTE, T4, V100, Recorder, machine

KERNEL = "6.8.0-1021-aws"
Asked = list[tuple[nvidia_driver.Flavour, dict[str, bool]]]


@pytest.fixture(autouse=True)
def kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "release", lambda: KERNEL)
    monkeypatch.setattr(hardware, "device_files", lambda _accelerator: "/dev/null")


def gpus(run: Recorder, count: int, *, after_install: bool = True) -> None:
    """nvidia-smi sees `count` GPUs when the driver is loaded."""

    def smi(*_argv: str) -> str:
        if after_install and not run.having("modprobe", "nvidia"):
            raise CommandError("nvidia-smi is not installed on this machine", 127)
        return "".join(f"GPU {number}: Tesla (UUID: GPU-{number})\n" for number in range(count))

    run.answer("nvidia-smi --list-gpus", smi)


def node(tmp_path: Path, partition: Partition) -> tuple[Context, Recorder]:
    return machine(tmp_path, host=f"{partition.name}-0", partitions=(partition,))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """Records the requested NVIDIA packages. `test_drivers_apt.py` tests the versions with a real apt."""
    calls: Asked = []

    def install(_context: Context, flavour: nvidia_driver.Flavour, **how: bool) -> nvidia_driver.Choice:
        calls.append((flavour, how))
        return nvidia_driver.Choice((), "580.173.02", built=True)

    monkeypatch.setattr(drivers, "install_nvidia", install)
    monkeypatch.setattr(nvidia_gpus, "install_nvidia", install)
    return calls


@pytest.mark.parametrize(("partition", "flavour"), [(V100, "580-server"), (T4, "580-server-open")])
def test_the_closed_modules_for_volta_and_the_open_ones_for_newer(
    tmp_path: Path, asked: Asked, partition: Partition, flavour: str
) -> None:
    partition = dataclasses.replace(partition, aws=AwsPartition())
    context, run = node(tmp_path, partition)
    assert partition.accelerator is not None
    gpus(run, partition.accelerator.count)
    said = steps.accelerators(context)
    assert said == f"{partition.accelerator.count} {partition.accelerator.type}"
    assert [(its.name, its.switched, how) for its, how in asked] == [(flavour, False, {"signed": False})]


def test_joined_gpus_need_their_fabric(tmp_path: Path, asked: Asked) -> None:
    context, run = node(tmp_path, Partition("a", "p4d.24xlarge", 96, 9, 0, 1, Accelerator("a100", 8)))
    gpus(run, 8)
    (tmp_path / "root" / nvidia_gpus.SWITCHES / "0000:c0:00.0").mkdir(parents=True)
    steps.accelerators(context)
    assert [its.switched for its, _ in asked] == [True]
    assert run.calls.index("systemctl enable --now nvidia-fabricmanager") > 0


@pytest.mark.usefixtures("asked")
def test_switches_that_the_cloud_keeps_to_itself_need_no_manager(tmp_path: Path) -> None:
    """The fabric manager's unit would fail, because it sees no switches."""
    context, run = node(tmp_path, Partition("a", "a2-highgpu-8g", 96, 9, 0, 1, Accelerator("a100", 8)))
    gpus(run, 8)
    assert steps.accelerators(context) == "8 a100"
    assert not run.having("enable")


B200 = Partition("b", "p6-b200.48xlarge", 192, 9, 0, 1, Accelerator("b200", 8))
JOINING = """\
GPU {number:08}:51:00.0
    Product Name                          : NVIDIA B200
    Fabric
        State                             : {state}
        Status                            : {status}
    Processes                             : None
"""


def fabric(states: list[str]) -> str:
    """The part of `nvidia-smi --query` that says how the GPUs are joined (NVIDIA's Fabric Manager guide)."""
    return "".join(
        JOINING.format(number=n, state=state, status="Success" if state == "Completed" else "N/A")
        for n, state in enumerate(states)
    )


def test_gpus_that_a_subnet_manager_joins_wait_for_it(
    tmp_path: Path, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvidia_gpus, "FABRIC_PAUSE", 0.01)
    context, run = node(tmp_path, B200)
    gpus(run, 8)
    answers = [
        fabric(["In Progress"] * 8),
        fabric([*["Completed"] * 7, "In Progress"]),
        fabric(["Completed"] * 8),
    ]
    run.answer("nvidia-smi --query", lambda *_argv: answers.pop(0))
    assert steps.accelerators(context) == "8 b200"
    assert answers == []
    assert [its.name for its, _ in asked] == ["580-server-open"]
    assert run.having("modprobe", "mlx5_ib", "ib_umad")
    assert run.having("start", "nvidia-fabricmanager")


@pytest.mark.usefixtures("asked")
def test_gpus_that_do_not_join_keep_the_node_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """nvidia-smi sees all of them, and CUDA would refuse each program."""
    monkeypatch.setattr(nvidia_gpus, "FABRIC_SECONDS", -1.0)
    context, run = node(tmp_path, B200)
    gpus(run, 8)
    run.fail("modprobe --all mlx5_ib ib_umad")
    run.answer("nvidia-smi --query", fabric(["In Progress"] * 8))
    with pytest.raises(
        RuntimeError, match=r"0 of 8 GPUs have joined the NVLink fabric.*Deep Learning Base AMI"
    ):
        steps.accelerators(context)


def test_an_image_with_the_driver_installs_nothing(tmp_path: Path) -> None:
    context, run = node(tmp_path, T4)
    gpus(run, 1, after_install=False)
    assert steps.accelerators(context) == "1 t4"
    assert run.calls == [
        "nvidia-smi --list-gpus",
        "nvidia-modprobe -u -c=0",
        "nvidia-smi --list-gpus",
        "nvidia-smi --persistence-mode=1",
    ]


@pytest.mark.usefixtures("asked")
def test_a_gpu_that_is_missing_keeps_the_node_away(tmp_path: Path) -> None:
    context, run = node(tmp_path, dataclasses.replace(V100, aws=AwsPartition()))
    gpus(run, 7)
    with pytest.raises(RuntimeError, match="nvidia-smi sees 7 GPUs, and there should be 8"):
        steps.accelerators(context)


def test_a_node_without_devices_is_skipped(tmp_path: Path) -> None:
    context, run = node(tmp_path, COMPUTE)
    with pytest.raises(SkipStep, match="has none"):
        steps.accelerators(context)
    assert run.calls == []


FI_INFO = """\
provider: efa
    fabric: efa
    domain: rdmap0s6-rdm
    version: 122.0
    type: FI_EP_RDM
    protocol: FI_PROTO_EFA
provider: efa
    fabric: efa-direct
    domain: rdmap0s6-rdm
    type: FI_EP_RDM
"""
FABRIC = dataclasses.replace(COMPUTE, name="efa", aws=AwsPartition(efa=1))


def test_interfaces_are_counted_once(tmp_path: Path) -> None:
    context, run = node(tmp_path, FABRIC)
    tool = tmp_path / "root" / efa.EFA_FI_INFO
    tool.parent.mkdir(parents=True)
    tool.touch()
    run.answer(str(tool), FI_INFO)
    assert steps.accelerators(context) == "1 EFA"
    four, run = node(tmp_path, dataclasses.replace(FABRIC, aws=AwsPartition(efa=4)))
    run.answer(str(tool), FI_INFO)
    with pytest.raises(RuntimeError, match="fi_info sees 1 EFA interfaces, and there should be 4"):
        steps.accelerators(four)


def test_the_installer_runs_once_in_its_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context, run = node(tmp_path, FABRIC)
    tool = tmp_path / "root" / efa.EFA_FI_INFO
    script = f'#!/bin/sh\necho "$PWD $*" >>{tmp_path}/ran\nmkdir -p {tool.parent}\ntouch {tool}\n'
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        entry = tarfile.TarInfo("aws-efa-installer/efa_installer.sh")
        entry.size, entry.mode = len(script), 0o755
        archive.addfile(entry, io.BytesIO(script.encode()))
    asked: list[tuple[str, str, Signer]] = []

    def fetch(
        _context: object, url: str, signature: str, by: Signer, target: Path, **_options: object
    ) -> None:
        asked.append((url, signature, by))
        target.write_bytes(buffer.getvalue())

    monkeypatch.setattr(signed_files, "fetch_signed", fetch)
    run.answer("bash", really)
    run.answer(str(tool), FI_INFO)
    for _ in range(2):
        assert steps.accelerators(context) == "1 EFA"
    assert asked == [(efa.EFA_URL, f"{efa.EFA_URL}.sig", efa.EFA_SIGNER)]
    assert "latest" not in efa.EFA_URL
    assert (tmp_path / "ran").read_text().splitlines() == [
        f"{tmp_path}/root/var/tmp/slurm-stacks-efa/aws-efa-installer --yes --no-verify"
    ]


def test_efas_driver_compiles_for_the_newest_kernels_of_the_distribution() -> None:
    """Ubuntu 24.04 has come to Linux 7.0, for which efa 3.0.0 of installer 1.47.0 does not compile, and efa
    3.1.0 of 1.49.0 does (NVIDIA/aicr#2870). An older installer would keep nodes from booting again."""
    assert tuple(map(int, efa.EFA_VERSION.split("."))) >= (1, 49, 0)
    assert efa.EFA_URL.endswith(f"/aws-efa-installer-{efa.EFA_VERSION}.tar.gz")


def test_processes_of_a_node_may_share_memory(tmp_path: Path) -> None:
    """libfabric's shared-memory provider needs this (ParallelCluster: _disable_ptrace_debian.rb)."""
    context, run = node(tmp_path, FABRIC)
    tool = tmp_path / "root" / efa.EFA_FI_INFO
    tool.parent.mkdir(parents=True)
    tool.touch()
    run.answer(str(tool), FI_INFO)
    steps.accelerators(context)
    path = tmp_path / "root" / efa.EFA_SYSCTL
    assert "kernel.yama.ptrace_scope = 0" in path.read_text().splitlines()
    assert f"sysctl --load {path}" in run.calls


def test_the_driver_is_built_for_the_running_kernel_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context, run = node(tmp_path, FABRIC)
    for kernel in (KERNEL, "6.17.0-1022-aws", "6.14.0-1018-aws"):
        (tmp_path / "root" / "lib/modules" / kernel / "build").mkdir(parents=True)
    run.answer("dpkg-query", "installed linux-headers-6.17.0-1022-aws\n")
    asked: list[str] = []

    def fetch(*_args: object, **_options: object) -> Answer:
        asked.extend(run.having("purge"))
        return Answer(403)

    monkeypatch.setattr(http_client, "call", fetch)
    with pytest.raises(OSError, match="403"):
        steps.accelerators(context)
    (line,) = asked
    assert line.endswith(" purge linux-headers-6.17.0-1022-aws")


def test_an_installer_that_is_not_there_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context, _ = node(tmp_path, FABRIC)
    monkeypatch.setattr(http_client, "call", lambda *_a, **_k: Answer(403))
    with pytest.raises(OSError, match=r"aws-efa-installer.*: HTTP status 403"):
        steps.accelerators(context)
