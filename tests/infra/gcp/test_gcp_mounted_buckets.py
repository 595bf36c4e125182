"""Machines that mount a bucket of Cloud Storage have the one role on it that its mount needs."""

from __future__ import annotations

import dataclasses

from infra.gcp.identity import AccessTargets, GcpAccounts, GcpIdentity
from node.design.model import Backup
from node.design.storage import Mount
from tests.support.cel import holds
from tests.support.gcp_mocks import CONTROLLER, LOGIN, NFS, declare, gcp_design

READ = Mount("/data", "gcs", ("login", "compute"), existing="gs://lab-data/train", options="ro")
WRITE = dataclasses.replace(READ, path="/out", existing="gs://lab-out", options="rw")
SAME = dataclasses.replace(WRITE, path="/all", existing="gs://lab-data")


def test_a_mount_is_one_grant_on_its_bucket_for_each_role_that_mounts_it() -> None:
    design = gcp_design(mounts=(*NFS, READ, WRITE), hosts=(CONTROLLER, LOGIN))
    targets = AccessTargets("store", "projects/p/secrets/s", "subnetwork")
    made = declare(lambda: GcpIdentity("i", design, GcpAccounts("a", design), targets))
    grants = {name: made.inputs(name) for name in made.types() if "-mount-" in name}
    assert {name: (grant["bucket"], grant["role"].rpartition(".")[2]) for name, grant in grants.items()} == {
        f"i-{role}-mount-{number}": what
        for role in ("login", "compute")
        for number, what in enumerate((("lab-data", "objectViewer"), ("lab-out", "objectUser")))
    }
    assert all("condition" not in grant for grant in grants.values())


def test_a_bucket_that_is_mounted_twice_has_the_wider_role_alone() -> None:
    design = gcp_design(mounts=(SAME, READ))
    targets = AccessTargets("store", "projects/p/secrets/s", "subnetwork")
    made = declare(lambda: GcpIdentity("i", design, GcpAccounts("a", design), targets))
    (only,) = (made.inputs(name) for name in made.types() if "-compute-mount-" in name)
    assert only["role"] == "roles/storage.objectUser"


def test_the_controller_alone_has_a_grant_on_this_clusters_backups() -> None:
    design = gcp_design(name="c", hosts=(CONTROLLER, LOGIN), backup=Backup("gs://lab-backups/slurm"))
    targets = AccessTargets("store", "projects/p/secrets/s", "subnetwork")
    made = declare(lambda: GcpIdentity("i", design, GcpAccounts("a", design), targets))
    ((name, grant),) = ((name, made.inputs(name)) for name in made.types() if "backups" in name)
    assert (name, grant["bucket"], grant["role"]) == (
        "i-controller-backups", "lab-backups", "roles/storage.objectUser",
    )  # fmt: skip
    limit = grant["condition"]["expression"]
    whole = "projects/_/buckets/lab-backups"
    for resource, wanted in (
        (whole, True),
        (f"{whole}/objects/slurm/c-20261126T000000Z.backup.tar", True),
        (f"{whole}/objects/slurm/other-20261126T000000Z.backup.tar", False),
        (f"{whole}/objects/c-20261126T000000Z.backup.tar", False),
    ):
        assert holds(limit, "storage.googleapis.com/Object", resource) is wanted
