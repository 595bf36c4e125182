"""Storage on Google Cloud that exists already, that stays after a destroy, or that a destroy saves."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from pulumi.runtime import mocks

from infra.gcp.network import GcpNetwork
from infra.gcp.storage import GcpStorage, snapshot_prefix
from node.design.model import ClusterDesign
from node.design.sites import MountSource
from node.design.storage import Mount
from tests.support.gcp_mocks import EXISTING, FILESTORE, NFS, PROJECT, Gcp, declare, gcp_design
from tests.support.recorder import Recorder

FILER = Mount("/home", "nfs", existing="filer.lab:/export/home", name="home")
DISK = dataclasses.replace(NFS[0], existing="lab-home", name="home", size_gib=None)
STORE = Mount("/home", "filestore", existing="lab-store", name="home")
ELSEWHERE = dataclasses.replace(STORE, existing="projects/other/locations/europe-west4/instances/lab-store")


class Project(Gcp):
    """A project with a Filestore instance that nobody of this cluster has made."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: dict[str, Any] = {}

    def call(self, args: mocks.MockCallArgs) -> Any:
        if args.token == "gcp:filestore/getInstance:getInstance":
            self.asked = dict(args.args)
            there = {"networks": [{"ipAddresses": ["10.9.8.2"]}], "fileShares": [{"name": "vol1"}]}
            return {**there, "id": "x", **args.args}
        return super().call(args)


def storage(
    design: ClusterDesign, project: Project | None = None, site: dict[str, MountSource] | None = None
) -> tuple[Recorder, list[Any]]:
    attached: list[Any] = []

    def program() -> None:
        gcp_storage = GcpStorage("s", design, GcpNetwork("n", design, ()))
        attached.extend(gcp_storage.attached())
        if site is not None:
            gcp_storage.mounts().apply(site.update)

    return declare(program, gcp=project or Project()), attached


@pytest.mark.parametrize(
    ("mount", "resources", "source"),
    [
        (FILER, set(), MountSource("filer.lab:/export/home")),
        (
            DISK,
            set(),
            MountSource(
                disk=f"projects/{PROJECT}/zones/europe-west4-a/disks/lab-home",
                device="/dev/disk/by-id/google-slurm-stacks-home",
            ),
        ),
        (STORE, {"s-home-locks"}, MountSource("10.9.8.2:/vol1")),
    ],
)
def test_what_is_there_is_mounted_and_nothing_of_it_is_made(
    mount: Mount, resources: set[str], source: MountSource
) -> None:
    site: dict[str, MountSource] = {}
    made, attached = storage(gcp_design(mounts=(mount,), network=EXISTING), site=site)
    assert {name for name in made.types() if name.startswith("s-")} == resources
    assert site == {"/home": source}
    assert len(attached) == (source.disk is not None)


@pytest.mark.parametrize(
    ("mount", "place"), [(STORE, (PROJECT, "europe-west4-a")), (ELSEWHERE, ("other", "europe-west4"))]
)
def test_an_instance_is_asked_for_where_it_is(mount: Mount, place: tuple[str, str]) -> None:
    project = Project()
    made, _ = storage(gcp_design(mounts=(mount,), network=EXISTING), project)
    assert (project.asked["project"], project.asked["location"]) == place
    assert project.asked["name"] == "lab-store"
    assert made.inputs("s-home-locks")["sourceRanges"] == ["10.9.8.2/32"]


def test_a_destroy_leaves_what_is_kept_and_saves_what_is_to_be_saved() -> None:
    kept = dataclasses.replace(NFS[0], keep=True, name="home")
    saved = dataclasses.replace(NFS[1], snapshot=True, restore="of-march", name="apps")
    shares = dataclasses.replace(FILESTORE, path="/data", keep=True, name="scratch")
    made, _ = storage(gcp_design(mounts=(kept, saved, shares), network=EXISTING))
    assert {name for name, asked in made.asked.items() if asked.retainOnDelete} == {"s-home", "s-data"}
    assert made.inputs("s-home")["labels"]["slurm-stacks-keep"] == "home"
    assert made.inputs("s-data")["labels"]["slurm-stacks-keep"] == "scratch"
    apps = made.inputs("s-apps")
    assert (apps["createSnapshotBeforeDestroy"], apps["createSnapshotBeforeDestroyPrefix"]) == (
        True,
        "c-apps",
    )
    assert apps["snapshot"] == "of-march"
    assert list(made.asked["s-apps"].ignoreChanges) == ["snapshot"]


def test_a_snapshots_name_has_room_for_its_time() -> None:
    name = f"{snapshot_prefix('c' * 63)}-20260102-150405"
    assert len(name) == 63
