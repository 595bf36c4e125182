"""Tests of the installation on Google Cloud: packages, GPU drivers, the code of its cloud alone."""

from __future__ import annotations

import subprocess
import zipfile
from io import BytesIO
from pathlib import Path

import pytest

from infra import bundle
from node.bootstrap import steps
from node.bootstrap.context import Context
from node.bootstrap.vm import nvidia_gpus
from node.bootstrap.vm import packages as distribution
from node.design.accelerators import Accelerator
from node.design.model import GcpPartition, Partition
from node.slurm import hardware
from tests.support.checkout import ROOT
from tests.support.recorded import gcp_machine
from tests.support.recorded import machine as make

V100 = Partition(
    "v100", "n1-standard-8", 8, 29000, 0, 4, Accelerator("v100", 2), gcp=GcpPartition(secure_boot=True)
)


def test_each_role_has_its_packages_and_googles_time(tmp_path: Path) -> None:
    context, _ = gcp_machine(tmp_path, "controller", "controller")
    assert distribution.wanted(context) == [
        "munge", "chrony", "slurmctld", "slurm-client", "libpmix-dev", "rsync",
        "nfs-common", "nfs-kernel-server", "nftables",
            "dnsmasq-base",
        "python3-urllib3", "python3-venv", "build-essential",
    ]  # fmt: skip
    distribution.install(context)
    source = tmp_path / "root/etc/chrony/sources.d/google.sources"
    assert source.read_text() == "server metadata.google.internal prefer iburst\n"


def unpacked(context: Context) -> Path:
    """The unpacked node archive on the machine."""
    code = context.path(context.folders.code)
    zipfile.ZipFile(BytesIO(bundle.node_archive(context.settings.design))).extractall(code)
    return code


def test_an_archive_has_its_own_clouds_client_only(tmp_path: Path) -> None:
    for provider in ("aws", "gcp"):
        design = make(tmp_path, provider=provider)[0].settings.design
        files = zipfile.ZipFile(BytesIO(bundle.node_archive(design))).namelist()
        clouds = {name.split("/")[1] for name in files if name.startswith("node/")}
        assert clouds & {"aws", "gcp"} == {provider}


@pytest.mark.parametrize("provider", ["aws", "gcp"])
def test_a_machine_runs_with_its_own_clouds_code_alone(tmp_path: Path, provider: str) -> None:
    """All modules that a boot imports come from the archive."""
    context, _ = make(tmp_path, provider=provider)
    code = unpacked(context)
    modules = [
        f"node.bootstrap.vm.{path.stem}"
        for path in (ROOT / "node/bootstrap/vm").glob("*.py")
        if path.stem != "__init__"
    ]
    cloud = {"aws": ("aws", "cloudwatch"), "gcp": ("gcp",)}[provider]
    modules += [f"node.bootstrap.vm.clouds.{name}" for name in cloud]
    names = ", ".join(["node.bootstrap.main", *modules])
    text = f"import sys; sys.path.insert(0, {str(code)!r}); import {names}"
    done = subprocess.run(
        ["/usr/bin/env", "python3", "-I", "-S", "-c", text],
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_signed_modules_for_volta_where_secure_boot_wants_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """tests/node/test_drivers_apt.py tests which packages these are."""
    monkeypatch.setattr(hardware, "device_files", lambda _accelerator: "/dev/null")
    context, run = gcp_machine(tmp_path, host="v100-0", partitions=(V100,))
    run.answer("nvidia-smi --list-gpus", lambda *_: "GPU 0: x\nGPU 1: x\n" if run.having("modprobe") else "")
    asked: list[object] = []
    monkeypatch.setattr(
        nvidia_gpus,
        "install_nvidia",
        lambda _context, flavour, **how: asked.append((flavour.closed, how)),
    )
    assert steps.accelerators(context) == "2 v100"
    assert asked == [(True, {"signed": True})]
