"""The design of the five systems: names, memory, timers. It is pure data and is stored as JSON."""

from __future__ import annotations

import json
import typing
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.config import load_file, parse
from infra.config.cluster import Check
from infra.design import benchmark_design, design, real_memory, slurm_time
from infra.instance_types.catalog import catalog
from node.design import time_limits
from node.design.health import CHECKS, Health, JobScript
from node.design.model import BenchmarkDesign, Budget, ClusterDesign, Partition
from node.system.codec import from_json, to_json
from tests.support import shipped, texts
from tests.support.stack_values import BENCHMARK, CLUSTER, REMOVE, STACKS, values

ROOT = Path(__file__).parents[2]
SHARED = "arn:aws:ec2:us-east-1:999999999999:capacity-reservation/"
GROUP = "arn:aws:resource-groups:us-east-1:123456789012:group/MyCRGroup"
FILES = [*sorted(STACKS.glob("Pulumi.*.yaml")), *shipped.files()]
FACTS = catalog()


def made(name: str, changes: dict[str, Any] | None = None) -> ClusterDesign:
    return design(parse(values(name, changes), "test"), FACTS)


def trained(name: str, changes: dict[str, Any] | None = None) -> BenchmarkDesign | None:
    config = parse(values(name, changes), "test")
    return benchmark_design(config, design(config, FACTS))


def check_names(cluster: ClusterDesign) -> None:
    names = [node for p in cluster.partitions for node in p.nodes()]
    hosts = [h.name for h in cluster.hosts]
    assert len({*names, *hosts}) == len(names) + len(hosts)
    for partition in cluster.partitions:
        assert partition.static_nodes() == partition.nodes()[: partition.min]
        for node in partition.nodes():
            assert len(f"{cluster.name}-{node}") <= 63
            assert cluster.partition_of(node) is partition
        assert cluster.partition_of(f"{partition.name}-{partition.max}") is not partition
    for host in cluster.hosts:
        assert cluster.partition_of(host.name) is None


def check_mounts(cluster: ClusterDesign) -> None:
    """Check that no mount lies in another: a mount hides what is below it, and the order is not fixed."""
    paths = [PurePosixPath(mount.path) for mount in cluster.mounts]
    assert len(set(paths)) == len(paths)
    assert not any(path in other.parents for path in paths for other in paths)


@pytest.mark.parametrize("file", FILES, ids=[f.stem for f in FILES])
def test_every_stack_has_a_design(file: Path) -> None:
    config = load_file(file)
    before = config.model_dump()
    cluster = design(config, FACTS)
    assert config.model_dump() == before
    assert design(config, FACTS) == cluster
    assert from_json(ClusterDesign, json.loads(json.dumps(to_json(cluster)))) == cluster
    assert sum(p.default for p in cluster.partitions) == 1
    check_names(cluster)
    check_mounts(cluster)
    benchmark = benchmark_design(config, cluster)
    if benchmark is not None:
        assert from_json(BenchmarkDesign, to_json(benchmark)) == benchmark
        assert cluster.partition(benchmark.partition).max >= benchmark.nodes


def test_the_local_stack_of_the_project() -> None:
    text = shipped.stack_files()["Pulumi.local.yaml"]
    config = parse(yaml.safe_load(text)["config"], "local")
    cluster = design(config, FACTS)
    assert (cluster.provider, cluster.isolation, cluster.mounts) == ("local", "process", ())
    assert [(p.name, p.min, p.max, p.default) for p in cluster.partitions] == [
        ("debug", 0, 10, True),
        ("gpu", 0, 4, False),
    ]
    gpu = cluster.partition("gpu").accelerator
    assert gpu is not None
    assert (gpu.type, gpu.count, gpu.simulated) == ("v100", 1, True)
    assert cluster.slurm.suspend_time == 20
    assert benchmark_design(config, cluster) == BenchmarkDesign(
        script="keras-mnist",
        partition="debug",
        nodes=2,
        gpus_per_node=0,
        epochs=2,
        profile="local-sgd",
        data="auto",
    )


@pytest.mark.parametrize(
    ("machine", "mib"),
    [
        ("local.small", 1024),
        ("m4.large", 8192 - 640),
        ("n1-standard-2", 7680 - 625),
        ("p4de.24xlarge", 1144688),
    ],
)
def test_memory_that_slurm_may_hand_out(machine: str, mib: int) -> None:
    assert real_memory(FACTS.machines[machine]) == mib


def test_memory_is_between_the_clouds_reserve_and_slurms_limit() -> None:
    """slurmctld sets a CLOUD node DOWN if its memory is under 90 % of RealMemory, so there must be a margin.

    The cloud's reserve is a larger part of the smallest machines.
    """
    for name, machine in FACTS.machines.items():
        least = 0.85 if machine.memory_mib > 3700 else 0.1
        assert least * machine.memory_mib < real_memory(machine) <= machine.memory_mib, name


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        ("INFINITE", "INFINITE"),
        ("unlimited", "INFINITE"),
        ("90", "01:30:00"),
        ("24:00:00", "1-00:00:00"),
        ("36:00:00", "1-12:00:00"),
        ("2-12", "2-12:00:00"),
        ("2-12:30", "2-12:30:00"),
        ("2-12:30:15", "2-12:30:15"),
    ],
)
def test_time_limits_in_one_notation(limit: str, expected: str) -> None:
    assert made("local", {"partitions[0].time_limit": limit}).partitions[0].time_limit == expected
    assert slurm_time(expected) == expected


def test_timers_by_provider() -> None:
    local, gcp, aws = made("local").slurm, made("gcp").slurm, made("aws").slurm
    assert (local.suspend_time, local.resume_timeout, local.reconcile_interval) == (20, 60, 2.0)
    assert (local.suspend_timeout, local.slurmd_timeout) == (5, 20)
    assert (aws.suspend_time, aws.reconcile_interval) == (300, 30.0)
    plain = made("gcp", {"partitions[0].accelerator": REMOVE}).slurm
    assert gcp.resume_timeout == plain.resume_timeout + time_limits.ACCELERATORS + time_limits.HEALTH
    assert aws.resume_timeout == gcp.resume_timeout + time_limits.RESTART, (
        "it starts again, for Lustre's kernel"
    )
    assert made("local", {"local.boot_delay": 30}).slurm.resume_timeout == 90
    slow = made("local", {"local.boot_delay": 30, "local.boot_spread": 45}).slurm
    assert slow.resume_timeout == 60 + 30 + 45, "the slowest machine registers in time too"


def test_timers_of_the_stack_file_win() -> None:
    own = {
        "suspend_time": 7,
        "suspend_timeout": 8,
        "resume_timeout": 9,
        "slurmd_timeout": 10,
        "accounting": True,
    }
    slurm = made("local", {"slurm": own | {"reconcile_interval": 0.5}}).slurm
    assert to_json(slurm) == own | {
        "reconcile_interval": 0.5,
        "default_account": "users",
        "exclusive_accounts": False,
        "priority": None,
        "settings": {},
        "prolog": None,
        "epilog": None,
        "source": None,
        "packages": (),
        "repository": None,
    }
    prolog = {"source": "site/a.sh", "timeout": 5}
    assert made("local", {"slurm": {"prolog": prolog}}).slurm.prolog == JobScript("site/a.sh", 5)


def test_nodes_with_devices_are_checked_and_pretended_ones_only_on_request() -> None:
    assert typing.get_args(Check) == CHECKS
    assert made("aws").health == Health()
    assert made("gcp", {"partitions[0].accelerator": REMOVE}).health is None
    pretended = {"partitions[0].accelerator": {"type": "v100", "count": 2}}
    assert made("local", pretended).health is None
    own = {"enabled": True, "interval_seconds": 9, "skip": ["xid"]}
    assert made("local", {**pretended, "health": own}).health == Health(9, ("xid",))
    assert made("aws", {"health": {"enabled": False}}).health is None


def test_defaults_that_spare_the_reader_everything_else() -> None:
    cluster = made("aws", {"storage": REMOVE})
    assert (cluster.controller().instance_type, cluster.controller().disk_gib) == ("m5.large", 50)
    assert cluster.access.mode == "ssm"
    assert "public" not in cluster.controller().tags
    assert (cluster.network.cidr, cluster.network.public_cidr, cluster.network.private_cidr) == (
        "10.0.0.0/16",
        "10.0.0.0/17",
        "10.0.128.0/17",
    )
    assert [p.default for p in cluster.partitions] == [True, False]
    assert cluster.image.source == "ubuntu-24.04"


def test_what_a_stack_file_says_arrives() -> None:
    cluster = made(
        "gcp",
        {
            "login": {"count": 2, "instance_type": "e2-medium", "disk_gib": 20, "open_metadata": True},
            "controller": {"instance_type": "n2-standard-4", "image": {"id": "my-image"}},
            "partitions[1]": {
                "name": "new",
                "instance_type": "n2-standard-4",
                "default": True,
                "spot": True,
                "reservation": None,
                "placement": "cluster",
                "zones": ["europe-west4-b"],
                "image": {"id": "other-image"},
                "gcp": {"secure_boot": True},
                "open_metadata": True,
                "features": ["fast", "fast"],
                "weight": 3,
                "nodes": {"min": 1, "max": 2},
            },
            "network": {"zones": ["europe-west4-a"], "cidr": "10.9.0.0/16"},
            "storage.scratch": {"kind": "filestore", "tier": "ZONAL", "size_gib": 1024, "path": "/data"},
            "budget": {"max_usd": 5, "max_hours": 100.5, "running_jobs": "cancel"},
            "access": {"mode": "ssh", "ssh_cidrs": ["203.0.113.0/24"]},
            "gcp:project": "lab-42",
        },
    )
    assert [(h.name, h.instance_type, h.disk_gib, h.tags) for h in cluster.hosts[1:]] == [
        ("login-0", "e2-medium", 20, ("login", "public")),
        ("login-1", "e2-medium", 20, ("login", "public")),
    ]
    assert cluster.controller().tags == ("controller", "nfs")
    assert [h.open_metadata for h in cluster.hosts] == [False, True, True], "a controller's is never open"
    assert {p.name for p in cluster.partitions if p.open_metadata} == {"new"}
    assert cluster.controller().image == "my-image"
    new = cluster.partition("new")
    assert (new.default, new.spot, new.placement, new.zones) == (True, True, "cluster", ("europe-west4-b",))
    assert (new.features, new.weight) == (("fast",), 3)
    assert (new.image, new.gcp.secure_boot, new.static_nodes()) == ("other-image", True, ["new-0"])
    assert cluster.network.zones == ("europe-west4-a",)
    assert cluster.network.cidr == "10.9.0.0/16"
    assert (cluster.mounts[-1].path, cluster.mounts[-1].deployment) == ("/data", "ZONAL")
    assert cluster.budget == Budget(5.0, 100.5, "cancel")
    assert (cluster.access.ssh_cidrs, cluster.project) == (("203.0.113.0/24",), "lab-42")


@pytest.mark.parametrize(
    ("said", "one", "several"),
    [
        (None, None, ()),
        ("cr-0123456789", "cr-0123456789", ()),
        (["cr-0123456789"], "cr-0123456789", ()),
        (f"{SHARED}cr-9876543210", "cr-9876543210", ()),
        (["cr-0123456789", f"{SHARED}cr-98765432"], None, ("cr-0123456789", f"{SHARED}cr-98765432")),
        (GROUP, GROUP, ()),
    ],
)
def test_one_reservation_is_named_by_its_id_and_several_are_kept(
    said: str | list[str] | None, one: str | None, several: tuple[str, ...]
) -> None:
    made = design(parse(values("aws", {"partitions[0].reservation": said}), "test"), FACTS).partitions[0]
    assert (made.reservation, made.reservations) == (one, several)


def test_existing_networks_are_named_by_their_ids() -> None:
    aws = {"vpc": "vpc-12345678", "public_subnet": "subnet-12345678", "private_subnets": ["subnet-12345679"]}
    network = made("aws", {"network": {"aws": aws, "zones": ["us-east-1c"]}}).network
    assert to_json(network) == {
        "cidr": None,
        "public_cidr": None,
        "private_cidr": None,
        "zones": ("us-east-1c",),
        "vpc": "vpc-12345678",
        "public_subnet": "subnet-12345678",
        "private_subnets": ("subnet-12345679",),
    }
    gcp = {"network": "lab", "subnetwork": "nodes"}
    network = made("gcp", {"network": {"gcp": gcp, "zones": ["europe-west4-a"]}}).network
    assert (network.vpc, network.private_subnets, network.zones, network.cidr) == (
        "lab",
        ("nodes",),
        ("europe-west4-a",),
        None,
    )


def test_mounts_survive_a_restart_of_what_serves_them() -> None:
    """Hard mounts wait for the server; `_netdev` waits for the network; NVMe may be missing."""
    lustre = {
        "kind": "fsx_lustre",
        "size_gib": 1200,
        "s3_import": "s3://in-data/a",
        "s3_export": "s3://out-data",
    }
    mounts = {m.path: m for m in made("aws", {"storage": {"scratch": lustre, "local_scratch": {}}}).mounts}
    assert {"hard", "_netdev"} <= set(mounts["/home"].options.split(","))
    assert {"flock", "_netdev"} <= set(mounts["/fsx"].options.split(","))
    assert "nofail" in mounts["/local_scratch"].options.split(",")
    assert (mounts["/fsx"].s3_import, mounts["/fsx"].s3_export) == ("s3://in-data/a", "s3://out-data")


def test_a_file_system_instead_of_the_controllers_disk() -> None:
    cluster = made("aws", {"storage": {"home": {"kind": "efs"}, "apps": {"kind": "efs"}}})
    assert [(m.kind, m.served_by, m.size_gib) for m in cluster.mounts] == [("efs", None, None)] * 2
    assert "nfs" not in cluster.controller().tags


def test_pretended_prices_and_quotas() -> None:
    cluster = made(
        "local",
        {
            "local": {"price_hour": 2, "quota_nodes": 3, "boot_delay": 1.5},
            "partitions[1]": {"name": "b", "instance_type": "local.small", "local": {"price_hour": 0}},
        },
    )
    assert [p.price_hour for p in cluster.partitions] == [2.0, 0.0]
    assert (cluster.local.quota_nodes, cluster.local.boot_delay) == (3, 1.5)
    assert made("local").partitions[0].price_hour == 0.0
    of_type = {"instance_types": {"local.small": {"price_hour": 3}}, "local": {"price_hour": 2}}
    assert made("local", of_type).partitions[0].price_hour == 3.0


def test_facts_of_the_stack_file_win() -> None:
    changes = {"instance_types": {"m5.xlarge": {"price_hour": 1, "memory_mib": 10240}}}
    cpu = made("aws", changes).partition("cpu")
    assert (cpu.price_hour, cpu.memory_mib) == (1.0, 10240 - 400 - 300)


def test_benchmarks() -> None:
    assert trained("aws", {BENCHMARK: REMOVE}) is None
    assert trained("aws", {"@enabled": False}) is None
    gpu = trained("aws", {"@partition": "gpu"})
    assert gpu is not None
    assert (gpu.partition, gpu.gpus_per_node, gpu.nodes) == ("gpu", 8, 2)
    one = trained("aws", {"@partition": "gpu", "@gpus_per_node": 1, "@batch": 32, "@profile": "published"})
    assert one is not None
    assert (one.gpus_per_node, one.batch, one.profile) == (1, 32, "published")
    where_default = trained("aws", {"partitions[1].default": True})
    assert where_default is not None
    assert where_default.partition == "gpu"
    # The training is refused on Trainium, where it would run on the CPUs.
    beside = trained("aws", {"partitions[0].instance_type": "trn1.32xlarge", "@partition": "gpu"})
    assert beside is not None
    assert beside.gpus_per_node == 8
    simulated = trained("local", {"partitions[0].accelerator": {"type": "v100", "count": 2}})
    assert simulated is not None
    assert simulated.gpus_per_node == 0


NAMES = texts.matching(r"[a-z]([a-z0-9-]{0,10}[a-z0-9])?").filter(
    lambda name: name not in ("login", "controller", "default")
)


@settings(deadline=None)
@given(
    data=st.data(),
    cluster=texts.matching(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?"),
    names=st.lists(NAMES, min_size=1, max_size=4, unique=True),
)
def test_any_cluster(data: st.DataObject, cluster: str, names: list[str]) -> None:
    partitions = []
    for name in names:
        most = data.draw(st.integers(1, 300))
        partitions.append(
            {
                "name": name,
                "instance_type": data.draw(st.sampled_from(["local.small", "local.medium"])),
                "nodes": {"min": data.draw(st.integers(0, most)), "max": most},
                "spot": data.draw(st.booleans()),
                "exclusive": data.draw(st.booleans()),
                "accelerator": data.draw(st.none() | st.just({"type": "v100", "count": 2})),
            }
        )
    config = parse({CLUSTER: {"name": cluster, "provider": "local", "partitions": partitions}}, "any")
    made_twice = design(config, FACTS), design(config, FACTS)
    assert made_twice[0] == made_twice[1]
    assert from_json(ClusterDesign, json.loads(json.dumps(to_json(made_twice[0])))) == made_twice[0]
    check_names(made_twice[0])


@given(texts.text(max_size=20))
def test_no_other_name_belongs_to_a_partition(name: str) -> None:
    cluster = made("local")
    known = {node for p in cluster.partitions for node in p.nodes()}
    found: Partition | None = cluster.partition_of(name)
    assert (found is not None) == (name in known)


def test_temporary_disk_is_what_jobs_can_use_of_it() -> None:
    """A node whose file system is smaller than its TmpDisk is drained, so the figure is below all of them.

    Of a disk of 50 GiB, Debian's and Ubuntu's images leave a file system of more than 47 GiB.
    """

    machine = {"aws": "c5d.2xlarge", "gcp": "n1-standard-2", "local": "local.small"}

    def disk(name: str, changes: dict[str, Any] | None = None, **own: Any) -> int:
        partitions = [{"name": "a", "instance_type": machine[name], **own}]
        return made(name, {"partitions": partitions, **(changes or {})}).partitions[0].tmp_disk_mib

    assert {name: disk(name) for name in machine} == dict.fromkeys(machine, 37 * 1024)
    assert [disk("gcp", disk_gib=gib) for gib in (10, 100)] == [1024, 82 * 1024]
    assert disk("local", disk_gib=200) == 172 * 1024
    for name, image in {"aws": "ami-0123456789abcdef0", "gcp": "projects/p/global/images/mine"}.items():
        assert disk(name, {"image": {"id": image}}) == 0, "its /tmp may be of any size"
        assert disk(name, image={"id": image}) == 0
    scratch: dict[str, Any] = {"storage.local_scratch": {}}
    assert disk("aws", scratch) == 186 * 1024 * 9 // 10
    assert disk("gcp", scratch) == 375 * 1024 * 9 // 10


def test_cpus_lie_in_the_machines_sockets() -> None:
    def sockets(machine: str, name: str = "aws", **facts: int) -> list[tuple[int, int]]:
        given = {"instance_types": {machine: facts}} if facts else {}
        (only,) = made(name, {"partitions": [{"name": "mpi", "instance_type": machine}], **given}).partitions
        return [(only.sockets, only.cpus)]

    assert sockets("c5.24xlarge") == [(1, 96)]
    assert sockets("c5.24xlarge", sockets=2) == [(2, 96)]
    assert sockets("c5.24xlarge", sockets=7) == [(1, 96)], "96 CPUs are not 7 sockets"
    assert sockets("p5.48xlarge") == [(2, 192)]
    assert sockets("n2-standard-2", "gcp") == [(1, 2)]
    assert sockets("c3-standard-176", "gcp") == [(4, 176)]


def test_a_local_scratch_on_google_cloud_attaches_local_ssds() -> None:
    asked: dict[str, Any] = {"storage.local_scratch": {}}
    overrides = {"instance_types": {"n1-standard-2": {"local_ssds": 2}}}
    assert [p.local_ssds for p in made("gcp").partitions] == [0, 0]
    assert [p.local_ssds for p in made("gcp", asked).partitions] == [1, 1]
    assert [p.local_ssds for p in made("gcp", {**asked, **overrides}).partitions] == [2, 1]
