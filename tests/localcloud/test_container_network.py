"""Addresses of container machines, and the site in such a cluster's settings."""

from __future__ import annotations

import dataclasses
import ipaddress
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.program import locations
from infra.program.stack import Stack
from localcloud import isolation
from localcloud.network import PREFIX, addresses, hosts_text, read_hosts
from localcloud.nspawn import link_of
from node.design.model import CONTAINER, ClusterDesign, Host, Partition
from node.design.sites import LocalSite
from operations.local.run_directory import RunDirectory


def design(*sizes: int, login: int = 0) -> ClusterDesign:
    head = Host("controller", "controller", ("controller",), "local.small", 0)
    return ClusterDesign(
        name="t",
        stack="test",
        provider="local",
        isolation="container",
        hosts=(head, *(Host(f"login-{i}", "login", ("login",), "local.small", 0) for i in range(login))),
        partitions=tuple(Partition(f"p{i}", "local.small", 1, 500, 0, size) for i, size in enumerate(sizes)),
        mounts=(),
    )


def test_everybody_has_a_place_of_its_own() -> None:
    given = addresses(design(2, 1, login=2), {})
    assert given == {
        "controller": "10.99.0.2", "login-0": "10.99.0.10", "login-1": "10.99.0.11",
        "p0-0": "10.99.1.0", "p0-1": "10.99.1.1", "p1-0": "10.99.1.2",
    }  # fmt: skip


@given(
    before=st.lists(st.integers(1, 30), min_size=1, max_size=4),
    after=st.lists(st.integers(1, 30), min_size=1, max_size=4),
)
def test_machines_that_run_keep_their_addresses_whatever_is_added(
    before: list[int], after: list[int]
) -> None:
    first = addresses(design(*before), {})
    second = addresses(design(*after), first)
    assert len(set(second.values())) == len(second)
    assert all(second[name] == first[name] for name in first.keys() & second.keys())
    assert all(ipaddress.IPv4Address(address) in PREFIX for address in second.values())


def test_the_largest_cluster_has_room() -> None:
    given = addresses(design(5000, 5000, login=10), {})
    assert len(set(given.values())) == 10_011
    assert all(ipaddress.IPv4Address(address) in PREFIX for address in given.values())


def test_the_clouds_names_are_read_as_they_were_written(tmp_path: Path) -> None:
    given = addresses(design(3, login=1), {})
    (tmp_path / "hosts").write_text(hosts_text(given))
    assert read_hosts(tmp_path / "hosts") == given
    assert read_hosts(tmp_path / "nothing") == {}


def test_a_cable_has_a_name_that_the_kernel_takes() -> None:
    names = {link_of(f"m-{number:012x}") for number in range(1000)}
    assert len(names) == 1000
    assert max(map(len, names)) <= 15


def test_settings_of_machines_with_a_root_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locations, "run_root", lambda: tmp_path / "runs")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    run = RunDirectory.make(Stack(tmp_path, "test"))
    isolation.write_isolation(run.path, CONTAINER)
    assert run.containers

    site = run.settings(design(2)).site
    assert (site.root, site.apps, site.shared) == ("/", "/apps", "/home")
    assert (site.controller_host, site.controller_address) == ("controller", "10.99.0.2")
    assert (site.slurmctld_port, site.slurmd_port) == (6817, 6818)
    # The paths are those of the machine: the settings have none of this host's paths.
    assert site.of(LocalSite).socket == "/srv/slurm-stacks/cloud/agent.sock"
    assert str(tmp_path) not in json.dumps(dataclasses.asdict(site))
    assert run.agent_socket == run.cloud / "api" / "agent.sock"
    assert read_hosts(run.hosts)["p0-1"] == "10.99.1.1"
    # A later `up` with another partition in front changes no address.
    wider = design(2, 3)
    renamed = dataclasses.replace(
        wider, partitions=(dataclasses.replace(wider.partitions[1], name="a"), wider.partitions[0])
    )
    run.settings(renamed)
    assert read_hosts(run.hosts)["p0-1"] == "10.99.1.1"
