"""A cluster in its project: machines by label, termination and leftovers, within a time limit, no other's."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from google.cloud import compute_v1 as gce

from infra.clouds.commands import ClusterRef
from node.bootstrap.vm.images import ROLE as IMAGE
from node.design.model import Access
from node.elastic.drivers.gce.names import CLUSTER, ROLE, SLURM, STACK, value
from operations.clouds import termination
from operations.gcp import machines
from operations.gcp.cloud import GcpCloud
from operations.gcp.leftovers import KINDS, leftovers
from tests.support import sentences
from tests.support.fake_gce import Fault
from tests.support.fake_gce_cloud import Failing
from tests.support.fake_google import BUCKET, Project, project

A, B = "europe-west4-a", "europe-west4-b"
PLACE = ClusterRef("c", "europe-west4", A, "p-1")


@pytest.fixture(scope="module")
def shared() -> Iterator[Project]:
    """One for the whole module: making it takes a second, because the library reads its messages."""
    with project() as made:
        yield made


@pytest.fixture
def gcp_project(shared: Project) -> Project:
    shared.empty()
    return shared


def cloud(gcp_project: Project, cluster: str = "c") -> GcpCloud:
    return GcpCloud(ClusterRef(cluster, PLACE.region, A, "p-1"), lambda _: gcp_project.account)


class Clock:
    """Pauses that take no longer than the fake needs, and that may change its state."""

    def __init__(self, gcp_project: Project, *then: Any) -> None:
        self.there = gcp_project
        self.then = list(then)
        self.pauses = 0

    def __call__(self, _seconds: float) -> None:
        import time

        self.pauses += 1
        time.sleep(0.05)
        if self.then:
            self.then.pop(0)()


def terminate(gcp_project: Project, *then: Any, **options: Any) -> tuple[int, list[str]]:
    said: list[str] = []
    ended = termination.terminate_compute(
        cloud(gcp_project), said.append, sleep=Clock(gcp_project, *then), **options
    )
    return ended, said


def names(gcp_project: Project) -> set[str]:
    return {str(instance.name) for instance in gcp_project.gce.cloud.instances()}


# --- machines ---------------------------------------------------------------------------------------------


def test_machines_are_those_of_the_cluster_in_every_zone(gcp_project: Project) -> None:
    gcp_project.bucket()
    gcp_project.head()
    gcp_project.node("cpu-1", zone=B, status="STAGING")
    gcp_project.node("cpu-2", status="TERMINATED")
    gcp_project.node("cpu-3", cluster="c-2")
    found = {one.name: one for one in cloud(gcp_project).machines()}
    assert {name: (one.role, one.state, one.zone, one.bucket) for name, one in found.items()} == {
        "controller": ("controller", "running", A, BUCKET),
        "cpu-1": ("compute", "pending", B, None),
        "cpu-2": ("compute", "stopped", A, None),
    }
    assert found["controller"].id == "c-controller"
    assert found["controller"].private == "10.0.0.2"
    assert found["controller"].public is None
    assert [one.name for one in cloud(gcp_project).machines("stopped", role="compute")] == ["cpu-2"]
    assert [one.name for one in cloud(gcp_project).machines(host="controller")] == ["controller"]


def test_when_a_machine_started_is_when_it_last_started(gcp_project: Project) -> None:
    gcp_project.head()
    (machine,) = gcp_project.gce.cloud.instances()
    machine.last_start_timestamp = "2026-11-21T12:00:00.000-08:00"
    assert cloud(gcp_project).machines()[0].launched == 1795291200.0
    machine.last_start_timestamp = ""
    assert cloud(gcp_project).machines()[0].launched < 1795291200.0 or machine.creation_timestamp


def test_a_stopped_machine_is_started_and_why_it_cannot_is_said(gcp_project: Project) -> None:
    gcp_project.head(status="TERMINATED")
    one = cloud(gcp_project)
    one.start(one.machines())
    assert one.machines()[0].state == "running"
    gcp_project.gce.status("c-controller", "TERMINATED")
    gcp_project.gce.faults = [Fault("instances.start", "quotaExceeded", 403)]
    with sentences.raises("gcp.quota", "p-1"):
        one.start(one.machines())


def test_a_start_that_fails_at_its_end_is_said_too() -> None:
    """Compute Engine reports missing capacity only on the operation."""
    from operations.gcp.machines import finish

    wrong = {"code": "ZONE_RESOURCE_POOL_EXHAUSTED", "message": "try another zone"}
    over = {"name": "o", "zone": f"https://x/zones/{A}", "status": "DONE", "error": {"errors": [wrong]}}
    with sentences.raises("gcp.operation-failed", "ZONE_RESOURCE_POOL_EXHAUSTED"):
        finish(None, over, "x cannot be started")  # type: ignore[arg-type]


def test_a_project_that_is_not_said_is_asked_for() -> None:
    with sentences.raises("gcp.no-project"):
        GcpCloud(ClusterRef("c", "r", "r-a")).machines()


# --- the bucket -------------------------------------------------------------------------------------------


def test_objects_are_read_and_what_is_not_there_is_nothing(gcp_project: Project) -> None:
    gcp_project.bucket("another", "c-zz")
    gcp_project.bucket()
    gcp_project.report("login-0", "ready")
    one = cloud(gcp_project)
    assert json.loads(one.read(BUCKET, "boot/login-0.json") or b"")["state"] == "ready"
    assert one.read(BUCKET, "boot/controller.json") is None
    assert one.read("none", "current.json") is None
    assert one.changed(BUCKET, "current.json") == pytest.approx(
        gcp_project.objects["current.json"][1], abs=1.0
    )


# --- SSH access -------------------------------------------------------------------------------------------


def test_the_address_is_the_instances_name_behind_the_proxy_and_a_public_one_else(
    gcp_project: Project,
) -> None:
    gcp_project.head()
    (instance,) = gcp_project.gce.cloud.instances()
    config = gce.AccessConfig(nat_i_p="192.0.2.7")
    instance.network_interfaces = [gce.NetworkInterface(network_i_p="10.0.0.2", access_configs=[config])]
    one = cloud(gcp_project)
    (machine,) = one.machines()
    assert machine.ssh_host(Access("iap")) == "c-controller"
    assert machine.ssh_host(Access("ssh")) == "192.0.2.7"
    assert one.stop_line(machine) == f"gcloud compute instances stop c-controller --project p-1 --zone {A}"
    assert "get-serial-port-output c-controller" in one.console_line(machine)


# --- a head that is gone or faulty --------------------------------------------------------------------------


def test_a_machine_whose_host_has_failed_is_in_failure(gcp_project: Project) -> None:
    gcp_project.head()
    one = cloud(gcp_project)
    assert one.failure(one.machines()[0]) is None
    gcp_project.gce.status("c-controller", "REPAIRING")
    (machine,) = one.machines()
    assert machine.state == "running", "it is not made again"
    assert one.failure(machine) == "it is REPAIRING, because its host has failed"


def test_a_root_disk_and_the_bucket_outlive_their_machine(gcp_project: Project) -> None:
    one = cloud(gcp_project)
    assert not one.keeps_root_disk("controller")
    assert one.bucket() is None
    gcp_project.gce.cloud.put(f"zones/{A}", "disks", gce.Disk(name="c-controller"))
    gcp_project.bucket()
    assert one.keeps_root_disk("controller")
    assert not one.keeps_root_disk("login-0")
    assert one.bucket() == BUCKET


@pytest.mark.parametrize(
    "named",
    [
        "own", "projects/p-1/global/images/own",
        "https://www.googleapis.com/compute/v1/projects/p-1/global/images/own",
    ],
)  # fmt: skip
def test_the_release_of_slurm_is_in_an_images_labels(gcp_project: Project, named: str) -> None:
    one = cloud(gcp_project)
    assert one.image_slurm(named) is None, "there is none"
    gcp_project.gce.cloud.put("global", "images", gce.Image(name="own"))
    assert one.image_slurm(named) is None
    gcp_project.gce.cloud.put("global", "images", gce.Image(name="own", labels={SLURM: value("23.11")}))
    assert one.image_slurm(named) == "23.11"


# --- termination --------------------------------------------------------------------------------------------


def test_it_ends_every_node_and_nothing_else(gcp_project: Project) -> None:
    for number in range(3):
        gcp_project.node(f"cpu-{number}", zone=(A, B)[number % 2])
    gcp_project.node("gpu-0", status="TERMINATED")
    gcp_project.head()
    gcp_project.head("login-0")
    gcp_project.node("cpu-0", cluster="c-2")
    ended, said = terminate(gcp_project)
    assert ended == 4
    assert said[0] == "ending 4 machines of cluster c"
    assert names(gcp_project) == {"c-controller", "c-login-0", "c-2-cpu-0"}


def test_a_launch_that_the_list_shows_late_is_ended_too(gcp_project: Project) -> None:
    gcp_project.node("cpu-0")
    ended, _ = terminate(gcp_project, lambda: gcp_project.node("cpu-1"))
    assert ended == 2
    assert names(gcp_project) == set()


def test_a_deletion_is_asked_for_once_while_it_goes_on(gcp_project: Project) -> None:
    gcp_project.gce.cloud.seconds = 0.15
    try:
        gcp_project.node("cpu-0")
        assert terminate(gcp_project)[0] == 1
    finally:
        gcp_project.gce.cloud.seconds = 0.01
    assert gcp_project.gce.counts()["instances.delete"] == 1


def test_what_does_not_end_is_named_after_the_time_is_up(gcp_project: Project) -> None:
    gcp_project.node("cpu-5")
    gcp_project.gce.cloud.failing = [Failing("delete", "RESOURCE_OPERATION_RATE_EXCEEDED")]
    with sentences.raises("cloud.machines-left", "c-cpu-5"):
        terminate(gcp_project, seconds=0)


def test_what_google_refuses_is_said_in_its_words(gcp_project: Project) -> None:
    gcp_project.node("cpu-0")
    gcp_project.gce.faults = [
        Fault("instances.delete", "forbidden", message="Required 'compute.instances.delete'")
    ]
    with sentences.raises("gcp.not-allowed", "p-1"):
        terminate(gcp_project)


def test_one_that_google_refuses_keeps_no_other_from_its_end(
    gcp_project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are many more than are deleted at once, so later ones have not begun when one is refused."""
    monkeypatch.setattr(machines, "WORKERS", 2)
    for number in range(40):
        gcp_project.node(f"cpu-{number}")
    gcp_project.gce.faults = [Fault("instances.delete", "forbidden", message="it is protected", times=1)]
    with sentences.raises("gcp.not-allowed"):
        terminate(gcp_project)
    gcp_project.gce.cloud.advance(1)
    assert len(names(gcp_project)) == 1


def test_one_that_somebody_else_deletes_is_no_error(gcp_project: Project) -> None:
    gcp_project.node("cpu-0")
    gcp_project.gce.faults = [Fault("instances.delete", "notFound", 404, done=True, times=1)]
    assert terminate(gcp_project)[0] == 1


def disk(gcp_project: Project, name: str, user: str | None = None, **labels: str) -> None:
    users = [f"https://x/zones/{A}/instances/{user}"] if user else []
    zone = f"https://x/zones/{A}"
    made = gce.Disk(
        name=name, size_gb=50, status="READY", zone=zone, users=users, labels={CLUSTER: "c", **labels}
    )
    gcp_project.gce.cloud.put(f"zones/{A}", "disks", made)


def test_disks_that_nodes_left_are_removed_and_the_heads_are_not(gcp_project: Project) -> None:
    gcp_project.head()
    disk(gcp_project, "c-cpu-0", **{ROLE: "compute"})
    disk(gcp_project, "c-home", "c-controller")
    # The disk of a machine that is being deleted is deleted with it.
    disk(gcp_project, "c-cpu-1", "c-cpu-1", **{ROLE: "compute"})
    disk(gcp_project, "c-apps")
    terminate(gcp_project)
    gcp_project.gce.cloud.advance(1.0)
    assert set(gcp_project.gce.cloud.at(f"zones/{A}", "disks")) == {"c-home", "c-apps", "c-cpu-1"}


def test_images_go_with_the_machines_that_became_them_and_nothing_else_does(gcp_project: Project) -> None:
    marks = {CLUSTER: "c", ROLE: IMAGE}
    gcp_project.head()
    gcp_project.gce.cloud.put("global", "images", gce.Image(name="c-image-compute-1", labels={CLUSTER: "c"}))
    gcp_project.gce.cloud.put("global", "images", gce.Image(name="d-image-compute-1", labels={CLUSTER: "d"}))
    gcp_project.machine("c-image-compute-1", status="TERMINATED", **marks)
    disk(gcp_project, "c-image-compute-1", **marks)
    disk(gcp_project, "c-home", "c-controller")
    said: list[str] = []
    cloud(gcp_project).end_images(said.append)
    gcp_project.gce.cloud.advance(1.0)
    assert names(gcp_project) == {"c-controller"}
    assert set(gcp_project.gce.cloud.at("global", "images")) == {"d-image-compute-1"}
    assert set(gcp_project.gce.cloud.at(f"zones/{A}", "disks")) == {"c-home"}
    assert said == ["deleting 1 image of cluster c"]
    cloud(gcp_project).end_images(said.append)
    assert len(said) == 1, "where there are none nothing is said"


def test_a_builder_that_is_just_gone_keeps_no_image_here(gcp_project: Project) -> None:
    gcp_project.gce.cloud.put("global", "images", gce.Image(name="c-image-compute-1", labels={CLUSTER: "c"}))
    gcp_project.machine("c-image-compute-1", status="TERMINATED", **{CLUSTER: "c", ROLE: IMAGE})
    gcp_project.gce.faults = [Fault("instances.delete", "notFound", 404, done=True, times=1)]
    cloud(gcp_project).end_images(lambda text: None)
    gcp_project.gce.cloud.advance(1.0)
    assert names(gcp_project) == set()
    assert gcp_project.gce.cloud.at("global", "images") == {}


def test_several_pages_of_them_are_ended_each_once(gcp_project: Project) -> None:
    gcp_project.gce.page = 50
    for number in range(101):
        gcp_project.node(f"cpu-{number}")
    assert terminate(gcp_project)[0] == 101
    assert names(gcp_project) == set()
    assert gcp_project.gce.counts()["instances.delete"] == 101


# --- leftovers --------------------------------------------------------------------------------------------


def fill(gcp_project: Project, cluster: str) -> None:
    """One resource of each kind, named as the components name them."""
    marks = {CLUSTER: cluster}
    of = f"of cluster {cluster}"
    put = gcp_project.gce.cloud.put
    gcp_project.head(cluster=cluster)
    put(f"zones/{A}", "disks", gce.Disk(name=f"{cluster}-home", size_gb=50, status="READY", labels=marks))
    put(
        "regions/europe-west4",
        "addresses",
        gce.Address(name=f"{cluster}-controller", labels=marks, status="RESERVED"),
    )
    put("global", "images", gce.Image(name=f"{cluster}-image", labels=marks, status="READY"))
    put("global", "snapshots", gce.Snapshot(name=f"{cluster}-snapshot", labels=marks, status="READY"))
    put(
        "regions/europe-west4",
        "instanceTemplates",
        gce.InstanceTemplate(name=f"{cluster}-cpu-1", description=of),
    )
    put("regions/europe-west4", "resourcePolicies", gce.ResourcePolicy(name=f"{cluster}-cpu", description=of))
    put(
        "global",
        "firewalls",
        gce.Firewall(name=f"{cluster}-ssh", description=f"users to the nodes, cluster {cluster}"),
    )
    put(
        "regions/europe-west4", "routers", gce.Router(name=cluster if cluster == "c" else f"{cluster}-router")
    )
    put("regions/europe-west4", "subnetworks", gce.Subnetwork(name=cluster, description=of))
    put("global", "networks", gce.Network(name=cluster, description=f"the cluster network {of}"))
    gcp_project.buckets.append({"name": f"{cluster}-9z", "labels": marks})
    gcp_project.secrets.append({"name": f"projects/123/secrets/{cluster}-munge", "labels": marks})
    files = f"projects/p-1/locations/{A}/instances/{cluster}-home"
    gcp_project.filestores.append({"name": files, "labels": marks, "state": "READY"})


def test_the_report_of_leftovers_names_one_of_everything_and_nobody_elses(gcp_project: Project) -> None:
    fill(gcp_project, "c")
    fill(gcp_project, "c-2")
    fill(gcp_project, "other")
    assert leftovers(gcp_project.account, "c") == [
        "instance c-controller (RUNNING)",
        "disk c-home (50 GiB, READY)",
        "address c-controller (?, RESERVED)",
        "image c-image (READY)",
        "snapshot c-snapshot (READY)",
        "instance template c-cpu-1",
        "resource policy c-cpu",
        "firewall rule c-ssh",
        # A name alone cannot tell more: a resource of c-2 without a description would be listed as well.
        "router c",
        "router c-2-router",
        "subnetwork c",
        "network c",
        "bucket c-9z",
        "secret c-munge",
        "Filestore instance c-home (READY)",
    ]
    assert {re.split(r" c\b", line)[0] for line in leftovers(gcp_project.account, "c")} == {
        k.name for k in KINDS
    }


def test_after_a_clean_destroy_the_report_of_leftovers_is_empty(gcp_project: Project) -> None:
    fill(gcp_project, "other")
    assert cloud(gcp_project).leftovers() == []


def test_what_belongs_to_a_machine_that_is_there_is_not_named_again(gcp_project: Project) -> None:
    gcp_project.head()
    disk(gcp_project, "c-controller", "c-controller")
    assert cloud(gcp_project).leftovers() == ["instance c-controller (RUNNING)"]


def test_an_api_that_nobody_has_enabled_has_nothing(gcp_project: Project) -> None:
    gcp_project.disabled = {"file", "secretmanager"}
    assert cloud(gcp_project).leftovers() == []
    gcp_project.disabled = {"storage"}
    with sentences.raises("gcp.api-disabled", "gcloud services enable storage.googleapis.com --project p-1"):
        cloud(gcp_project).leftovers()


def test_a_machine_says_of_which_stack_it_is() -> None:
    """A label holds small letters only, so the stack's own name is compared in that form."""
    found = {
        "name": "c-controller",
        "status": "RUNNING",
        "zone": A,
        "creationTimestamp": "2026-01-01T00:00:00Z",
    }
    labels = {STACK: value("Mine.1")}
    assert machines.machine({**found, "labels": labels}, "c").stack == GcpCloud(PLACE).label_of("Mine.1")
    assert machines.machine(found, "c").stack is None
