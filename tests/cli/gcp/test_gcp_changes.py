"""Changes of a running cluster on Google Cloud: what its keys say."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from cli.changes import table as changes
from cli.changes.table import Change, refusal
from cli.providers.gcp.changes import RULES
from infra.effects import Kind
from node.design.accelerators import Accelerator
from node.design.model import ClusterDesign, GcpPartition, Hook, Network
from tests.support.gcp_mocks import CONTROLLER, CPU, FILESTORE, GPU, LOGIN, NFS, gcp_design, gcp_ssh_design


def compare(old: ClusterDesign, new: ClusterDesign) -> list[Change]:
    return changes.compare(old, new, RULES)


def cpu(**values: Any) -> dict[str, Any]:
    return {"partitions": (dataclasses.replace(CPU, **values), GPU)}


def gpu(**values: Any) -> dict[str, Any]:
    return {"partitions": (CPU, dataclasses.replace(GPU, **values))}


def home(**values: Any) -> dict[str, Any]:
    return {"mounts": (dataclasses.replace(NFS[0], **values), NFS[1])}


def head(**values: Any) -> dict[str, Any]:
    return {"hosts": (dataclasses.replace(CONTROLLER, **values),)}


CASES = [
    (cpu(time_limit="01:00:00"), [("partitions.time_limit", Kind.LIVE)]),
    (cpu(max=20), [("partitions.nodes.max", Kind.LIVE)]),
    (cpu(max=2), [("partitions.nodes.max", Kind.ENDS)]),
    (
        cpu(instance_type="n1-standard-8", cpus=8, memory_mib=29420),
        [("partitions.instance_type", Kind.RENEWED)],
    ),
    (gpu(accelerator=Accelerator("v100", 4)), [("partitions.accelerator", Kind.RENEWED)]),
    (gpu(gcp=GcpPartition(secure_boot=True)), [("partitions.gcp.secure_boot", Kind.RENEWED)]),
    (gpu(gcp=GcpPartition(placement_policy="p")), [("partitions.gcp.placement_policy", Kind.RENEWED)]),
    (cpu(zones=("europe-west4-a", "europe-west4-b")), [("partitions.zones", Kind.NODES)]),
    (cpu(zones=("europe-west4-a",)), []),
    ({"partitions": (CPU,)}, [("partitions.name", Kind.ENDS)]),
    (head(instance_type="n1-standard-8"), [("controller.instance_type", Kind.PAUSE)]),
    (head(disk_gib=60), [("controller.disk_gib", Kind.LIVE)]),
    (head(disk_gib=40), [("controller.disk_gib", Kind.NEVER)]),
    (head(image="i"), [("controller.image", Kind.NOTHING)]),
    ({"hosts": (CONTROLLER, LOGIN)}, [("login.count", Kind.LIVE)]),
    (cpu(open_metadata=True), [("partitions.open_metadata", Kind.RENEWED)]),
    (home(size_gib=60), [("storage.*.size_gib", Kind.LIVE)]),
    (home(size_gib=40), [("storage.*.size_gib", Kind.NEVER)]),
    ({"mounts": (FILESTORE, NFS[1])}, [("storage.*.kind", Kind.DATA)]),
    ({"hooks": (Hook("compute", "x.sh"),)}, [("hooks", Kind.NODES)]),
    (
        {"network": Network(cidr="10.1.0.0/16", public_cidr="10.1.0.0/17", private_cidr="10.1.128.0/17")},
        [("network.cidr", Kind.HEAD)],
    ),
    ({"name": "d"}, [("name", Kind.DATA)]),
    ({"project": "p-2"}, [("gcp:project", Kind.DATA)]),
    ({"zone": "europe-west4-b"}, [("gcp:zone", Kind.DATA)]),
]


@pytest.mark.parametrize(("what", "expected"), CASES, ids=range(len(CASES)))
def test_a_change_is_what_its_row_says(what: dict[str, Any], expected: list[tuple[str, Kind]]) -> None:
    old = gcp_design(partitions=tuple(dataclasses.replace(p, zones=("europe-west4-a",)) for p in (CPU, GPU)))
    assert [(change.key, change.kind) for change in compare(old, gcp_design(**what))] == expected


def test_nodes_are_renewed_for_what_is_no_field_of_their_partition() -> None:
    """Partitions' fields are held to the template and to slurm.conf where templates are made."""
    assert {
        key
        for key, row in RULES.table.items()
        if row.kind is Kind.RENEWED and not any(field.startswith("partitions.") for field in row.fields)
    } == {"image.id", "image.bake", "image.revision", "tags"}


def test_another_tier_of_filestore_is_another_file_system() -> None:
    def kinds(**values: Any) -> list[Kind]:
        designs = (gcp_design(mounts=(m,)) for m in (FILESTORE, dataclasses.replace(FILESTORE, **values)))
        return [change.kind for change in compare(*designs)]

    assert kinds(deployment="ZONAL") == [Kind.DATA]
    assert kinds(size_gib=2048) == [Kind.LIVE]
    assert kinds(size_gib=512) == [Kind.NEVER]


def test_a_public_address_comes_and_goes_without_a_new_head() -> None:
    found = compare(gcp_design(), gcp_ssh_design())
    assert {change.key: change.kind for change in found} == {
        "access.mode": Kind.LIVE, "access.ssh_cidrs": Kind.LIVE,
    }  # fmt: skip


def test_nothing_of_a_new_zone_is_said_twice() -> None:
    found = compare(gcp_design(), gcp_design(zone="us-east1-c", region="us-east1"))
    assert [change.key for change in found] == ["gcp:region", "gcp:zone"]


def test_what_deletes_files_is_refused_without_jobs_too() -> None:
    assert "deletes files" in str(refusal(compare(gcp_design(), gcp_design(zone="europe-west4-b")), []))
    never = compare(gcp_design(), gcp_design(**home(size_gib=40)))
    assert "only grow" in str(refusal(never, []))
