"""Tests of the installation on Google Cloud: packages, GPU drivers, the elastic driver's client."""

from __future__ import annotations

import dataclasses
import subprocess
import zipfile
from importlib import metadata
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from infra import bundle
from node.bootstrap import steps
from node.bootstrap.context import Context
from node.bootstrap.vm import cloud_client, nvidia_gpus
from node.bootstrap.vm import packages as distribution
from node.design.accelerators import Accelerator
from node.design.model import GcpPartition, Partition
from node.elastic import programs
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
        "python3-venv", "build-essential",
    ]  # fmt: skip
    distribution.install(context)
    source = tmp_path / "root/etc/chrony/sources.d/google.sources"
    assert source.read_text() == "server metadata.google.internal prefer iburst\n"


def unpacked(context: Context) -> Path:
    """The unpacked node archive on the machine."""
    code = context.path(context.folders.code)
    zipfile.ZipFile(BytesIO(bundle.node_archive(context.settings.design))).extractall(code)
    return code


def test_the_drivers_client_is_installed_once_by_its_hashes(tmp_path: Path) -> None:
    context, run = gcp_machine(tmp_path, "controller", "controller")
    locked = unpacked(context) / "client" / "requirements.txt"
    place = tmp_path / "root" / programs.CLIENT
    run.answer("/usr/bin/python3", lambda *_: place.mkdir(parents=True, exist_ok=True) or "")  # type: ignore[func-returns-value]
    (first,) = cloud_client.install(context)
    assert first.startswith("google-cloud-compute==")
    assert cloud_client.install(context) == []
    venv, pip = run.calls
    assert venv == f"/usr/bin/python3 -m venv --clear {place}"
    assert pip == (
        f"{place}/bin/pip install --quiet --no-cache-dir --only-binary=:all: --require-hashes "
        f"--requirement {locked}"
    )
    # The daemon runs with this Python if it exists.
    (place / "bin").mkdir()
    assert programs.daemon_service(context.settings, context.settings_file).argv[0] == "/usr/bin/python3"
    (place / "bin" / "python").touch()
    assert programs.daemon_service(context.settings, context.settings_file).argv[0] == f"{place}/bin/python"
    locked.write_text("other==1 \\\n    --hash=sha256:00\n")
    assert cloud_client.install(context) == ["other==1"]


def test_the_lock_holds_all_that_the_client_needs(tmp_path: Path) -> None:
    """The requirements are those of the packages that are installed in this checkout."""
    context, _ = gcp_machine(tmp_path, "controller", "controller")
    lines = (unpacked(context) / "client" / "requirements.txt").read_text().splitlines()
    assert all(line.startswith("    --hash=sha256:") or "==" in line for line in lines)
    pinned = dict(line.removesuffix(" \\").split("==") for line in lines if not line.startswith(" "))
    waiting, seen = [Requirement("google-cloud-compute")], set()
    while waiting:
        one = waiting.pop()
        name = canonicalize_name(one.name)
        seen.add(name)
        assert metadata.version(name) == pinned[name]
        for text in metadata.requires(name) or []:
            need = Requirement(text)
            # The controller has Ubuntu 24.04's Python 3.12.
            kinds = [
                {"extra": extra, "python_version": "3.12", "python_full_version": "3.12.3"}
                for extra in ["", *one.extras]
            ]
            asked = need.marker is None or any(need.marker.evaluate(kind) for kind in kinds)
            if asked and canonicalize_name(need.name) not in seen:
                waiting.append(need)
    assert seen == set(pinned), "nothing is missing, and nothing comes along for nothing"


def test_an_archive_has_its_own_clouds_client_only(tmp_path: Path) -> None:
    def folders(provider: str, **changes: Any) -> tuple[set[str], bool]:
        design = dataclasses.replace(make(tmp_path, provider=provider)[0].settings.design, **changes)
        files = zipfile.ZipFile(BytesIO(bundle.node_archive(design))).namelist()
        clouds = {name.split("/")[1] for name in files if name.startswith("node/")}
        return clouds & {"aws", "gcp"}, "client/requirements.txt" in files

    assert folders("aws") == ({"aws"}, False)
    assert folders("gcp") == ({"gcp"}, True)
    assert folders("gcp", trains=False) == ({"gcp"}, True), "nodes come and go without a benchmark"


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
