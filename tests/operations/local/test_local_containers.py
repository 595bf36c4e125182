"""Whether machines can be containers here, and the messages if they cannot."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from cli.findings import Severity
from cli.providers.local.diagnosis.cluster_folders import containers
from localcloud import cgroups, images, volumes
from localcloud.isolation import read_isolation
from node.design.model import CONTAINER, PROCESS, ClusterDesign
from node.design.storage import Mount
from operations.local import container_images, system_packages
from operations.local import containers as container_machines
from operations.local.agent import end_cluster
from tests.support import sentences
from tests.support.checkout import ROOT
from tests.support.containers import need_containers
from tests.support.doubles import design
from tests.support.fake_machines import FakeMachines

WANTED = design(isolation="container")


@pytest.fixture
def able(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host on which machines can boot: this user is root, all programs exist, the image is missing."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(system_packages, "missing", lambda _purpose: [])
    monkeypatch.setattr(images, "recipe", lambda _suite=None: images.Recipe("bookworm", ()))
    monkeypatch.setattr(cgroups, "hierarchies", lambda: [Path("/")])
    monkeypatch.setattr(container_images, "image_exists", lambda _design: False)


@pytest.mark.usefixtures("able")
def test_where_all_is_there_nothing_stands_against_it() -> None:
    assert container_machines.unsupported_reason(WANTED, lambda: "") is None


@pytest.mark.usefixtures("able")
def test_each_reason_names_its_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    def said() -> str:
        return container_machines.unsupported_reason(WANTED, lambda: "") or ""

    reason = container_machines.unsupported_reason(WANTED, lambda: "mount: permission denied")
    assert "--privileged" in (reason or "")
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _path: _Full())
        assert "100 MiB are free there: make room" in said()
    with monkeypatch.context() as patch:
        patch.setattr(cgroups, "hierarchies", list)
        assert "mount -t cgroup2" in said()
    with monkeypatch.context() as patch:

        def none(_suite: str | None) -> images.Recipe:
            raise images.ImageError("apt on this machine has no source of it")

        patch.setattr(images, "recipe", none)
        assert "apt on this machine has no source" in said()
    with monkeypatch.context() as patch:
        patch.setattr(system_packages, "missing", lambda _purpose: ["debootstrap"])
        assert "need debootstrap: as root, apt-get install" in said()
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: 1000)
        assert "run as root (sudo)" in said()


@pytest.mark.usefixtures("able")
def test_a_disk_for_the_state_needs_a_loop_device(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = design(isolation="container", mounts=(Mount("/state", "disk", ("controller",), "controller"),))
    monkeypatch.setattr(volumes, "unavailable", lambda: "losetup: cannot find an unused loop device")
    assert container_machines.unsupported_reason(WANTED, lambda: "") is None
    reason = container_machines.unsupported_reason(kept, lambda: "") or ""
    assert "cannot find an unused loop device" in reason
    assert "modprobe loop; or write controller: {state: machine}" in reason
    monkeypatch.undo()
    if os.geteuid() == 0 and Path("/dev/loop-control").exists():
        assert volumes.unavailable() == ""


class _Full:
    free = 100 << 20


def test_the_doctor_says_whether_it_is_possible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container_images, "image_exists", lambda _design: True)
    (found,) = containers(WANTED, lambda _design: None)
    assert found.severity is Severity.FINE
    assert "a container that boots; its image is there" in found.found

    def why_not(_design: ClusterDesign | None) -> str:
        return "machines that boot need debootstrap: as root, apt-get install debootstrap."

    (found,) = containers(WANTED, why_not)
    assert found.severity is Severity.STOPS
    assert "apt-get install debootstrap" in f"{found.found} {found.cure}"


def test_up_refuses_before_anything_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machines = FakeMachines(tmp_path, monkeypatch)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with sentences.raises("containers.not-possible") as raised:
        machines.do("cloud-up", "{}", kind=CONTAINER)
    assert raised.value.exit_code == 3
    assert not machines.run.path.exists()


def test_a_cluster_that_is_up_keeps_its_kind_of_machines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_containers()
    machines = FakeMachines(tmp_path, monkeypatch)
    try:
        machines.do("cloud-up", "{}")
        assert read_isolation(machines.run.path) == PROCESS
        (machines.run.bucket / "loader.py").write_text("import time; time.sleep(300)")
        machines.launch("controller", role="controller")
        with sentences.raises("cluster.other-kind", "`./cluster down --stack test`"):
            machines.do("cloud-up", "{}", kind=CONTAINER)
    finally:
        end_cluster(machines.run)


def test_hierarchies_of_both_versions_are_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, unified = tmp_path / "mountinfo", tmp_path / "unified"
    unified.mkdir()
    (unified / "cgroup.controllers").write_text("")
    file.write_text(
        "30 24 0:26 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
        "31 24 0:27 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd,release_agent=/x\n"
        f"32 24 0:28 / {unified} rw - cgroup2 cgroup2 rw,nsdelegate\n"
        "33 24 0:28 / /proc rw - proc proc rw\n"
    )
    monkeypatch.setattr(cgroups, "MOUNTS", file)
    assert cgroups.hierarchies() == [unified, Path("/sys/fs/cgroup/systemd")]
    assert cgroups.old_controllers() == {"memory": Path("/sys/fs/cgroup/memory")}
    # Where version 2 has them, systemd hands them on.
    (unified / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
    assert cgroups.old_controllers() == {}


def test_the_stack_file_of_the_repository_is_such_a_cluster() -> None:
    from infra.config import load_file
    from infra.design import design as designed
    from infra.instance_types.catalog import catalog

    design = designed(load_file(ROOT / "Pulumi.local-machines.yaml"), catalog())
    assert design.isolation == CONTAINER
    assert [host.name for host in design.hosts] == ["controller", "login-0"]
    assert {(mount.path, mount.kind) for mount in design.mounts} == {("/home", "bind"), ("/apps", "bind")}
