"""Tests of the rendered configuration: its content per release and kind of site, and what is refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest

from node.design import sharing
from node.design.accelerators import Accelerator
from node.design.model import (
    AwsPartition,
    ClusterDesign,
    Host,
    Partition,
    Settings,
    SharedPartition,
    Site,
    SlurmSettings,
)
from node.design.sites import LocalSite
from node.design.storage import Mount
from node.slurm.addressing import ports_needed, slurmd_addresses, slurmd_ports
from node.slurm.conf import PROLOG_MARGIN, check_paths, designed, render
from node.slurm.hardware import Hardware, Lines, device_files
from node.slurm.hostlist import expand
from node.slurm.version import Version

VERSIONS: tuple[Version, ...] = ((22, 5), (23, 11), (24, 11), (25, 11))
ISOLATIONS = ("process", "container", "vm")
PROGRAMS = {
    "ResumeProgram": "resume",
    "ResumeFailProgram": "resume-fail",
    "SuspendProgram": "suspend",
    "PrologSlurmctld": "prolog-slurmctld",
    "EpilogSlurmctld": "epilog-slurmctld",
}


def part(name: str = "cpu", low: int = 0, high: int = 10, **more: Any) -> Partition:
    return Partition(name, more.pop("instance_type", "m5.xlarge"), 4, 15000, low, high, **more)


FLEET = (
    part(default=True),
    part("static", 2, 5, spot=True, time_limit="1-00:00:00"),
    part(
        "v100",
        0,
        2,
        accelerator=Accelerator("v100", 8),
        exclusive=True,
        aws=AwsPartition(efa=1),
        instance_type="p3dn 24*xlarge",
    ),
    part("t4", 0, 1, accelerator=Accelerator("t4", 1)),
    part("trn1", 0, 2, accelerator=Accelerator("trainium", 16, gres="neuron")),
)
SIMULATED = (
    part(default=True),
    part("v100", 1, 3, accelerator=Accelerator("v100", 4, simulated=True)),
    part("one", 0, 1, accelerator=Accelerator("a10g", 1, simulated=True)),
)


def settings(
    isolation: str = "vm",
    partitions: tuple[Partition, ...] = FLEET,
    slurm: SlurmSettings | None = None,
    **site: Any,
) -> Settings:
    own = isolation != "process"
    design = ClusterDesign(
        name="demo",
        stack="demo",
        provider="aws" if isolation == "vm" else "local",
        isolation=isolation,
        hosts=(Host("head", "controller", ("controller",), "m5.xlarge", 100),),
        partitions=partitions,
        mounts=(),
        slurm=slurm or SlurmSettings(),
    )
    values: dict[str, Any] = {
        "root": "/" if own else "/tmp/slurm-stacks-0/abcdef",
        "user": "slurm" if own else "ada",
        "controller_host": "head" if own else "localhost",
        "controller_address": "10.0.0.4" if own else "127.0.0.1",
        "slurmctld_port": 6817 if own else 16817,
        "slurmd_port": 6818 if own else 17000,
    }
    return Settings(design, Site(**{**values, **site}))


def options(text: str) -> dict[str, str]:
    """Returns the options of slurm.conf that occur once. A key that occurs twice is an error."""
    pairs = [line.split("=", 1) for line in text.splitlines() if line and not line.startswith("#")]
    single = [(k, v) for k, v in pairs if k not in ("NodeName", "PartitionName")]
    assert len(dict(single)) == len(single)
    return dict(single)


def lines(text: str, key: str) -> Iterator[dict[str, str]]:
    for line in text.splitlines():
        if line.startswith(f"{key}="):
            yield dict(item.split("=", 1) for item in line.split(" "))


def conf(version: Version = (22, 5), **more: Any) -> dict[str, str]:
    return options(render(settings(**more), version)["slurm.conf"])


@pytest.mark.parametrize(
    ("name", "spelled"),
    [
        ("ada", "ada"),
        ("first.last", "first.last"),
        ("user@realm.example", "user@realm.example"),
        ("a_very_long_name_of_more_than_32_characters", "a_very_long_name_of_more_than_32_characters"),
        ("4711", "4711"),
        ("DOM\\ada", "DOM\\\\ada"),
        ("Ada Lovelace", '"Ada Lovelace"'),
        ("DOM\\Ada #1", '"DOM\\\\Ada \\#1"'),
        ('a"b', 'a"b'),
    ],
)
def test_every_users_name_stands_in_the_file(name: str, spelled: str) -> None:
    """Slurm takes a backslash before a character away (`_strip_escapes` in its parse_config.c)."""
    found = conf(isolation="process", user=name)
    assert (found["SlurmUser"], found["SlurmdUser"]) == (spelled, spelled)


def test_slurmctld_listens_on_the_loopback_alone_where_its_host_is_called_localhost() -> None:
    assert conf(isolation="process", cloud=LocalSite(loopback_only=True))["CommunicationParameters"] == (
        "NoCtldInAddrAny"
    )
    assert "CommunicationParameters" not in conf(isolation="process")
    assert "CommunicationParameters" not in conf()


def test_slurm_has_both_kinds_of_addresses_where_the_host_has() -> None:
    """With IPv4 alone its `get_addr_info` finds nothing on a host without a network."""
    local = LocalSite(loopback_only=True, ipv6=True)
    assert conf(isolation="process", cloud=local)["CommunicationParameters"] == "EnableIPv6,NoCtldInAddrAny"
    assert conf(isolation="process", cloud=LocalSite(ipv6=True))["CommunicationParameters"] == "EnableIPv6"


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_everywhere(isolation: str, version: Version) -> None:
    files = render(settings(isolation), version)
    assert set(files) == {"slurm.conf", "gres.conf", "cgroup.conf"}
    assert all(
        text.startswith("# Rendered by slurm-stacks") and text.endswith("\n") for text in files.values()
    )
    found = options(files["slurm.conf"])
    assert found["ClusterName"] == "demo"
    # There is one call per request, whatever its size, so that a job's nodes are never split.
    assert (found["ResumeRate"], found["SuspendRate"]) == ("0", "0")
    assert "idle_on_node_suspend" in found["SlurmctldParameters"]
    assert found["SelectType"] == "select/cons_tres"
    assert found["PriorityType"] == "priority/basic"
    assert found["AccountingStorageType"] == "accounting_storage/none"
    assert found["JobRequeue"] == "1"
    assert found["ReturnToService"] == "2"
    assert found["DebugFlags"] == "Power"
    for key, program in PROGRAMS.items():
        assert found[key].endswith(f"/current/bin/{program}")


@pytest.mark.parametrize("version", VERSIONS)
def test_only_releases_that_need_the_epilog_run_it_at_each_jobs_end(version: Version) -> None:
    text = render(settings(), version, has_epilog=False)["slurm.conf"]
    assert "EpilogSlurmctld" not in text
    with_it = render(settings(), version)["slurm.conf"].splitlines()
    assert [line for line in with_it if not line.startswith("EpilogSlurmctld=")] == text.splitlines()


def test_the_prolog_may_wait_longer_than_a_node_may_boot() -> None:
    found = conf(slurm=SlurmSettings(resume_timeout=900, suspend_time=120, suspend_timeout=60))
    assert int(found["PrologEpilogTimeout"]) == 900 + PROLOG_MARGIN
    assert (found["ResumeTimeout"], found["SuspendTime"], found["SuspendTimeout"]) == ("900", "120", "60")


@pytest.mark.parametrize(
    ("version", "isolation", "has", "lacks"),
    [
        ((22, 5), "vm", ["cloud_reg_addrs", "enable_configless"], ["cloud_dns"]),
        ((23, 11), "vm", ["enable_configless"], ["cloud_reg_addrs", "cloud_dns"]),
        ((24, 11), "vm", ["enable_configless"], ["cloud_reg_addrs", "cloud_dns"]),
        ((22, 5), "process", ["cloud_dns"], ["cloud_reg_addrs", "enable_configless"]),
        ((24, 11), "process", ["cloud_dns"], ["cloud_reg_addrs", "enable_configless"]),
    ],
)
def test_how_addresses_are_learned(
    version: Version, isolation: str, has: list[str], lacks: list[str]
) -> None:
    found = conf(version, isolation=isolation)["SlurmctldParameters"].split(",")
    assert set(has) <= set(found)
    assert not set(lacks) & set(found)


def test_a_site_with_names_in_dns() -> None:
    found = conf(cloud_dns=True)["SlurmctldParameters"].split(",")
    assert "cloud_dns" in found
    assert "cloud_reg_addrs" not in found


def test_nodes_that_are_off_are_shown() -> None:
    assert conf((22, 5))["PrivateData"] == "cloud"
    assert "PrivateData" not in conf((23, 11))
    assert "PrivateData" not in conf((24, 11))


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_slurmctlds_metrics_are_open_where_only_machines_of_the_cluster_reach_it(isolation: str) -> None:
    """On process machines every user of this host reaches its port, so HTTP is off there."""
    assert render(settings(isolation), (24, 11))["slurm.conf"].count("etrics") == 0
    found = conf((25, 11), isolation=isolation)
    process = isolation == "process"
    assert found.get("MetricsType") == (None if process else "metrics/openmetrics")
    assert ("disable_http" in found.get("CommunicationParameters", "")) == process
    assert "PrivateData" not in found, "Slurm would ask for a token then"


def test_a_newer_release_than_any_known_is_as_the_newest() -> None:
    def body(version: Version) -> list[str]:
        return render(settings(), version)["slurm.conf"].splitlines()[1:]

    assert body((26, 5)) == body((25, 11)) != body((24, 11))
    with pytest.raises(ValueError, match="too old"):
        render(settings(), (21, 8))


def test_process_mode() -> None:
    found = conf(isolation="process")
    assert (found["SlurmUser"], found["SlurmdUser"]) == ("ada", "ada")
    assert found["SlurmctldHost"] == "localhost(127.0.0.1)"
    assert found["AuthInfo"].startswith("socket=/tmp/slurm-stacks-0/abcdef/run/munge.sock,")
    assert (found["ProctrackType"], found["TaskPlugin"]) == ("proctrack/linuxproc", "task/none")
    assert found["SelectTypeParameters"] == "CR_CPU_Memory"
    assert found["TmpFS"] == "/tmp/slurm-stacks-0/abcdef/spool/%n"
    assert found["SlurmdParameters"] == "config_overrides"
    for key in ("SlurmdSpoolDir", "SlurmdPidFile", "SlurmdLogFile"):
        assert "%n" in found[key], "all nodes share a file system"
    assert "SlurmdPort" not in found


def test_own_machines() -> None:
    found = conf()
    assert found["SlurmUser"] == "slurm"
    assert "SlurmdUser" not in found
    assert found["SlurmctldHost"] == "head(10.0.0.4)"
    assert "socket" not in found["AuthInfo"]
    assert (found["SlurmctldPort"], found["SlurmdPort"]) == ("6817", "6818")
    assert (found["ProctrackType"], found["TaskPlugin"]) == ("proctrack/cgroup", "task/affinity,task/cgroup")
    assert found["SelectTypeParameters"] == "CR_CPU_Memory"
    assert "config_overrides" not in found.values(), "a machine smaller than its snapshot says must be seen"
    assert not any("%n" in value for value in found.values())
    assert found["TreeWidth"] == "65533"
    # EFA locks memory, so a job must not have the limit of a login shell.
    assert found["PropagateResourceLimitsExcept"] == "MEMLOCK"


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_node_lines_cover_the_design(isolation: str) -> None:
    text = render(settings(isolation), (22, 5))["slurm.conf"]
    nodes = list(lines(text, "NodeName"))
    names = [name for node in nodes for name in expand(node["NodeName"])]
    assert sorted(names) == sorted(name for p in FLEET for name in p.nodes())
    assert len(names) == len(set(names))
    assert {node["State"] for node in nodes} == {"CLOUD"}
    by_name = {node["NodeName"]: node for node in nodes}
    assert (by_name["cpu-[0-9]"]["CPUs"], by_name["cpu-[0-9]"]["RealMemory"]) == ("4", "15000")
    assert by_name["v100-[0-1]"]["Gres"] == "gpu:v100:8"
    assert by_name["t4-0"]["Gres"] == "gpu:t4:1"
    assert by_name["trn1-[0-1]"]["Gres"] == "neuron:trainium:16"
    assert by_name["v100-[0-1]"]["Feature"] == "p3dn_24_xlarge,ondemand,v100,efa"
    assert by_name["static-[0-1]"]["Feature"] == "m5.xlarge,spot"
    assert options(text)["GresTypes"] == "gpu,neuron"


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_each_cpu_is_a_core_of_a_socket(isolation: str) -> None:
    """With ThreadsPerCore=2 slurmctld gives a core to one job, and a node runs half as many."""
    fleet = (part(), part("two", sockets=2))
    found = list(lines(render(settings(isolation, fleet), (22, 5))["slurm.conf"], "NodeName"))
    shapes = [(n["CPUs"], n["Sockets"], n["CoresPerSocket"], n["ThreadsPerCore"]) for n in found]
    assert shapes == [("4", "1", "4", "1"), ("4", "2", "2", "1")]


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_temporary_disk_is_said_where_it_is_known(isolation: str) -> None:
    fleet = (part(tmp_disk_mib=37888), part("unknown"))
    found = list(lines(render(settings(isolation, fleet), (22, 5))["slurm.conf"], "NodeName"))
    assert [node.get("TmpDisk") for node in found] == ["37888", None]


def test_a_local_scratch_has_the_temporary_files() -> None:
    own = settings("vm")
    scratch = Mount("/local_scratch", "nvme", ("compute",))
    there = dataclasses.replace(own, design=dataclasses.replace(own.design, mounts=(scratch,)))
    assert options(render(there, (22, 5))["slurm.conf"])["TmpFS"] == "/local_scratch"
    assert "TmpFS" not in options(render(own, (22, 5))["slurm.conf"])  # /tmp is Slurm's default


def test_static_nodes_are_taken_first_and_stay() -> None:
    text = render(settings(), (22, 5))["slurm.conf"]
    weight = {node["NodeName"]: int(node["Weight"]) for node in lines(text, "NodeName")}
    assert weight["static-[0-1]"] < weight["static-[2-4]"]
    assert options(text)["SuspendExcNodes"] == "static-[0-1]"
    assert "SuspendExcNodes" not in conf(partitions=(part(),))


def test_partition_lines() -> None:
    found = {
        line["PartitionName"]: line
        for line in lines(render(settings(), (22, 5))["slurm.conf"], "PartitionName")
    }
    assert list(found) == [p.name for p in FLEET]
    assert found["cpu"]["Nodes"] == "cpu-[0-9]"
    assert [name for name, line in found.items() if line["Default"] == "YES"] == ["cpu"]
    assert [name for name, line in found.items() if line["OverSubscribe"] == "EXCLUSIVE"] == ["v100"]
    assert (found["cpu"]["MaxTime"], found["static"]["MaxTime"]) == ("INFINITE", "1-00:00:00")


def test_pools_are_one_partition_and_wanted_in_their_order() -> None:
    pools = (
        part("train-spot", 1, 3, pool="spot", spot=True, default=True),
        part("train-od", 0, 2, pool="od", default=True, settings={"PriorityTier": "7"}, weight=20),
    )
    text = render(settings(partitions=(*pools, part())), (24, 11))["slurm.conf"]
    weight = {node["NodeName"]: int(node["Weight"]) for node in lines(text, "NodeName")}
    assert weight == {"train-spot-0": 1, "train-spot-[1-2]": 10, "train-od-[0-1]": 20, "cpu-[0-9]": 10}
    # 22.05 ranks nodes by their lines (tests/node/test_pool_submissions_cluster.py).
    former = list(lines(render(settings(partitions=(*pools, part())), (22, 5))["slurm.conf"], "NodeName"))
    alone = [f"train-spot-{n}" for n in range(3)] + ["train-od-0", "train-od-1"]
    assert [node["NodeName"] for node in former] == [*alone, "cpu-[0-9]"]
    assert [node["Weight"] for node in former] == ["1", "10", "10", "20", "20", "10"]
    whole, other = lines(text, "PartitionName")
    assert (whole["PartitionName"], whole["Nodes"], whole["Default"]) == (
        "train",
        "train-od-[0-1],train-spot-[0-2]",
        "YES",
    )
    assert other["PartitionName"] == "cpu"
    assert options(text)["TopologyPlugin"] == "topology/tree"


def test_a_partition_with_the_nodes_of_another_is_a_line_with_the_same_nodes() -> None:
    pools = (part("train-spot", 1, 3, pool="spot", default=True), part("train-od", 0, 2, pool="od"))
    ours = settings(partitions=(*pools, part()))
    urgent = SharedPartition("urgent", "train", "01:00:00", exclusive=True, settings={"PriorityTier": "9"})
    ours = dataclasses.replace(ours, design=dataclasses.replace(ours.design, shared_partitions=(urgent,)))
    text = render(ours, (22, 5))["slurm.conf"]
    found = {line["PartitionName"]: line for line in lines(text, "PartitionName")}
    assert list(found) == ["train", "cpu", "urgent"]
    whole, shared = found["train"], found["urgent"]
    assert shared["Nodes"] == whole["Nodes"] == "train-od-[0-1],train-spot-[0-2]"
    assert shared["DefMemPerCPU"] == whole["DefMemPerCPU"]
    assert (shared["MaxTime"], shared["OverSubscribe"], shared["Default"]) == ("01:00:00", "EXCLUSIVE", "NO")
    assert (shared["PriorityTier"], whole.get("PriorityTier")) == ("9", None)
    assert designed(ours).partitions["urgent"]["PriorityTier"] == "9", "nobody has changed it"
    topology = render(ours, (22, 5))["topology.conf"]
    assert topology.count("train-od-[0-1]") == topology.count("train-spot-[0-2]") == 1
    closed = render(ours, (22, 5), Lines(closed=frozenset({"train", "urgent"})))["slurm.conf"]
    assert [line["State"] for line in lines(closed, "PartitionName")] == ["DOWN", "UP", "DOWN"]


def test_a_node_has_the_features_of_the_stack_file_beside_its_own() -> None:
    """They are not hardware: a node that keeps its former line, as it has jobs, has the new ones at once."""
    partition = part(features=("fast_disk", "spot"), weight=7, spot=True)
    old = Hardware(1, 1000, None, ("old.type", "ondemand"))
    text = render(settings(partitions=(partition,)), (22, 5), Lines({"cpu-0": old}))["slurm.conf"]
    first, others = lines(text, "NodeName")
    assert first["Feature"] == "old.type,ondemand,fast_disk,spot"
    assert others["Feature"] == f"{partition.instance_type},spot,fast_disk"
    assert (first["Weight"], others["Weight"]) == ("7", "7")


def test_a_partition_that_grows_moves_no_others_ports() -> None:
    ours = settings("process")
    before = slurmd_ports(ours)
    first, *others = ours.design.partitions
    grown = (dataclasses.replace(first, max=first.max + 1), *others)
    after = slurmd_ports(dataclasses.replace(ours, design=dataclasses.replace(ours.design, partitions=grown)))
    assert {node: after[node] for node in before} == before
    assert len(set(after.values())) == len(before) + 1


def test_ports_are_each_ones_own_and_as_rendered() -> None:
    ours = settings("process")
    ports = slurmd_ports(ours)
    assert len(set(ports.values())) == sum(p.max for p in FLEET)
    assert min(ports.values()) == 17000
    assert max(ports.values()) < 17000 + ports_needed(ours.design)
    rendered: dict[str, int] = {}
    for node in lines(render(ours, (22, 5))["slurm.conf"], "NodeName"):
        assert (node["NodeHostname"], node["NodeAddr"]) == ("localhost", "127.0.0.1")
        port = node["Port"].strip("[]")
        first, _, last = port.partition("-")
        names = expand(node["NodeName"])
        numbers = range(int(first), int(last or first) + 1)
        rendered |= dict(zip(names, numbers, strict=True))
    assert rendered == ports
    assert set(slurmd_ports(settings("vm")).values()) == {6818}


def test_addresses_are_each_ones_own_and_as_rendered() -> None:
    """The ranges are right even if an address's last number exceeds its range."""
    ours = settings(
        "process", (part(high=300, default=True), part("static", 2, 5)), first_address="127.9.64.250"
    )
    addresses, ports = slurmd_addresses(ours), slurmd_ports(ours)
    assert (addresses["cpu-0"], addresses["cpu-5"], addresses["cpu-6"]) == (
        "127.9.64.250", "127.9.64.255", "127.9.65.0",
    )  # fmt: skip
    assert len(set(addresses.values())) == len(ports) == 305
    rendered: dict[str, str] = {}
    for node in lines(render(ours, (22, 5))["slurm.conf"], "NodeName"):
        assert "NodeHostname" not in node, "the machine has the node's name"
        rendered |= dict(zip(expand(node["NodeName"]), expand(node["NodeAddr"]), strict=True))
    assert rendered == addresses
    assert slurmd_addresses(settings("process")) == {}, "those of 127.0.0.1"


@pytest.mark.parametrize(
    ("site", "error"),
    [
        ({"slurmd_port": 65530}, "do not end at 65535"),
        ({"slurmd_port": 16810}, "lies among"),
        ({"root": "/tmp/with space"}, "cannot hold"),
        ({"root": "/tmp/per%cent"}, "cannot hold"),
        ({"root": "relative"}, "cannot hold"),
        ({"root": "/tmp/" + "x" * 80}, "bytes too long"),
        ({"user": 'a "b"'}, "both a space and a quote"),
        ({"user": "a\nSlurmdUser=root"}, "control character"),
        ({"user": "a\tb"}, "control character"),
    ],
)
def test_refused(site: dict[str, Any], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        render(settings("process", **site), (22, 5))


def test_the_longest_socket_decides() -> None:
    """The longest socket is slurmstepd's, which has the longest node name twice."""
    root = "/tmp/slurm-stacks-1000/0123456789abcdef"
    check_paths(settings("process", partitions=(part("a" * 10),), root=root))
    with pytest.raises(ValueError, match=r"spool/a{25}-9/a{25}-9_9{10}\.9{10}"):
        check_paths(settings("process", partitions=(part("a" * 25),), root=root))


def test_accelerators_of_real_machines() -> None:
    found = list(lines(render(settings(), (22, 5))["gres.conf"], "NodeName"))
    assert found == [
        {"NodeName": "v100-[0-1]", "Name": "gpu", "Type": "v100", "File": "/dev/nvidia[0-7]"},
        {"NodeName": "t4-0", "Name": "gpu", "Type": "t4", "File": "/dev/nvidia0"},
        {"NodeName": "trn1-[0-1]", "Name": "neuron", "Type": "trainium", "File": "/dev/neuron[0-15]"},
    ]


def test_simulated_accelerators_name_a_file_each() -> None:
    found = list(lines(render(settings("process", SIMULATED), (22, 5))["gres.conf"], "NodeName"))
    files = {line["NodeName"]: line["File"].split(",") for line in found}
    assert {node: len(names) for node, names in files.items()} == {"v100-[0-2]": 4, "one-0": 1}
    assert all(len(set(names)) == len(names) for names in files.values()), "slurmctld refuses a name twice"


def test_without_accelerators() -> None:
    files = render(settings(partitions=(part(),)), (22, 5))
    assert set(files) == {"slurm.conf", "cgroup.conf"}
    assert "GresTypes" not in files["slurm.conf"]
    assert "Gres=" not in files["slurm.conf"]


@pytest.mark.parametrize(
    ("isolation", "version", "partitions", "expected"),
    [
        ("process", (22, 5), FLEET, {"CgroupPlugin": "cgroup/v1"}),
        ("process", (23, 11), FLEET, {"CgroupPlugin": "cgroup/v1"}),
        ("process", (24, 11), FLEET, {"CgroupPlugin": "disabled"}),
        (
            "vm",
            (22, 5),
            FLEET,
            {"CgroupPlugin": "autodetect", "ConstrainDevices": "yes", "ConstrainCores": "yes"},
        ),
        ("vm", (24, 11), (part(),), {"CgroupPlugin": "autodetect", "ConstrainDevices": "no"}),
        ("container", (22, 5), SIMULATED, {"CgroupPlugin": "autodetect", "ConstrainDevices": "no"}),
    ],
)
def test_cgroups(
    isolation: str, version: Version, partitions: tuple[Partition, ...], expected: dict[str, str]
) -> None:
    found = options(render(settings(isolation, partitions), version)["cgroup.conf"])
    assert expected.items() <= found.items()
    assert "CgroupAutomount" not in found, "gone since 23.02, and nobody needs it"
    assert ("ConstrainRAMSpace" in found) == (isolation != "process")


@pytest.mark.parametrize("accounting", [False, True])
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_no_job_waits_for_an_account(isolation: str, version: Version, accounting: bool) -> None:
    """`InvalidAccount` is due to enforced associations, or to a priority that is computed from them. Without
    accounting there are none, so neither may be used. The defaults of releases differ, so both are set."""
    slurm = dataclasses.replace(SlurmSettings(), accounting=accounting)
    found = conf(version, isolation=isolation, slurm=slurm)
    assert ("AccountingStorageEnforce" in found) == accounting
    assert not {"PriorityWeightAssoc", "AccountingStoreFlags"} & set(found)
    storage = "accounting_storage/slurmdbd" if accounting else "accounting_storage/none"
    # Both have the same priority. With multifactor, waiting jobs would be last when accounting is turned off.
    assert (found["AccountingStorageType"], found["PriorityType"]) == (storage, "priority/basic")


@pytest.mark.parametrize("isolation", ["process", "vm"])
def test_accounting(isolation: str) -> None:
    slurm = dataclasses.replace(SlurmSettings(), accounting=True)
    found = conf(isolation=isolation, slurm=slurm)
    assert found["AccountingStorageType"] == "accounting_storage/slurmdbd"
    assert (
        found["AccountingStorageTRES"]
        == "gres/gpu,gres/gpu:t4,gres/gpu:v100,gres/neuron,gres/neuron:trainium"
    )
    assert found["AccountingStorageEnforce"] == "associations,limits,qos"
    assert found["AccountingStoragePort"] == "6819"
    assert ("AccountingStoragePass" in found) == (isolation == "process")
    assert found["JobAcctGatherType"] == (
        "jobacct_gather/linux" if isolation == "process" else "jobacct_gather/cgroup"
    )


def test_an_owner_whom_sacctmgr_cannot_name_is_not_locked_out() -> None:
    slurm = dataclasses.replace(SlurmSettings(), accounting=True)
    for name, enforced in (("ada", True), ("a, b", False), ('a"b', False)):
        found = conf(isolation="process", slurm=slurm, user=name)
        assert ("AccountingStorageEnforce" in found) == enforced, name


def test_five_thousand_nodes_are_rendered_fast_and_short() -> None:
    text = render(settings("process", (part(high=5000),)), (22, 5))["slurm.conf"]
    assert len(text) < 10_000


@pytest.mark.parametrize(
    ("accelerator", "expected"),
    [
        (Accelerator("v100", 1), ["/dev/nvidia0"]),
        (Accelerator("v100", 2), ["/dev/nvidia0", "/dev/nvidia1"]),
        (Accelerator("trainium", 2, "neuron"), ["/dev/neuron0", "/dev/neuron1"]),
    ],
)
def test_a_node_needs_the_device_files_of_its_accelerators(
    accelerator: Accelerator, expected: list[str]
) -> None:
    assert expand(device_files(accelerator)) == expected


def with_users(isolation: str, users: tuple[sharing.User, ...]) -> str:
    its = settings(isolation, (part(),))
    its = dataclasses.replace(its, design=dataclasses.replace(its.design, users=users))
    return render(its, (24, 11))["slurm.conf"]


def test_nodes_compare_the_users_of_the_stack_file_before_each_job() -> None:
    users = (sharing.User("ada", id=2001), sharing.User("grace"))
    for isolation, others in (("vm", False), ("container", False), ("process", True)):
        text = with_users(isolation, users)
        assert (text.splitlines()[1] == sharing.users_line(users)) is not others
        assert ("\nProlog=" in text) is not others
    text = with_users("vm", users[1:])
    assert "# users" not in text
    assert "\nProlog=" not in text
