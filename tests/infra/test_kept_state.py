"""The disk with Slurm's state on both clouds: what a new head replaces, and what it leaves.

What is replaced and deleted first follows from the plan, by the engine's rules.
"""

from __future__ import annotations

import functools
from typing import Any

import pytest

from tests.support import replacements
from tests.support.replacements import Run, of_stack
from tests.support.stack_parts import UNMAINTAINED

KEPT: dict[str, Any] = {"slurm.accounting": True, **UNMAINTAINED}


@functools.cache
def up(stack: str) -> Run:
    return of_stack(stack, KEPT)


def names(before: Run, urns: list[str]) -> list[str]:
    return [before.declared[urn].name.partition("-")[2] for urn in urns]


def test_the_disk_is_encrypted_and_a_resource_of_its_own() -> None:
    volume = up("aws").named("-storage-state")
    assert (volume.type, volume.inputs["size"]) == ("aws:ebs/volume:Volume", 20)
    assert (volume.inputs["encrypted"], volume.inputs["type"]) == (True, "gp3")
    attachment = up("aws").named("-disks-state")
    assert attachment.inputs["deviceName"] == "/dev/sdh"
    assert attachment.from_["volumeId"] >= {volume.urn}
    assert attachment.inputs["stopInstanceBeforeDetaching"] is True
    # Google encrypts every disk.
    disk = up("gcp").named("-storage-state")
    assert (disk.type, disk.inputs["size"], disk.inputs["name"]) == ("gcp:compute/disk:Disk", 20, "lab-state")
    attached = up("gcp").named("-head-controller").inputs["attachedDisks"]
    assert [one["deviceName"] for one in attached] == [
        f"slurm-stacks-{name}" for name in ("home", "apps", "state")
    ]
    assert {one["mode"] for one in attached} == {"READ_WRITE"}, "one machine has it at a time"


def test_without_it_there_is_none() -> None:
    for stack in ("aws", "gcp"):
        plan = of_stack(stack, {**KEPT, "controller.state": "machine"})
        assert not [one.name for one in plan.declared.values() if one.name.endswith("-state")]


@pytest.mark.parametrize(
    ("stack", "first"),
    [
        # In this order: the machine stops, its disks are detached, then it goes, and its successor gets them.
        ("aws", ["disks-state", "disks-apps", "disks-home", "head-controller"]),
        # Google detaches with the machine.
        ("gcp", ["head-controller"]),
    ],
)
def test_a_head_that_is_replaced_gives_its_disk_back_before_it_goes(stack: str, first: list[str]) -> None:
    before = up(stack)
    assert names(before, replacements.deletions(before, before.named("-head-controller").urn)) == first
    assert before.named("-head-controller").deleted_first, "no two machines have the disk"


def test_a_new_root_disk_takes_no_disk_with_data_along() -> None:
    """This is the explicit act with which a head gets another image on Google Cloud."""
    before = up("gcp")
    gone = names(before, replacements.deletions(before, before.named("-head-controller-disk").urn))
    assert gone == ["head-controller", "head-controller-disk"]


@pytest.mark.parametrize(
    ("stack", "changes"),
    [
        ("aws", {"access.key": "another"}),
        ("aws", {"controller.instance_type": "c5.2xlarge"}),
        ("aws", {"controller.image": {"id": "ami-0123456789abcdef0"}}),
        ("aws", {"controller.disk_gib": 100}),
        ("aws", {"network": {"cidr": "10.9.0.0/16"}}),
        ("gcp", {"controller.instance_type": "n1-standard-8"}),
        ("gcp", {"controller.disk_gib": 100}),
        ("gcp", {"network": {"cidr": "10.9.0.0/16"}}),
    ],
)
def test_no_change_of_the_head_replaces_the_disk(stack: str, changes: dict[str, Any]) -> None:
    before, after = up(stack), of_stack(stack, {**KEPT, **changes})
    gone = names(before, list(replacements.replaced(before, after)))
    assert "storage-state" not in gone
    if "access.key" in changes:
        assert {"head-controller", "disks-state"} <= set(gone), "it is a new head, which gets the disk"


@pytest.mark.parametrize(
    ("stack", "mode"),
    [
        ("aws", {"access": {"mode": "ssh", "key": "lab", "ssh_cidrs": ["198.51.100.0/24"]}}),
        ("aws", {"login": {"count": 1}}),
        ("gcp", {"access": {"mode": "ssh", "ssh_cidrs": ["198.51.100.0/24"]}}),
        ("gcp", {"login": {"count": 1}}),
    ],
)
def test_the_head_keeps_its_address_whoever_reaches_it_and_from_where(
    stack: str, mode: dict[str, Any]
) -> None:
    """Nodes know the head by its address: slurmd, their mounts of /home and /apps, the name server."""
    closed, reached = up(stack), of_stack(stack, {**KEPT, **mode})
    for before, after in ((closed, reached), (reached, closed)):
        gone = names(before, list(replacements.replaced(before, after)))
        stay = ("addresses-", "network-", "storage-", "termination")
        assert [name for name in gone if name.startswith(stay)] == []
        if stack == "aws":
            # A key pair is given at the launch. The successor gets disks and address.
            assert ("head-controller" in gone) == ("key" in mode.get("access", {}))


@pytest.mark.parametrize(
    ("stack", "zone", "restore", "key"),
    [
        ("aws", {"network": {"zones": ["us-east-1b"]}}, "snap-0123456789abcdef0", "snapshotId"),
        ("gcp", {"gcp:zone": "europe-west4-b"}, "state-of-lab", "snapshot"),
    ],
)
def test_in_another_zone_the_disk_begins_as_a_snapshot_or_empty(
    stack: str, zone: dict[str, Any], restore: str, key: str
) -> None:
    """A disk cannot leave its zone; `up` refuses this of a cluster that is up (test_clouds_lost_files.py)."""
    before, after = up(stack), of_stack(stack, {**KEPT, **zone, "storage.state.restore": restore})
    old, new = before.named("-storage-state"), after.named("-storage-state")
    place = "availabilityZone" if stack == "aws" else "zone"
    assert old.inputs[place] != new.inputs[place]
    assert (old.inputs.get(key), new.inputs[key]) == (None, restore)
    assert place in replacements.replaced(before, after)[old.urn]
    empty = of_stack(stack, {**KEPT, **zone}).named("-storage-state")
    assert empty.inputs.get(key) is None


@pytest.mark.parametrize("stack", ["aws", "gcp"])
def test_down_keeps_it_on_wish(stack: str) -> None:
    assert of_stack(stack, {**KEPT, "storage.state.keep": True}).named("-storage-state").stays
    assert not up(stack).named("-storage-state").stays
    saved = of_stack(stack, {**KEPT, "storage.state.snapshot": True}).named("-storage-state").inputs
    assert saved.get("finalSnapshot") or saved.get("createSnapshotBeforeDestroy")
