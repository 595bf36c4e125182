"""The fake Compute Engine is as strict as the real one where other tests rely on it."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
from google.api_core.exceptions import BadRequest, Conflict, Forbidden, NotFound
from google.cloud import compute_v1 as gce

from tests.support import fake_gce_fields
from tests.support.fake_gce import Cloud, FakeGce, fake_gce

A = "europe-west4-a"
BULK = f"/compute/v1/projects/p-1/zones/{A}/instances/bulkInsert"


@pytest.fixture
def fake() -> Iterator[FakeGce]:
    with fake_gce() as made:
        yield made


def send(fake: FakeGce, path: str, body: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(fake.url + path, data), timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (BULK, {"count": 1, "namePatern": "x-#"}),
        (BULK, {"count": "many"}),
        (BULK, {"count": 1, "instanceProperties": {"labels": ["a"]}}),
        (f"{BULK}?requestID=1", {"count": 1}),
        (f"/compute/v1/projects/p-1/zones/{A}/instances?filter=nonsense%3D1", None),
        (f"/compute/v1/projects/p-1/zones/{A}/instances?filter=status%20about%201", None),
        (f"/compute/v1/projects/p-1/zones/{A}/instances?maxResult=1", None),
    ],
)
def test_what_the_api_does_not_know_is_refused(fake: FakeGce, path: str, body: dict[str, Any] | None) -> None:
    assert send(fake, path, body)[0] == 400
    assert fake.cloud.instances() == []


def test_other_paths_and_projects(fake: FakeGce) -> None:
    assert send(fake, "/compute/v1/projects/p-1/zones")[0] == 200
    assert send(fake, "/compute/v2/projects/p-1/zones")[0] == 404
    assert send(fake, "/compute/v1/projects/other/zones")[0] == 403


def bulk(fake: FakeGce, identity: str, *names: str, **more: Any) -> Any:
    body = {"count": len(names), "per_instance_properties": {name: {} for name in names}, **more}
    return gce.InstancesClient(**fake.options()).bulk_insert_unary(
        request={
            "project": "p-1", "zone": A, "request_id": identity,
            "bulk_insert_instance_resource_resource": body,
        }
    )  # fmt: skip


ONE, TWO = "3fa85f64-5717-4562-b3fc-2c963f66afa6", "3fa85f64-5717-4562-b3fc-2c963f66afa7"


def test_request_ids(fake: FakeGce) -> None:
    first = bulk(fake, ONE, "a-1")
    assert bulk(fake, ONE, "a-1").name == first.name
    with pytest.raises(BadRequest, match="belongs to another request"):
        bulk(fake, ONE, "a-2")
    for wrong in ("1", "00000000-0000-0000-0000-000000000000"):
        with pytest.raises(BadRequest, match="requestId"):
            bulk(fake, wrong, "a-3")
    fake.cloud.advance(1)
    assert [i.name for i in fake.living()] == ["a-1"]


def test_bulk_inserts_are_checked(fake: FakeGce) -> None:
    for more in ({"name_pattern": "x-#"}, {"count": 3}, {"min_count": 2}, {"count": 5001}):
        with pytest.raises(BadRequest):
            bulk(fake, ONE, "a-1", **more)
    with pytest.raises(BadRequest):
        bulk(fake, ONE, "A_1")
    with pytest.raises(NotFound):
        bulk(fake, ONE, "a-1", source_instance_template="projects/p-1/global/instanceTemplates/gone")


def test_operations_take_their_time(fake: FakeGce) -> None:
    fake.cloud.freeze()
    operations = gce.ZoneOperationsClient(**fake.options())
    name = bulk(fake, ONE, "a-1").name
    seen = []
    for _ in range(3):
        found = operations.get(project="p-1", zone=A, operation=name)
        seen.append((gce.Operation.Status(found.status).name, len(fake.cloud.instances())))
        fake.cloud.advance(fake.cloud.seconds * 1.01)
    assert seen == [("PENDING", 0), ("RUNNING", 1), ("DONE", 1)]


def test_a_region_takes_a_zone_with_room(fake: FakeGce) -> None:
    fake.cloud.capacity = {A: 1}
    body = {"count": 2, "name_pattern": "r-#"}
    gce.RegionInstancesClient(**fake.options()).bulk_insert_unary(
        request={
            "project": "p-1", "region": "europe-west4", "bulk_insert_instance_resource_resource": body
        }
    )  # fmt: skip
    fake.cloud.advance(1)
    assert {i.zone.rpartition("/")[2] for i in fake.living()} == {"europe-west4-b"}


def test_resources_of_every_kind_are_listed_and_deleted(fake: FakeGce) -> None:
    options = fake.options()
    disks = gce.DisksClient(**options)
    for name in ("d-1", "d-2", "d-3"):
        disks.insert_unary(
            project="p-1", zone=A, disk_resource=gce.Disk(name=name, labels={"slurm-stacks-cluster": "t"})
        )
    with pytest.raises(Conflict):
        disks.insert_unary(project="p-1", zone=A, disk_resource=gce.Disk(name="d-1"))
    fake.page = 2
    fake.forget()
    request = {"project": "p-1", "filter": "labels.slurm-stacks-cluster=t"}
    found = [d.name for _, scoped in disks.aggregated_list(request=request) for d in scoped.disks]
    assert (sorted(found), len(fake.calls)) == (["d-1", "d-2", "d-3"], 2)
    disks.delete_unary(project="p-1", zone=A, disk="d-2")
    fake.cloud.advance(1)
    assert [d.name for d in disks.list(project="p-1", zone=A)] == ["d-1", "d-3"]
    with pytest.raises(NotFound):
        disks.delete_unary(project="p-1", zone=A, disk="d-2")
    with pytest.raises(Forbidden):
        list(disks.list(project="other", zone=A))
    firewalls = gce.FirewallsClient(**options)
    firewalls.insert_unary(project="p-1", firewall_resource=gce.Firewall(name="f", network="n"))
    assert [(f.name, f.network) for f in firewalls.list(project="p-1")] == [("f", "n")]


def test_labels_stop_and_start(fake: FakeGce) -> None:
    bulk(fake, TWO, "a-1")
    fake.cloud.advance(1)
    instances = gce.InstancesClient(**fake.options())
    body = gce.InstancesSetLabelsRequest(labels={"a": "b"})
    instances.set_labels_unary(
        project="p-1", zone=A, instance="a-1", instances_set_labels_request_resource=body
    )
    for act, status in (("stop", "TERMINATED"), ("start", "RUNNING")):
        getattr(instances, f"{act}_unary")(project="p-1", zone=A, instance="a-1")
        fake.cloud.advance(1)
        assert instances.get(project="p-1", zone=A, instance="a-1").status == status
    assert dict(instances.get(project="p-1", zone=A, instance="a-1").labels) == {"a": "b"}


def test_quotas_count_what_lives() -> None:
    cloud = Cloud(quotas={"CPUS": 20.0, "INSTANCES": 5.0})
    with fake_gce(cloud=cloud) as fake:
        template = {"source_instance_template": fake.templates["compute"]}
        bulk(fake, ONE, "a-1", "a-2", "a-3", min_count=1, **template)
        cloud.advance(1)
        region = gce.RegionsClient(**fake.options()).get(project="p-1", region="europe-west4")
        assert {q.metric: (q.limit, q.usage) for q in region.quotas} == {
            "CPUS": (20.0, 16.0), "INSTANCES": (5.0, 2.0),
        }  # fmt: skip


# --- filters: what the reference and AIP-160 promise, and nothing else --------------------------------------


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        ("name=a-1", ["a-1"]),
        ("name != a-1", ["a-2", "b-1"]),
        ('name = "a-1"', ["a-1"]),
        ("name:a", ["a-1", "a-2"]),
        ("labels.team:*", ["a-1", "a-2"]),
        ("labels.team=x", ["a-1"]),
        ("scheduling.preemptible = true", ["b-1"]),
        ("(labels.team=x) (name=a-2)", []),
        ("(labels.team=x) AND (status=RUNNING)", ["a-1"]),
        ("(name=a-1) OR (name=b-1)", ["a-1", "b-1"]),
        # OR binds tighter than AND.
        ("(name=b-1) OR (name=a-1) AND (labels.team=x)", ["a-1"]),
        ("((name=b-1) OR (name=a-1)) AND (NOT labels.team=x)", ["b-1"]),
        ("name eq a-.*", ["a-1", "a-2"]),
        ("name ne .*1", ["a-2"]),
        ("(name eq 'a-.*') (name ne .*1)", ["a-2"]),
        ("", ["a-1", "a-2", "b-1"]),
    ],
)
def test_a_filter_that_compute_engine_promises(fake: FakeGce, expression: str, names: list[str]) -> None:
    client = gce.InstancesClient(**fake.options())
    with fake.lock:
        for name, labels, preemptible in (
            ("a-1", {"team": "x"}, False),
            ("a-2", {"team": "y"}, False),
            ("b-1", {}, True),
        ):
            scheduling = gce.Scheduling(preemptible=preemptible)
            made = gce.Instance(name=name, labels=labels, scheduling=scheduling, status="RUNNING")
            fake.cloud.put(f"zones/{A}", "instances", made)
    request = {"project": "p-1", "zone": A, "filter": expression}
    assert [one.name for one in client.list(request=request)] == names


@pytest.mark.parametrize(
    "expression",
    [
        "name",
        "name=",
        "=a",
        "name=a AND",
        "(name=a",
        "name=a)",
        "name == a",
        "name=a AND labels.team=x",
        "name=a labels.team=x",
        "(name=a) labels.team=x",
        "name=a-*",
        "labels.team.x:y:z",
        "label.team=x",
        "scheduling.preempt=true",
        "scheduling.preemptible=yes",
        "(name=a) (name eq b)",
        "(name eq a) (status eq b)",
        "name eq a(?=b)",
        "name eq (",
    ],
)
def test_a_filter_that_compute_engine_does_not_promise_is_refused(fake: FakeGce, expression: str) -> None:
    client = gce.InstancesClient(**fake.options())
    with pytest.raises(BadRequest, match="Invalid value for field 'filter'"):
        list(client.list(request={"project": "p-1", "zone": A, "filter": expression}))


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        ('(user = "me") AND (creationTimestamp >= "{then}")', ["later", "then"]),
        ('creationTimestamp > "{then}"', ["later"]),
        ("operationType=insert", None),
        ('(user = "me") AND (operationGroupId = "g")', None),
        ("operationType eq compute.instances.*", None),
    ],
)
def test_operations_are_filtered_by_what_is_indexed(
    fake: FakeGce, expression: str, names: list[str] | None
) -> None:
    fake.cloud.freeze()
    scope = f"zones/{A}"
    for name in ("before", "then", "later"):
        fake.cloud.operation(scope, "insert", name)
        fake.cloud.advance(1)
    then = next(one for one in fake.cloud.shown(scope, "operations") if one.target_link == "then")
    request = {
        "project": "p-1", "zone": A, "order_by": "creationTimestamp desc",
        "filter": expression.format(then=then.insert_time),
    }  # fmt: skip
    client = gce.ZoneOperationsClient(**fake.options())
    if names is not None:
        assert [one.target_link for one in client.list(request=request)] == names
        return
    with pytest.raises(Forbidden, match="filtered_list_cost_overhead"):
        list(client.list(request=request))


@pytest.mark.parametrize("option", [{"max_results": 501}, {"order_by": "status"}])
def test_a_list_has_its_limits(fake: FakeGce, option: dict[str, Any]) -> None:
    client = gce.InstancesClient(**fake.options())
    with pytest.raises(BadRequest):
        list(client.list(request={"project": "p-1", "zone": A, **option}))


# --- partial responses -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        ("items(id,name),nextPageToken", {"items": [{"id": "1", "name": "a"}], "nextPageToken": "t"}),
        ("items/scheduling/onHostMaintenance", {"items": [{"scheduling": {"onHostMaintenance": "MIGRATE"}}]}),
        ("items(disks/source)", {"items": [{"disks": [{"source": "x"}, {}]}]}),
        ("items/labels", {"items": [{"labels": {"a-b": "c"}}]}),
        (
            "items(id,disks(source,mode))",
            {"items": [{"id": "1", "disks": [{"source": "x"}, {"mode": "RO"}]}]},
        ),
        ("kind", {}),
    ],
)
def test_fields_that_google_promises(fields: str, shown: dict[str, Any]) -> None:
    one = {"id": "1", "name": "a", "labels": {"a-b": "c"}, "disks": [{"source": "x"}, {"mode": "RO"}],
           "scheduling": {"onHostMaintenance": "MIGRATE", "preemptible": True}}  # fmt: skip
    kind = gce.InstanceList.pb(gce.InstanceList()).DESCRIPTOR
    assert (
        fake_gce_fields.selected({"items": [one], "nextPageToken": "t"}, fake_gce_fields.parse(fields, kind))
        == shown
    )


@pytest.mark.parametrize(
    "fields",
    ["", "item", "items(", "items)", "items(id", "items(id))", "items,", "items/", "items(id) name",
     "items/nam", "items(id,host)", "items/id/x", "items/network_interfaces", "items.id"],
)  # fmt: skip
def test_fields_that_there_are_not_are_refused(fake: FakeGce, fields: str) -> None:
    asked = f"/compute/v1/projects/p-1/zones/{A}/instances?fields={quote(fields)}&prettyPrint=false"
    status, content = fake.answer("GET", asked, b"")
    assert (status, content["error"]["errors"][0]["reason"]) == (400, "invalidParameter")
