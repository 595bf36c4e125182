"""Whether machines can be containers here, and what a person is told where they cannot."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from infra.doctor.finding import Severity
from infra.errors import UserError
from infra.local import image, packages, possible
from infra.local.cloud import groups, images, layers
from infra.local.cloud.kind import CONTAINER, PROCESS, read
from infra.local.diagnosis.machines import containers
from infra.local.upkeep import end_cluster
from infra.node.model import ClusterDesign
from tests.support.checkout import ROOT
from tests.support.containers import need_containers
from tests.support.doubles import design
from tests.support.fake_machines import FakeMachines

WANTED = design(machines="container")


@pytest.fixture
def able(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host on which machines boot: root's, with all programs, whose image is not made yet."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(packages, "missing_for_containers", list)
    monkeypatch.setattr(images, "recipe", lambda _suite=None: images.Recipe("bookworm", ()))
    monkeypatch.setattr(groups, "hierarchies", lambda: [Path("/")])
    monkeypatch.setattr(image, "there", lambda _design: False)


@pytest.mark.usefixtures("able")
def test_where_all_is_there_nothing_stands_against_it() -> None:
    assert possible.why_not(WANTED, lambda: "") is None


@pytest.mark.usefixtures("able")
def test_each_reason_names_its_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    def said() -> str:
        return possible.why_not(WANTED, lambda: "") or ""

    assert "--privileged" in (possible.why_not(WANTED, lambda: "mount: permission denied") or "")
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _path: _Full())
        assert "100 MiB are free there: make room" in said()
    with monkeypatch.context() as patch:
        patch.setattr(groups, "hierarchies", list)
        assert "mount -t cgroup2" in said()
    with monkeypatch.context() as patch:

        def none(_suite: str | None) -> images.Recipe:
            raise layers.ImageError("apt on this machine has no source of it")

        patch.setattr(images, "recipe", none)
        assert "apt on this machine has no source" in said()
    with monkeypatch.context() as patch:
        patch.setattr(packages, "missing_for_containers", lambda: ["debootstrap"])
        assert "need debootstrap: as root, apt-get install" in said()
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: 1000)
        assert "run as root (sudo)" in said()


class _Full:
    free = 100 << 20


def test_the_doctor_says_whether_it_is_possible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image, "there", lambda _design: True)
    (wanted,) = containers(WANTED, lambda _design: None)
    (other,) = containers(design(machines=PROCESS), lambda _design: None)
    assert [f.severity for f in (wanted, other)] == [Severity.FINE] * 2
    assert "a container that boots; its image is there" in wanted.found
    assert "is possible, too" in other.found


def test_what_is_not_possible_stops_only_those_who_want_it() -> None:
    def why_not(_design: ClusterDesign | None) -> str:
        return "machines that boot need debootstrap: as root, apt-get install debootstrap."

    (wanted,) = containers(WANTED, why_not)
    (other,) = containers(design(machines=PROCESS), why_not)
    assert wanted.severity is Severity.STOPS
    assert "apt-get install debootstrap" in f"{wanted.found} {wanted.cure}"
    assert other.severity is Severity.FINE
    assert "need debootstrap" in other.found


def test_up_refuses_before_anything_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machines = FakeMachines(tmp_path, monkeypatch)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(UserError, match="machines are processes then") as raised:
        machines.do("cloud-up", "{}", machines=CONTAINER)
    assert raised.value.exit_code == 3
    assert not machines.run.path.exists()


def test_a_cluster_that_is_up_keeps_its_kind_of_machines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_containers()
    machines = FakeMachines(tmp_path, monkeypatch)
    try:
        machines.do("cloud-up", "{}")
        assert read(machines.run.path) == PROCESS
        (machines.run.bucket / "loader.py").write_text("import time; time.sleep(300)")
        machines.launch("controller", role="controller")
        with pytest.raises(UserError, match="down --stack test"):
            machines.do("cloud-up", "{}", machines=CONTAINER)
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
    monkeypatch.setattr(groups, "MOUNTS", file)
    assert groups.hierarchies() == [unified, Path("/sys/fs/cgroup/systemd")]
    assert groups.old_controllers() == {"memory": Path("/sys/fs/cgroup/memory")}
    # Where version 2 has them, systemd hands them on.
    (unified / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
    assert groups.old_controllers() == {}


def test_the_stack_file_of_the_repository_is_such_a_cluster() -> None:
    from infra.config import load_file
    from infra.design import design as designed
    from infra.machines import catalog

    made = designed(load_file(ROOT / "Pulumi.local-machines.yaml"), catalog())
    assert made.machines == CONTAINER
    assert [host.name for host in made.hosts] == ["controller", "login-0"]
    assert {(mount.path, mount.kind) for mount in made.mounts} == {("/home", "bind"), ("/apps", "bind")}
