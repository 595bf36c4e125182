"""Changes of a running cluster on AWS: what its keys say, and jobs are safe."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from cli.changes import table as changes
from cli.changes.jobs import Job
from cli.changes.table import Change, refusal
from cli.providers.aws.changes import RULES
from infra.effects import Kind
from node.design.accelerators import Accelerator
from node.design.model import STATE, ClusterDesign, Hook, Network
from node.design.storage import Mount
from tests.support.aws_mocks import (
    CONTROLLER,
    CPU,
    EFS,
    EXISTING,
    GPU,
    LOGIN,
    LUSTRE,
    NFS,
    aws_design,
    ssh_design,
)


def compare(old: ClusterDesign, new: ClusterDesign) -> list[Change]:
    return changes.compare(old, new, RULES)


def test_the_same_design_is_no_change_with_the_zones_in_which_it_was_published() -> None:
    placed = tuple(dataclasses.replace(p, zones=("eu-west-1b",)) for p in (CPU, GPU))
    assert compare(aws_design(partitions=placed), aws_design()) == []


def cpu(**values: Any) -> dict[str, Any]:
    return {"partitions": (dataclasses.replace(CPU, **values), GPU)}


def home(**values: Any) -> dict[str, Any]:
    return {"mounts": (dataclasses.replace(NFS[0], **values), NFS[1])}


def head(**values: Any) -> dict[str, Any]:
    return {"hosts": (dataclasses.replace(CONTROLLER, **values),)}


def kept(design: ClusterDesign) -> ClusterDesign:
    """The design with a disk for Slurm's state."""
    disk = Mount(STATE, "disk", served_by="controller", size_gib=20)
    return dataclasses.replace(design, mounts=(*design.mounts, disk))


CASES = [
    (cpu(time_limit="01:00:00"), [("partitions.time_limit", Kind.LIVE)]),
    (cpu(max=20), [("partitions.nodes.max", Kind.LIVE)]),
    (cpu(max=2), [("partitions.nodes.max", Kind.ENDS)]),
    (cpu(instance_type="m5.2xlarge", cpus=8, memory_mib=30000), [("partitions.instance_type", Kind.RENEWED)]),
    (cpu(spot=True), [("partitions.spot", Kind.RENEWED)]),
    (cpu(price_hour=1.0), [("instance_types.price_hour", Kind.LIVE)]),
    (cpu(accelerator=Accelerator("t4", 1)), [("partitions.accelerator", Kind.RENEWED)]),
    (
        cpu(cpus=3, memory_mib=9),
        [("instance_types.vcpus", Kind.RENEWED), ("instance_types.memory_mib", Kind.RENEWED)],
    ),
    ({"partitions": (CPU,)}, [("partitions.name", Kind.ENDS)]),
    ({"partitions": (CPU, GPU, dataclasses.replace(CPU, name="x"))}, [("partitions.name", Kind.LIVE)]),
    (head(instance_type="m5.xlarge"), [("controller.instance_type", Kind.PAUSE)]),
    (head(disk_gib=60), [("controller.disk_gib", Kind.LIVE)]),
    (head(disk_gib=40), [("controller.disk_gib", Kind.NEVER)]),
    (head(image="ami-1"), [("controller.image", Kind.NOTHING)]),
    ({"hosts": (CONTROLLER, LOGIN)}, [("login.count", Kind.LIVE)]),
    (cpu(open_metadata=True), [("partitions.open_metadata", Kind.RENEWED)]),
    (home(size_gib=60), [("storage.*.size_gib", Kind.LIVE)]),
    (home(size_gib=40), [("storage.*.size_gib", Kind.NEVER)]),
    (home(path="/users"), [("storage.*.path", Kind.DATA), ("storage.*.path", Kind.NODES)]),
    ({"mounts": (EFS, NFS[1])}, [("storage.*.kind", Kind.DATA)]),
    ({"mounts": (*NFS, LUSTRE)}, [("storage.*.path", Kind.NODES)]),
    ({"hooks": (Hook("compute", "x.sh"),)}, [("hooks", Kind.NODES)]),
    ({"network": Network(cidr="10.1.0.0/16")}, [
        ("network.cidr", Kind.HEAD), ("network.public_cidr", Kind.HEAD), ("network.private_cidr", Kind.HEAD),
    ]),
    ({"name": "d"}, [("name", Kind.DATA)]),
    ({"region": "eu-west-2"}, [("aws:region", Kind.DATA)]),
]  # fmt: skip


@pytest.mark.parametrize(("what", "expected"), CASES, ids=[str(case[1][0][0]) for case in CASES])
def test_a_change_is_what_its_row_says(what: dict[str, Any], expected: list[tuple[str, Kind]]) -> None:
    assert [(change.key, change.kind) for change in compare(aws_design(), aws_design(**what))] == expected


@pytest.mark.parametrize(
    ("values", "never"),
    [
        ({"private_cidr": "10.0.128.0/18"}, ["network.private_cidr"]),
        ({"private_cidr": "10.0.192.0/18"}, ["network.private_cidr"]),
        ({"private_cidr": "10.0.64.0/18"}, []),
        ({"public_cidr": "10.0.0.0/25"}, ["network.public_cidr"]),
        ({"public_cidr": "10.0.1.0/24"}, []),
        (
            {"public_cidr": "10.0.128.0/24", "private_cidr": "10.0.0.0/20"},
            ["network.public_cidr", "network.private_cidr"],
        ),
        ({"cidr": "10.0.0.0/15", "private_cidr": "10.0.128.0/18"}, []),
        ({"vpc": "vpc-1", "private_subnets": ("subnet-1",), "private_cidr": "10.0.128.0/18"}, []),
    ],
)
def test_a_subnet_that_cannot_be_made_beside_the_old_one_is_not_possible(
    values: dict[str, Any], never: list[str]
) -> None:
    old = aws_design(network=Network(public_cidr="10.0.0.0/24", private_cidr="10.0.128.0/17"))
    new = aws_design(network=dataclasses.replace(old.network, **values))
    found = [change for change in compare(old, new) if change.kind is Kind.NEVER]
    assert [change.key for change in found] == never
    assert all("AWS makes the new subnet before the old one goes" in change.line() for change in found)


def test_nodes_are_renewed_for_what_is_no_field_of_their_partition() -> None:
    """Partitions' fields are held to the template and to slurm.conf where templates are made."""
    assert {
        key
        for key, row in RULES.table.items()
        if row.kind is Kind.RENEWED and not any(field.startswith("partitions.") for field in row.fields)
    } == {
        "image.id",
        "image.bake",
        "image.revision",
        "aws.nat",
        "aws.role_path",
        "tags",
        "storage.local_scratch",
        "partitions.aws.neuron_cores",
    }


def test_lustre_shrinks_by_being_made_anew_and_a_scratch_1_in_every_way() -> None:
    def kinds(was: Any, **values: Any) -> list[Kind]:
        designs = (aws_design(mounts=(mount,)) for mount in (was, dataclasses.replace(was, **values)))
        return [change.kind for change in compare(*designs)]

    first = dataclasses.replace(LUSTRE, deployment="SCRATCH_1")
    assert kinds(LUSTRE, size_gib=2400) == [Kind.LIVE]
    assert kinds(dataclasses.replace(LUSTRE, size_gib=2400), size_gib=1200) == [Kind.DATA]
    assert kinds(first, size_gib=2400) == [Kind.DATA]
    assert kinds(LUSTRE, s3_import="s3://a") == [Kind.LIVE]
    assert kinds(first, s3_import="s3://a") == [Kind.DATA]


def test_the_controller_stays_in_its_subnet_whoever_has_the_public_address() -> None:
    assert {change.kind for change in compare(ssh_design(), ssh_design(login=True))} == {Kind.LIVE}
    found = {change.key: change.kind for change in compare(kept(aws_design()), kept(ssh_design()))}
    assert found["access.mode"] is Kind.LIVE
    assert found["access.key"] is Kind.TAKEOVER, "EC2 gives a machine its key pair at the launch"


def test_in_somebodys_network_a_public_address_moves_the_controller_to_another_subnet() -> None:
    def found(old: ClusterDesign, new: ClusterDesign) -> list[str]:
        return [c.line() for c in compare(old, new) if c.kind in (Kind.MOVED, Kind.HEAD)]

    alone, beside = ssh_design(network=EXISTING), ssh_design(login=True, network=EXISTING)
    assert found(kept(alone), kept(beside)) == [
        "controller: network.aws public_subnet → private_subnets: needs a new head at another address: "
        "waiting jobs stay, and running ones are queued again (its subnet is another one)"
    ]
    closed = aws_design(network=EXISTING)
    (moved,) = found(kept(closed), kept(alone))
    assert moved.startswith("controller: network.aws private_subnets → public_subnet: needs a new head at")
    lost = found(closed, alone)
    assert ["its queue and running jobs are lost" in line for line in lost] == [True, True]


def test_a_head_at_another_address_has_running_jobs_queued_again_and_loses_none_that_waits() -> None:
    network = dataclasses.replace(aws_design().network, cidr="10.1.0.0/16")
    runs = Job("1", "ann", "cpu", "cpu-[0-1]", "RUNNING", "", "train")
    asks = Job("2", "ann", "cpu", "", "PENDING", "cpu-1", "next")
    found = compare(kept(aws_design()), kept(aws_design(network=network)))
    assert {change.kind for change in found} == {Kind.MOVED}
    why = str(refusal(found, [runs, asks]))
    assert why.startswith("this would end jobs that run or wait. Let them end first, or use `up --replace`")
    assert ("job 1 train" in why, "job 2" in why) == (True, False)
    assert refusal(found, [asks]) is None
    assert changes.may_run_again(found, runs)
    assert changes.holds(found) == ("DOWN", None), "jobs may be submitted meanwhile"
    (change, *_) = found
    assert change.concerns(runs) == "is queued again, unless it was submitted with --no-requeue"
    assert change.concerns(asks) is None
    without = compare(aws_design(), aws_design(network=network))
    assert {change.kind for change in without} == {Kind.HEAD}
    assert "job 2 next" in str(refusal(without, [asks]))
    assert not changes.may_run_again(without, runs)
    assert changes.holds(without) == ("INACTIVE", None)


def test_a_zone_less_may_move_the_head_and_one_more_does_not() -> None:
    placed = dataclasses.replace(CPU, zones=("eu-west-1a", "eu-west-1b"))
    old = aws_design(partitions=(placed,))

    def kinds(*zones: str) -> list[Kind]:
        network = dataclasses.replace(old.network, zones=zones)
        return [change.kind for change in compare(old, aws_design(partitions=(CPU,), network=network))]

    assert kinds("eu-west-1a", "eu-west-1b", "eu-west-1c") == []
    assert kinds("eu-west-1a") == [Kind.DATA]
    assert kinds() == []


def test_a_group_of_reservations_may_change_its_members_under_nodes_that_are_up() -> None:
    """The launch template names the group, so a node on it stays as it is."""

    def kinds(was: dict[str, Any], **values: Any) -> list[tuple[str, Kind]]:
        designs = (aws_design(partitions=(dataclasses.replace(CPU, **one),)) for one in (was, values))
        return [(change.key, change.kind) for change in compare(*designs)]

    one, two = {"reservation": "cr-1"}, {"reservations": ("cr-1", "cr-2")}
    key = "partitions.reservation"
    assert kinds(two, reservations=("cr-1", "cr-3")) == [(key, Kind.NODES)]
    assert kinds(one, **two) == [(key, Kind.RENEWED)]
    assert kinds(two, **one) == [(key, Kind.RENEWED)]
    assert kinds({}, **two) == [(key, Kind.RENEWED)]
    assert kinds(two, **two) == []


def test_a_line_reads_as_the_stack_file_does() -> None:
    (change,) = compare(aws_design(), aws_design(**cpu(max=2)))
    assert (
        change.line() == "partition cpu: nodes.max 10 → 2: removes nodes, and ends the jobs that run on them"
    )
    (change,) = compare(aws_design(), aws_design(partitions=(CPU,)))
    assert change.line() == "partition gpu is removed: removes nodes, and ends the jobs that run on them"
    (change,) = compare(aws_design(partitions=(CPU,)), aws_design())
    assert change.line() == "partition gpu is new: applied to the running cluster"
    (change,) = compare(aws_design(), aws_design(trains=not aws_design().trains))
    assert change.line().split(": ")[0] in (
        "benchmark.enabled true → false",
        "benchmark.enabled false → true",
    )
    (change,) = compare(aws_design(), aws_design(**home(size_gib=60)))
    assert change.line().startswith("/home: size_gib 50 → 60: applied to the running cluster")
    (change,) = compare(
        aws_design(),
        dataclasses.replace(aws_design(), slurm=dataclasses.replace(aws_design().slurm, suspend_time=9)),
    )
    assert change.line() == "slurm.suspend_time 300 → 9: applied to the running cluster"


def job(number: int, partition: str, nodes: str = "", required: str = "", state: str = "RUNNING") -> Job:
    return Job(str(number), "ann", partition, nodes, state, required, "x")


def test_what_costs_jobs_is_refused_while_there_are_some() -> None:
    less = compare(aws_design(), aws_design(**cpu(max=2)))
    assert refusal(less, []) is None
    assert refusal(less, [job(7, "gpu", "gpu-3"), job(8, "cpu", "cpu-[0-1]")]) is None, "on nodes that stay"
    assert refusal(less, [job(7, "cpu", "cpu-9", state="COMPLETING")]) is None, "it is over"
    why = str(refusal(less, [job(7, "cpu", "cpu-[1-2]"), job(8, "cpu", "cpu-0")]))
    assert "up --replace" in why
    assert why.splitlines()[2:] == ["  job 7 x (ann, RUNNING on cpu-[1-2])"]
    assert "job 9" in str(refusal(less, [job(9, "cpu", required="cpu-2", state="PENDING")]))
    assert refusal(less, [job(9, "cpu", state="PENDING")]) is None, "it can start on the nodes that stay"
    assert "not known" in str(refusal(less, None))
    gone = compare(aws_design(), aws_design(partitions=(CPU,)))
    assert "job 9" in str(refusal(gone, [job(9, "gpu", state="PENDING")]))
    fine = compare(aws_design(), aws_design(**cpu(time_limit="01:00:00")))
    assert refusal(fine, None) is None
    assert refusal(fine, [job(7, "cpu", "cpu-9")]) is None
    new_head = compare(aws_design(), ssh_design())
    assert refusal(new_head, [job(7, "gpu", "gpu-0")]) is not None
    assert refusal(new_head, [job(7, "gpu", state="PENDING")]) is not None, "the queue goes with the head"
    assert refusal(new_head, []) is None


def test_what_deletes_files_is_refused_without_jobs_too() -> None:
    assert "deletes files" in str(refusal(compare(aws_design(), aws_design(mounts=(EFS, NFS[1]))), []))
    never = compare(aws_design(), aws_design(**home(size_gib=40)))
    assert "not possible" in str(refusal(never, []))
