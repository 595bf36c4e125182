"""topology.conf: any places give a tree that Slurm accepts, and the daemon changes it only when it has to."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.cloud import compute_v1 as gce
from hypothesis import given
from hypothesis import strategies as st

from node.design.folders import Folders
from node.design.model import Partition, Settings, Site
from node.elastic import topology as elastic_topology
from node.elastic.driver import LaunchGroup, Machine, MachineState
from node.elastic.drivers.ec2.errors import Ec2Error
from node.elastic.drivers.gce.driver import place
from node.elastic.reconfiguration import Reconfiguration
from node.elastic.topology import PAUSE_SECONDS, Topology
from node.slurm import hardware, topology
from node.slurm.conf import render
from node.slurm.configure import configure
from node.slurm.control import SlurmError
from node.slurm.hostlist import expand
from node.system import files
from tests.support import doubles
from tests.support.cloud_faults import Fault
from tests.support.doubles import FakeControl, FakeDriver, job, node
from tests.support.fake_ec2 import FakeEc2, fake_ec2
from tests.support.fake_gce_wire import as_json

FAR = Partition("far", "p4d.24xlarge", 2, 1000, 0, 5, topology=True)
NEAR = Partition("near", "p4d.24xlarge", 2, 1000, 0, 3, topology=True)
PLAIN = Partition("plain", "m5.large", 2, 1000, 0, 2)
DESIGN = doubles.design(FAR, NEAR, PLAIN)
NODES = [name for partition in DESIGN.partitions for name in partition.nodes()]
# Few words, so that places meet; some are names that Slurm or this project gives a meaning.
WORD = st.sampled_from(["nn-1", "nn-2", "nn-3", "cluster", "unplaced.far", "a,b", "[1-3]", "Ä b", "", "own"])
PLACES = st.dictionaries(
    st.sampled_from([*NODES, "gone-7"]), st.lists(WORD, max_size=4).map(tuple), max_size=len(NODES)
)
NAME = re.compile(r"[A-Za-z0-9_.-]+")


def read(text: str) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """The switches below each switch, and the nodes of each leaf."""
    switches: dict[str, list[str]] = {}
    leaves: dict[str, list[str]] = {}
    for line in text.splitlines():
        fields = dict(part.split("=", 1) for part in line.split(" "))
        name = fields.pop("SwitchName")
        assert NAME.fullmatch(name), line
        assert name not in switches.keys() | leaves.keys(), line
        ((kind, below),) = fields.items()
        (switches if kind == "Switches" else leaves)[name] = (
            below.split(",") if kind == "Switches" else expand(below)
        )
    return switches, leaves


@given(PLACES)
def test_any_places_give_one_tree_that_has_each_node_once(places: dict[str, topology.Place]) -> None:
    switches, leaves = read(topology.render(DESIGN, places))
    assert sorted(name for nodes in leaves.values() for name in nodes) == sorted(NODES)
    children = [child for below in switches.values() for child in below]
    assert len(children) == len(set(children))
    assert switches.keys() | leaves.keys() == {*children, topology.ROOT}
    above = {child: name for name, below in switches.items() for child in below}

    def path(name: str) -> list[str]:
        found = [name]
        while found[-1] in above:
            found.append(above[found[-1]])
            assert len(found) < 20
        return found

    assert all(path(name)[-1] == topology.ROOT for name in above)
    for name, nodes in leaves.items():
        told = {
            tuple(filter(None, places.get(node, ()))) if node not in PLAIN.nodes() else () for node in nodes
        }
        assert len(told) == 1
        assert name.startswith(f"{topology.UNKNOWN}.") or told != {()}


@given(PLACES)
def test_the_record_is_read_as_it_was_written(places: dict[str, topology.Place]) -> None:
    assert {str(k): tuple(v) for k, v in json.loads(topology.text(places)).items()} == places


def test_neighbours_share_a_leaf_and_the_rest_is_joined_above() -> None:
    places: dict[str, topology.Place] = {
        "far-0": ("nn-a", "nn-b", "nn-c"),
        "near-2": ("nn-a", "nn-b", "nn-c"),
        "far-1": ("nn-a", "nn-b", "nn-d"),
        "plain-0": ("nn-a", "nn-b", "nn-c"),
    }
    assert topology.render(DESIGN, places).splitlines() == [
        "SwitchName=cluster Switches=nn-a,unplaced.far,unplaced.near,unplaced.plain",
        "SwitchName=nn-a Switches=nn-b",
        "SwitchName=nn-b Switches=nn-c,nn-d",
        "SwitchName=nn-c Nodes=far-0,near-2",
        "SwitchName=nn-d Nodes=far-1",
        "SwitchName=unplaced.far Nodes=far-[2-4]",
        "SwitchName=unplaced.near Nodes=near-[0-1]",
        "SwitchName=unplaced.plain Nodes=plain-[0-1]",
    ]


def pooled(**more: Any) -> list[Partition]:
    return [
        Partition(f"train-{name}", "m5.large", 2, 1000, 0, 3, pool=name, **more) for name in ("a", "b", "c")
    ]


def test_nothing_joins_the_pools_of_a_partition_and_the_first_one_stands_last() -> None:
    # slurmctld of 22.05 takes the last one that has room (tests/cluster/test_pools_cluster.py).
    assert topology.render(doubles.design(*pooled(), PLAIN), {}).splitlines() == [
        "SwitchName=cluster Switches=unplaced.plain",
        "SwitchName=unplaced.plain Nodes=plain-[0-1]",
        "SwitchName=pool.train-c Nodes=train-c-[0-2]",
        "SwitchName=pool.train-b Nodes=train-b-[0-2]",
        "SwitchName=pool.train-a Nodes=train-a-[0-2]",
    ]
    assert topology.wanted(doubles.design(*pooled(), PLAIN))


def test_mixed_pools_and_a_single_one_need_no_switches() -> None:
    assert not topology.wanted(doubles.design(*pooled(mixed=True), PLAIN))
    assert not topology.wanted(doubles.design(pooled()[0], PLAIN))


def test_the_pools_of_a_partition_have_trees_of_the_same_level() -> None:
    places: dict[str, topology.Place] = {"train-b-0": ("nn-a", "nn-b")}
    assert topology.render(doubles.design(*pooled(topology=True)), places).splitlines() == [
        "SwitchName=pool.train-c Nodes=train-c-[0-2]",
        "SwitchName=pool.train-c.1 Switches=pool.train-c",
        "SwitchName=pool.train-c.2 Switches=pool.train-c.1",
        "SwitchName=pool.train-b Switches=nn-a,unplaced.train-b",
        "SwitchName=nn-a Switches=nn-b",
        "SwitchName=nn-b Nodes=train-b-0",
        "SwitchName=unplaced.train-b Nodes=train-b-[1-2]",
        "SwitchName=pool.train-a Nodes=train-a-[0-2]",
        "SwitchName=pool.train-a.1 Switches=pool.train-a",
        "SwitchName=pool.train-a.2 Switches=pool.train-a.1",
    ]


@given(PLACES)
def test_any_places_leave_each_pool_a_tree_of_its_own(places: dict[str, topology.Place]) -> None:
    pools = pooled(topology=True)
    for pool, former in zip(pools, (FAR, NEAR, PLAIN), strict=True):
        own = zip(former.nodes(), pool.nodes(), strict=False)
        places = places | {mine: places[name] for name, mine in own if name in places}
    design = doubles.design(*pools, FAR)
    switches, leaves = read(topology.render(design, places))
    assert sorted(n for ns in leaves.values() for n in ns) == sorted(
        n for p in design.partitions for n in p.nodes()
    )
    above = {child: name for name, below in switches.items() for child in below}
    tops: dict[str, set[int]] = {}
    for name, nodes in leaves.items():
        root, level = name, 0
        while root in above:
            root, level = above[root], level + 1
        whose = {p.name for node in nodes if (p := design.partition_of(node))}
        assert whose == {"far"} if root == topology.ROOT else len(whose) == 1, whose
        assert root == topology.ROOT or root.startswith(f"pool.{min(whose)}"), root
        tops.setdefault(root, set()).add(level)
    assert len({max(levels) for root, levels in tops.items() if root != topology.ROOT}) == 1


class Land:
    """A cluster whose nodes and places a test changes."""

    def __init__(self, lib: Path) -> None:
        self.control = FakeControl([node(name, "IDLE", "CLOUD", "POWERED_DOWN") for name in NODES])
        self.driver, self.now, self.lib = FakeDriver(), 0.0, lib
        self.reconfiguration = Reconfiguration(self.control, lib)
        self.kept = Topology(
            DESIGN,
            self.control,
            self.driver,
            lib,
            lambda: self.driver.machines,
            self.reconfiguration,
            lambda: self.now,
        )

    def up(self, name: str, *where: str) -> None:
        self.control.state[name] = node(name, "IDLE", "CLOUD")
        self.driver.machines.append(Machine(f"m-{name}", name, MachineState.RUNNING, self.now))
        self.driver.where[name] = where

    def off(self, name: str) -> None:
        self.control.state[name] = node(name, "IDLE", "CLOUD", "POWERED_DOWN")
        self.driver.machines = [m for m in self.driver.machines if m.node != name]

    def leaf(self, name: str) -> str:
        _, leaves = read((self.lib / topology.FILE).read_text())
        (found,) = [leaf for leaf, nodes in leaves.items() if name in nodes]
        return found


@pytest.fixture
def land(tmp_path: Path) -> Land:
    return Land(tmp_path)


def test_slurm_reads_the_file_when_settled_places_have_changed_and_seldom(land: Land) -> None:
    assert not land.kept.once()
    land.up("far-0", "nn-1", "nn-2")
    land.control.state["near-0"] = node("near-0", "ALLOCATED", "CLOUD", "POWERING_UP")
    assert not land.kept.once(), "a node starts"
    land.control.state["near-0"] = node("near-0", "ALLOCATED", "CLOUD")
    assert not land.kept.once(), "its machine is not in the list yet"
    land.up("near-0", "nn-1", "nn-2")
    land.control.state["plain-0"] = node("plain-0", "ALLOCATED", "CLOUD", "POWERING_UP")
    assert land.kept.once(), "the partition without topology does not matter"
    assert land.leaf("far-0") == land.leaf("near-0") == "nn-2"
    land.off("near-0")
    land.up("far-1", "nn-3")
    assert not land.kept.once(), "too soon"
    land.now += PAUSE_SECONDS
    assert land.kept.once()
    assert (land.leaf("near-0"), land.leaf("far-1")) == ("unplaced.near", "nn-3")
    land.now += PAUSE_SECONDS
    assert not land.kept.once(), "nothing has changed"
    assert land.control.calls == [("reconfigure",)] * 2


def test_what_slurm_did_not_read_is_written_again(land: Land, monkeypatch: pytest.MonkeyPatch) -> None:
    land.up("far-0", "nn-1")

    def refuse() -> None:
        raise SlurmError(["scontrol"], 1, "no")

    with monkeypatch.context() as broken:
        broken.setattr(land.control, "reconfigure", refuse)
        with pytest.raises(SlurmError):
            land.kept.once()
    land.now += PAUSE_SECONDS
    assert land.kept.once()
    assert topology.read(land.lib) == {"far-0": ("nn-1",)}
    (land.lib / topology.RECORD).write_text("{")
    assert topology.read(land.lib) == {}
    assert elastic_topology.Topology(
        DESIGN, land.control, land.driver, land.lib, lambda: land.driver.machines, land.reconfiguration
    ).once()


def test_a_job_that_starts_elsewhere_delays_the_reading_and_asks_the_cloud_nothing(land: Land) -> None:
    (land.lib / hardware.RECORD).write_text(hardware.text(hardware.Record("slurm-wlm 23.11.4")))
    land.up("far-0", "nn-1")
    land.control.queue[7] = job(7, "CONFIGURING", nodes=("plain-0",))
    assert not land.kept.once()
    assert not (land.lib / topology.FILE).exists()
    land.control.queue.clear()
    assert land.kept.once(), "at the next look, not after the pause"
    assert land.control.calls == [("reconfigure",)]


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder whose path is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="slurm-test-", dir="/tmp") as folder:
        yield Path(folder)


def test_a_start_of_slurmctld_keeps_the_places_where_the_daemon_may_write(short: Path) -> None:
    site = Site(str(short), "u", "localhost", "127.0.0.1", 7000, 7001)
    settings = Settings(DESIGN, site)
    etc, lib = (Path(str(getattr(Folders(settings), name))) for name in ("etc", "elastic"))
    for folder in (etc, lib):
        folder.mkdir(parents=True)
    (lib / topology.RECORD).write_text(topology.text({"far-3": ("nn-9",)}))
    configure(settings, "slurm 22.05.8", files.write)
    assert (etc / topology.FILE).readlink() == lib / topology.FILE
    assert "SwitchName=nn-9 Nodes=far-3\n" in (lib / topology.FILE).read_text()
    assert "TopologyPlugin=topology/tree\n" in (etc / "slurm.conf").read_text()
    plain = Settings(doubles.design(PLAIN), site)
    assert "topology" not in "".join(render(plain, (22, 5))).lower()


@pytest.fixture
def fake() -> Iterator[FakeEc2]:
    with fake_ec2() as made:
        yield made


def test_ec2_is_asked_for_a_hundred_instances_at_once_and_for_all_pages(fake: FakeEc2) -> None:
    compute = Partition("compute", "c4.2xlarge", 8, 100, 0, 130, topology=True)
    design = doubles.design(compute, provider="aws", isolation="vm")
    driver = fake.driver(Settings(design, Site("/", "slurm", "head", "10.0.0.1", **fake.site())))
    nodes = tuple(compute.nodes()[:120])
    driver.launch(LaunchGroup("compute", nodes, True, "t"))
    fake.network = lambda i: () if i.ami_launch_index == 7 else ("nn-a", f"nn-{i.ami_launch_index % 3}")
    machines = driver.list()
    fake.set_state(machines[0].id, "shutting-down")
    fake.forget()
    told = driver.places(machines)
    silent = {machines[0].node, "compute-7"}
    assert told == {n: ("nn-a", f"nn-{int(n.split('-')[1]) % 3}") for n in nodes if n not in silent}
    asked = [len(call.listed("InstanceId")) for call in fake.calls]
    assert asked == [100] * 5 + [20]
    fake.faults = [Fault("DescribeInstanceTopology", "UnauthorizedOperation", 403)]
    with pytest.raises(Ec2Error, match="UnauthorizedOperation"):
        driver.places(machines)


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({"cluster": "c", "block": "b", "subblock": "s", "host": "h"}, ("c", "b", "s")),
        ({"cluster": "c", "subblock": "s"}, ("c",)),
        ({"block": "b", "host": "h"}, ()),
        ({}, ()),
    ],
)
def test_compute_engines_place_ends_where_something_is_missing(
    told: dict[str, str], expected: topology.Place
) -> None:
    where = gce.ResourceStatusPhysicalHostTopology(**told)
    instance = as_json(gce.Instance(resource_status=gce.ResourceStatus(physical_host_topology=where)))
    assert place(instance) == expected
    assert place({}) == ()
