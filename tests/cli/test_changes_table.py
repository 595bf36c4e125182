"""What a refused change says of the files that it would delete: which, how many, and how to keep them."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from cli.changes import table
from cli.changes.jobs import Job
from cli.providers.aws.changes import RULES
from cli.providers.gcp import changes as gcp_changes
from cli.providers.local import running
from infra.effects import Kind
from node.design.model import AwsSettings, Partition, SharedPartition, SlurmSettings
from node.design.sharing import User
from node.design.storage import Mount
from tests.support.aws_mocks import LUSTRE, NFS, aws_design

PERSISTENT = dataclasses.replace(LUSTRE, deployment="PERSISTENT_1")
SAVE = "add `snapshot: true`, put the old values back, run `up` and then `down`, which makes"
FILESTORE = Mount("/scratch", "filestore", size_gib=1024, deployment="ZONAL")


@pytest.mark.parametrize(
    ("mount", "said"),
    [
        (NFS[0], f"{SAVE} a snapshot"),
        (dataclasses.replace(NFS[0], snapshot=True), "run `down`, which makes a snapshot"),
        (dataclasses.replace(NFS[0], keep=True), "it stays, because of `keep: true`"),
        (Mount("/e", "efs"), "add `keep: true`"),
        (PERSISTENT, f"{SAVE} a backup"),
        (dataclasses.replace(PERSISTENT, s3_export="s3://lab/out"), "what is exported to s3://lab/out stays"),
        (dataclasses.replace(PERSISTENT, s3_import="s3://lab/in"), "this kind has no backup"),
        (dataclasses.replace(LUSTRE, deployment="SCRATCH_2", s3_export=None), "this kind has no backup"),
        (FILESTORE, "make a backup with `gcloud filestore backups create`"),
    ],
)  # fmt: skip
def test_the_way_that_keeps_files_is_one_that_the_kind_has(mount: Mount, said: str) -> None:
    assert table.way_to_keep(mount).startswith(said)


def a_job(nodes: str) -> Job:
    state = "RUNNING" if nodes else "PENDING"
    return Job("1", "ann", "train", nodes, state, "", "")


def up(**values: Any) -> Any:
    return aws_design(**{"mounts": (*NFS, PERSISTENT), **values})


def lost(**values: Any) -> list[str]:
    """The directories that the refusal of these values names."""
    why = str(table.refusal(table.compare(up(), up(**values), RULES), []))
    _, found, below = why.partition("what is lost, and how to keep it:\n")
    assert found
    return [line.strip().partition(" ")[0] for line in below.splitlines()]


def test_another_network_is_refused_with_what_it_deletes_and_no_more() -> None:
    network = dataclasses.replace(up().network, cidr="10.1.0.0/16")
    why = str(table.refusal(table.compare(up(), up(network=network), RULES), []))
    assert why.splitlines() == [
        "this deletes files. Save them first. `up --replace` makes the change anyway:",
        "  /fsx: network.cidr 10.0.0.0/16 → 10.1.0.0/16: is recreated: its contents are lost "
        "(its security groups are of the old network)",
        "what is lost, and how to keep it:",
        f"  /fsx (fsx_lustre, {PERSISTENT.size_gib} GiB): {table.way_to_keep(PERSISTENT)}",
    ]  # fmt: skip


def test_a_change_names_what_of_the_cluster_it_makes_anew() -> None:
    assert lost(name="other") == ["/home", "/apps", "/fsx"]
    assert lost(aws=AwsSettings(kms_key="arn:aws:kms:eu-west-1:1:key/2")) == ["/home", "/apps"], (
        "Lustre has a key of FSx's"
    )
    assert lost(mounts=NFS) == ["/fsx"]
    moved = dataclasses.replace(
        up().network, vpc="vpc-1", public_subnet="subnet-1", private_subnets=("subnet-2",)
    )
    assert lost(network=moved) == ["/home", "/apps", "/fsx"], "the head may be in another zone"


def test_what_is_not_the_clusters_own_is_not_lost() -> None:
    theirs = dataclasses.replace(NFS[0], existing="vol-1")
    old = aws_design(mounts=(theirs, NFS[1]))
    (change,) = table.compare(old, aws_design(name="other", mounts=(theirs, NFS[1])), RULES)
    assert [line.partition(" ")[0] for line in change.lost] == ["/apps"]


def test_a_lustre_that_cannot_leave_its_subnet_keeps_the_subnet() -> None:
    network = dataclasses.replace(up().network, private_cidr="10.0.192.0/18")
    found = table.compare(up(), up(network=network), RULES)
    # The last one is because the new subnet would share addresses with the one that is up.
    never = [("/fsx", Kind.NEVER), ("", Kind.NEVER)]
    assert [(change.part, change.kind) for change in found] == [("", Kind.HEAD), *never]
    assert "this is not possible: put the old value back" in str(table.refusal(found, []))


@pytest.mark.parametrize("rules", [RULES, gcp_changes.RULES, running.RULES])
def test_a_cluster_of_before_gets_accounting_by_default_and_is_told(rules: table.Rules) -> None:
    """The designs of clusters that came up without a key in the file say false; their jobs go on."""
    old = aws_design()
    (change,) = table.compare(old, dataclasses.replace(old, slurm=SlurmSettings(accounting=True)), rules)
    assert (change.kind, change.lost) == (Kind.LIVE, ())
    said = "slurm.accounting false → true: applied to the running cluster (slurmdbd and its database start"
    assert change.line().startswith(said)
    assert "by default where machines boot" in change.line()
    assert table.refusal([change], []) is None


def test_accounting_on_the_heads_own_disk_is_lost_with_it() -> None:
    old = aws_design(slurm=SlurmSettings(accounting=True))
    new = dataclasses.replace(old, access=dataclasses.replace(old.access, key="other"))
    assert "the accounting that `sacct` shows" in str(table.refusal(table.compare(old, new, RULES), []))
    without = dataclasses.replace(old, slurm=SlurmSettings())
    assert (
        table.refusal(table.compare(without, dataclasses.replace(new, slurm=SlurmSettings()), RULES), [])
        is None
    )


def test_a_user_keeps_the_number_to_which_their_files_belong() -> None:
    old = up(users=(User("ada", id=2001), User("bob", id=2002), User("eve")))
    new = up(users=(User("ada", id=2003), User("carl", id=2002), User("eve", id=2004)))
    found = table.compare(old, new, RULES)
    assert (found[0].was, found[0].will) == ("2001", "2003")
    assert [change.said for change in found if change.said] == [
        "users added: carl",
        "users changed: ada: id 2001 → 2003",
        "users changed: eve: id none → 2004",
        "users removed: bob",
    ]
    said = table.refusal(found, [])
    assert said is not None
    assert said.text.splitlines() == [
        "this is not possible: put the old value back:",
        "  user ada: users.id 2001 → 2003: is not possible (the files of ada belong to 2001)",
    ]


def test_jobs_of_a_partition_that_gets_pools_wait_on_and_those_on_its_former_nodes_end() -> None:
    whole = Partition("train", "local.small", 1, 1024, 0, 2)
    pools = [dataclasses.replace(whole, name=f"train-{name}", pool=name) for name in ("spot", "od")]
    old = dataclasses.replace(up(), partitions=(whole,))
    new = dataclasses.replace(old, partitions=tuple(pools))
    found = table.compare(old, new, RULES)
    assert [(change.part, change.kind) for change in found] == [
        ("partition train", Kind.ENDS),
        ("pool train-spot", Kind.LIVE),
        ("pool train-od", Kind.LIVE),
    ]
    waits, runs, other = (a_job(nodes=nodes) for nodes in ("", "train-1", "other-0"))
    assert not any(change.costs(waits) or change.costs(other) for change in found)
    assert [change.costs(runs) for change in found] == [True, False, False]
    (gone,) = table.compare(new, dataclasses.replace(new, partitions=(pools[1],)), RULES)
    assert gone.costs(a_job(nodes="train-spot-0"))
    assert not gone.costs(a_job(nodes="train-od-0"))
    less = dataclasses.replace(pools[0], max=1)
    (shrunk,) = table.compare(new, dataclasses.replace(new, partitions=(less, pools[1])), RULES)
    assert shrunk.costs(a_job(nodes="train-spot-1"))
    assert not shrunk.costs(a_job(nodes="train-od-1"))


def test_a_partition_with_the_nodes_of_another_goes_without_nodes_and_is_closed_with_them() -> None:
    whole, urgent = Partition("train", "local.small", 1, 1024, 0, 2), SharedPartition("urgent", "train")
    alone = dataclasses.replace(up(), partitions=(whole,))
    both = dataclasses.replace(alone, shared_partitions=(urgent,))
    (added,) = table.compare(alone, both, RULES)
    assert (added.line(), added.kind) == (
        "partition urgent is new: applied to the running cluster",
        Kind.LIVE,
    )
    (removed,) = table.compare(both, alone, RULES)
    assert removed.kind is Kind.ENDS
    its = dataclasses.replace(a_job(nodes="train-0"), partition="urgent")
    assert removed.costs(its)
    assert not removed.costs(a_job(nodes="train-0")), "a job of the other partition keeps its node"
    later = dataclasses.replace(both, shared_partitions=(dataclasses.replace(urgent, time_limit="01:00:00"),))
    (limit,) = table.compare(both, later, RULES)
    assert (limit.key, limit.partition, limit.kind) == ("partitions.time_limit", "urgent", Kind.LIVE)
    less = dataclasses.replace(both, partitions=(dataclasses.replace(whole, max=1),))
    (shrunk,) = table.compare(both, less, RULES)
    assert shrunk.costs(dataclasses.replace(its, nodes="train-1"))
    assert table.holds([shrunk])[1] == frozenset({"train", "urgent"}), "neither may start a job on what goes"
    retyped = dataclasses.replace(both, partitions=(dataclasses.replace(whole, instance_type="local.large"),))
    (renewed,) = table.compare(both, retyped, RULES)
    assert renewed.concerns(its) == "goes on; its nodes are removed when it is over"
