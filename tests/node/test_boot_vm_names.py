"""Tests of the step `hosts` on a cloud: the machine's name, /etc/hosts, and its name servers."""

from __future__ import annotations

import dataclasses
import socket
from pathlib import Path

import pytest

from node.bootstrap import machine_steps
from node.bootstrap.context import Context
from node.bootstrap.vm import resolver
from node.system import files
from tests.support import whole_boot
from tests.support.recorded import machine as make

DOMAIN = "t.slurm-stacks.internal"
OURS = [files.BEGIN, f"10.0.0.5 controller.{DOMAIN} controller", f"10.0.1.17 compute-0.{DOMAIN} compute-0",
        files.END]  # fmt: skip
CLOUDS = "# the cloud's\nnameserver 10.0.0.2\noptions edns0\nsearch eu-west-1.compute.internal\n"


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return whole_boot.name_is_noted(monkeypatch, "ip-10-0-1-17")


def etc(folder: Path) -> Path:
    return folder / "root" / "etc"


def moved(context: Context, address: str, **others: str) -> None:
    """Another address of the controller, and additional hosts."""
    known = {"controller": address, **others}
    site = dataclasses.replace(context.settings.site, controller_address=address, addresses=known)
    context.settings = dataclasses.replace(context.settings, site=site)


def test_the_name_lasts_and_others_lines_stay(tmp_path: Path, named: list[str]) -> None:
    context, _ = make(tmp_path)
    hosts = etc(tmp_path) / "hosts"
    hosts.write_text("127.0.0.1 localhost\n::1 ip6-localhost\n")
    for _ in range(2):
        assert (
            machine_steps.hosts(context)
            == f"compute-0.{DOMAIN} at 10.0.1.17; the controller knows the others"
        )
    assert named == ["compute-0"]
    assert (etc(tmp_path) / "hostname").read_text() == "compute-0\n"
    assert hosts.read_text().splitlines() == ["127.0.0.1 localhost", "::1 ip6-localhost", *OURS]
    cloud_init = (etc(tmp_path) / "cloud/cloud.cfg.d/99-slurm-stacks.cfg").read_text()
    assert "preserve_hostname: true\nmanage_etc_hosts: false\n" in cloud_init
    moved(context, "10.0.0.9", login_0="10.0.0.11")
    machine_steps.hosts(context)
    assert "10.0.0.5" not in hosts.read_text()
    assert {f"10.0.0.9 controller.{DOMAIN} controller", f"10.0.0.11 login_0.{DOMAIN} login_0"} <= set(
        hosts.read_text().splitlines()
    )


@pytest.mark.usefixtures("named")
def test_its_own_name_is_in_one_line_and_no_loopback_address(tmp_path: Path) -> None:
    """The lines are from Debian's images, its installer, and cloud-init's template. The last ones are from
    Google's guest agent and from a container."""
    context, _ = make(tmp_path)
    (etc(tmp_path) / "hosts").write_text(
        "127.0.0.1\tlocalhost\n"
        "127.0.1.1 compute-0.eu-west-1.compute.internal compute-0 # by cloud-init\n"
        "127.0.1.1 else compute-0\n"
        "::1 localhost compute-0\n"
        "# 127.0.1.1 compute-0\n\n"
        "10.0.1.17 compute-0.zone.c.project.internal compute-0\n"
        "10.0.1.17 compute-0\n10.0.1.18 compute-1\n10.0.0.5 controller\n"
    )
    machine_steps.hosts(context)
    assert (etc(tmp_path) / "hosts").read_text().splitlines() == [
        "127.0.0.1\tlocalhost",
        "127.0.1.1 else",
        "::1 localhost",
        "# 127.0.1.1 compute-0",
        "",
        "10.0.1.17 compute-0.zone.c.project.internal",
        "10.0.1.18 compute-1",
        *OURS,
    ]


@pytest.mark.usefixtures("named")
def test_the_controller_is_where_the_others_look_for_it(tmp_path: Path) -> None:
    context, _ = make(tmp_path, "controller", "controller")
    machine_steps.hosts(context)
    assert (etc(tmp_path) / "hosts").read_text().splitlines() == ["127.0.0.1 localhost", *OURS[:2], OURS[-1]]


@pytest.mark.usefixtures("named")
def test_systemd_resolved_routes_the_clusters_names_to_the_controller(tmp_path: Path) -> None:
    """The link is the one of Ubuntu's images."""
    context, run = make(tmp_path)
    stub = tmp_path / "root/run/systemd/resolve/stub-resolv.conf"
    stub.parent.mkdir(parents=True)
    stub.write_text("nameserver 127.0.0.53\n")
    (etc(tmp_path) / "resolv.conf").symlink_to("../run/systemd/resolve/stub-resolv.conf")
    for _ in range(2):
        machine_steps.hosts(context)
    lines = (etc(tmp_path) / "systemd/resolved.conf.d/slurm-stacks.conf").read_text().splitlines()
    assert lines[lines.index("[Resolve]") + 1 :][:2] == ["DNS=10.0.0.5", f"Domains={DOMAIN}"]
    assert {"LLMNR=no", "MulticastDNS=no"} <= set(lines), "else an unknown name is asked for in the network"
    assert (etc(tmp_path) / "resolv.conf").is_symlink()
    restart = "systemctl restart systemd-resolved.service"
    assert run.calls.count(restart) == 1, "not at a boot that changes nothing"
    moved(context, "10.0.0.9")
    machine_steps.hosts(context)
    assert run.calls.count(restart) == 2


@pytest.mark.usefixtures("named")
def test_without_it_the_controller_is_the_first_that_is_asked(tmp_path: Path) -> None:
    context, run = make(tmp_path)
    resolv = etc(tmp_path) / "resolv.conf"
    resolv.write_text(CLOUDS)
    for _ in range(2):
        machine_steps.hosts(context)
    assert resolv.read_text().splitlines() == [
        resolver.MARK,
        f"search {DOMAIN} eu-west-1.compute.internal",
        "options timeout:2",
        "nameserver 10.0.0.5",
        "nameserver 10.0.0.2",
        "# the cloud's",
        "options edns0",
    ]
    assert run.having("systemctl") == []


def test_a_machine_without_resolv_conf_gets_one_and_no_server_is_left_out_for_nothing() -> None:
    text = resolver.resolv_conf("", "10.0.0.5", DOMAIN)
    assert text.splitlines()[1:] == [f"search {DOMAIN}", "options timeout:2", "nameserver 10.0.0.5"]
    three = "".join(f"nameserver 10.0.0.{number}\n" for number in (1, 2, 3))
    servers = [
        line for line in resolver.resolv_conf(three, "10.0.0.5", DOMAIN).splitlines() if "names" in line
    ]
    assert servers == ["nameserver 10.0.0.5", "nameserver 10.0.0.1", "nameserver 10.0.0.2"], "three are asked"


def test_a_machine_says_where_the_cluster_reaches_it() -> None:
    assert resolver.address_towards("127.0.0.1") == "127.0.0.1"
    assert resolver.address_towards(socket.inet_ntoa(b"\x7f\x09\x01\x02")) == "127.0.0.1"
