"""Whether machines can be namespaces here, and what a person is told where they cannot."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from infra.doctor.finding import Severity
from infra.errors import UserError
from infra.local import possible
from infra.local.cloud import cgroups
from infra.local.cloud.kind import NAMESPACE, PROCESS, read
from infra.local.diagnosis.machines import namespaces
from infra.local.upkeep import end_cluster
from tests.support.checkout import ROOT
from tests.support.fake_machines import FakeMachines
from tests.support.namespace_run import need_namespaces


def refusal() -> str:
    with pytest.raises(UserError) as raised:
        possible.way()
    assert raised.value.exit_code == 3
    return str(raised.value)


@pytest.mark.parametrize(("index", "value"), [(0, "0"), (1, "0"), (2, "1")])
def test_the_setting_that_forbids_it_is_named_with_its_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, index: int, value: str
) -> None:
    file = tmp_path / "setting"
    file.write_text(f"{value}\n")
    _, forbids, cure = possible.SWITCHES[index]
    monkeypatch.setattr(possible, "SWITCHES", ((str(file), forbids, cure),))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(possible, "_probe", lambda **_: "unshare failed: Operation not permitted")
    text = refusal()
    assert f"sysctl -w {cure}" in text
    assert str(file) in text
    assert "machines are processes" in text


def test_a_kernel_that_says_no_is_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(possible, "SWITCHES", ())
    monkeypatch.setattr(possible, "_probe", lambda **_: "unshare failed: Operation not permitted")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "(unshare failed: Operation not permitted). Run as root." in refusal()
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert "--privileged" in refusal()


def test_a_missing_program_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name, path: None if name == "ip" else f"/bin/{name}")
    assert "the program ip" in refusal()
    assert "iproute2" in refusal()


def test_the_doctor_says_which_way_it_is() -> None:
    (root,) = namespaces(NAMESPACE, lambda: "root")
    (user,) = namespaces(NAMESPACE, lambda: "rootless")
    (other,) = namespaces(PROCESS, lambda: "root")
    assert [f.severity for f in (root, user, other)] == [Severity.FINE] * 3
    assert "as root" in root.found
    assert "no cgroups" in user.found
    assert "possible here" in other.found


def test_what_is_not_possible_stops_only_those_who_want_it() -> None:
    def way() -> str:
        raise UserError("this kernel lets no ordinary user make namespaces (x is 0). Run as root.")

    (wanted,) = namespaces(NAMESPACE, way)
    (other,) = namespaces(PROCESS, way)
    assert wanted.severity is Severity.STOPS
    assert wanted.cure == "Run as root."
    assert other.severity is Severity.FINE
    assert "x is 0" in other.found


def test_up_refuses_before_anything_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machines = FakeMachines(tmp_path, monkeypatch)
    monkeypatch.setattr(possible, "_probe", lambda **_: "no")
    with pytest.raises(UserError):
        machines.do("cloud-up", "{}", machines=NAMESPACE)
    assert not machines.run.path.exists()


def test_a_cluster_that_is_up_keeps_its_kind_of_machines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_namespaces()
    machines = FakeMachines(tmp_path, monkeypatch)
    try:
        machines.do("cloud-up", "{}")
        assert read(machines.run.path) == PROCESS
        (machines.run.bucket / "loader.py").write_text("import time; time.sleep(300)")
        machines.launch("controller", role="controller")
        with pytest.raises(UserError, match="down --stack test"):
            machines.do("cloud-up", "{}", machines=NAMESPACE)
    finally:
        end_cluster(machines.run)


def test_hierarchies_of_both_versions_are_known(tmp_path: Path) -> None:
    file = tmp_path / "mountinfo"
    file.write_text(
        f"30 24 0:26 / {tmp_path} rw,relatime - cgroup cgroup rw,memory\n"
        f"31 24 0:27 / {tmp_path} rw - cgroup cgroup rw,xattr,name=systemd,release_agent=/x\n"
        "32 24 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n"
        "33 24 0:28 / /proc rw - proc proc rw\n"
    )
    found = cgroups.hierarchies(file)
    options = [(h.kind, h.options) for h in found if h.kind == "cgroup"]
    assert options == [("cgroup", "memory"), ("cgroup", "name=systemd")]
    assert [h.name for h in found if h.kind == "cgroup2"] in ([""], [])


def test_the_stack_file_of_the_repository_is_such_a_cluster() -> None:
    from infra.config import load_file
    from infra.design import design
    from infra.machines import catalog

    made = design(load_file(ROOT / "Pulumi.local-namespaces.yaml"), catalog())
    assert made.machines == NAMESPACE
    assert [host.name for host in made.hosts] == ["controller", "login-0"]
    assert {(mount.path, mount.kind) for mount in made.mounts} == {("/home", "bind"), ("/apps", "bind")}
