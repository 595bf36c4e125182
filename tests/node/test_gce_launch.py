"""Launches of the Compute Engine driver over a real client: names, whole jobs, fail-over, late failures."""

from __future__ import annotations

import dataclasses
import re
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from node.design.model import Partition, Settings, Site
from node.elastic.driver import LaunchGroup, LaunchResult, MachineState
from node.elastic.drivers import load
from node.elastic.drivers.gce import deletes as gce_deletes
from node.elastic.drivers.gce import launches as gce_launch
from node.elastic.drivers.gce import operations as gce_operations
from node.elastic.drivers.gce import unfinished as gce_unfinished
from node.elastic.drivers.gce.driver import GceDriver
from node.elastic.drivers.gce.names import Identity
from node.elastic.failures import ErrorClass
from tests.support import doubles
from tests.support.checkout import until
from tests.support.fake_gce import Failing, FakeGce, Fault, fake_gce

COMPUTE = Partition("compute", "n1-standard-8", 8, 100, 0, 6000)
DESIGN = doubles.design(COMPUTE, provider="gcp", isolation="vm")
A, B = "europe-west4-a", "europe-west4-b"


def settings(fake: FakeGce) -> Settings:
    return Settings(DESIGN, Site("/", "slurm", "head", "10.0.0.1", **fake.site()))


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGce]:
    monkeypatch.setattr(gce_operations, "PAUSES", (0.01, 0.01))
    monkeypatch.setattr(gce_deletes, "PAUSES", (0.01, 0.01))
    monkeypatch.setattr(gce_unfinished, "ASK_SECONDS", 0.0)
    with fake_gce(("compute", "spot")) as made:
        yield made


@pytest.fixture
def driver(fake: FakeGce) -> GceDriver:
    return fake.driver(settings(fake))


def nodes(first: int, end: int) -> tuple[str, ...]:
    return tuple(f"compute-{n}" for n in range(first, end))


def group(*names: str, whole: bool = True, zone: str | None = None, token: str = "token") -> LaunchGroup:
    return LaunchGroup("compute", names, whole, token, zone=zone)


def inserts(fake: FakeGce) -> list[Any]:
    return [call.request for call in fake.calls if call.name == "instances.bulk_insert"]


def zones(result: LaunchResult) -> set[str]:
    return {Identity.parse(identity).zone for identity in result.launched.values()}


def test_a_launch_is_one_call_with_names_labels_and_the_template(fake: FakeGce, driver: GceDriver) -> None:
    result = driver.launch(group("compute-3", "compute-0", "compute-1"))
    assert set(result.launched) == {"compute-0", "compute-1", "compute-3"}
    assert result.failures == ()
    assert fake.counts() == {"instances.bulk_insert": 1, "zone_operations.wait": 1, "zone_operations.list": 1}
    (request,) = inserts(fake)
    body = request.bulk_insert_instance_resource_resource
    assert (request.zone, body.count, body.min_count) == (A, 3, 3)
    assert set(body.per_instance_properties) == {"t-compute-0", "t-compute-1", "t-compute-3"}
    assert body.source_instance_template == fake.templates["compute"]
    assert dict(body.instance_properties.labels) == {
        "slurm-stacks-cluster": "t",
        "slurm-stacks-stack": "test",
        "slurm-stacks-role": "compute",
        "slurm-stacks-partition": "compute",
        "slurm-stacks-template": "t-compute-1",
    }
    assert uuid.UUID(request.request_id).version == 4
    listed = {machine.node: machine for machine in driver.list()}
    assert {node: machine.id for node, machine in listed.items()} == result.launched
    assert {machine.zone for machine in listed.values()} == {A}


def test_a_launch_has_the_stack_files_labels_and_its_machines_are_found_and_ended(fake: FakeGce) -> None:
    labels = {"cost-center": "4711", "role": "controller", "env": ""}
    site = Site("/", "slurm", "head", "10.0.0.1", **fake.site())
    driver = fake.driver(Settings(dataclasses.replace(DESIGN, tags=labels), site))
    made = driver.launch(group("compute-0", "compute-1")).launched
    (request,) = inserts(fake)
    body = request.bulk_insert_instance_resource_resource
    assert labels.items() <= dict(body.instance_properties.labels).items()
    assert len(body.instance_properties.labels) == len(labels) + 5
    assert {machine.node: machine.id for machine in driver.list()} == made
    for instance in fake.living():
        assert labels.items() <= dict(instance.labels).items()
    driver.terminate(list(made.values()))
    until(lambda: fake.living() == [], 60, "no machines")


def test_a_stacks_name_becomes_a_label_that_google_takes(fake: FakeGce) -> None:
    """Pulumi allows capitals and dots in names of stacks. Compute Engine would refuse the launch."""
    design = dataclasses.replace(DESIGN, stack="Team.GPU")
    site = Site("/", "slurm", "head", "10.0.0.1", **fake.site())
    assert not fake.driver(Settings(design, site)).launch(group("compute-0")).failures
    (request,) = inserts(fake)
    labels = request.bulk_insert_instance_resource_resource.instance_properties.labels
    assert labels["slurm-stacks-stack"] == "team-gpu"
    assert all(re.fullmatch(r"[a-z0-9_-]{0,63}", one) for one in [*labels, *labels.values()])


def test_the_same_token_for_other_nodes_is_another_wish(fake: FakeGce, driver: GceDriver) -> None:
    """Otherwise Compute Engine would answer with the first nodes' operation and launch nothing."""
    first = driver.launch(group(*nodes(0, 2), zone=A))
    other = driver.launch(group(*nodes(2, 4), zone=A))
    assert set(other.launched) == set(nodes(2, 4))
    assert not set(other.launched.values()) & set(first.launched.values())
    assert len({request.request_id for request in inserts(fake)}) == 2


def test_single_nodes_ask_for_one_at_least(fake: FakeGce, driver: GceDriver) -> None:
    driver.launch(group(*nodes(0, 3), whole=False))
    (request,) = inserts(fake)
    assert request.bulk_insert_instance_resource_resource.min_count == 1


def test_a_whole_group_is_whole_or_not_at_all(fake: FakeGce, driver: GceDriver) -> None:
    fake.cloud.capacity = {A: 3, B: 3}
    result = driver.launch(group(*nodes(0, 4)))
    assert result.launched == {}
    (failure,) = result.failures
    assert (failure.nodes, failure.kind) == (nodes(0, 4), ErrorClass.CAPACITY)
    assert failure.code == "ZONE_RESOURCE_POOL_EXHAUSTED"
    assert f"{A}: The zone 'projects/p-1/zones/{A}' does not have enough resources" in failure.message
    assert f"{B}: The zone 'projects/p-1/zones/{B}' does not have enough resources" in failure.message
    assert fake.living() == []
    assert [request.zone for request in inserts(fake)] == [A, B]


def test_a_full_zone_is_left_for_the_next(fake: FakeGce, driver: GceDriver) -> None:
    fake.cloud.capacity = {A: 3}
    result = driver.launch(group(*nodes(0, 4)))
    assert (len(result.launched), result.failures, zones(result)) == (4, (), {B})


def test_a_group_with_a_zone_stays_there(fake: FakeGce, driver: GceDriver) -> None:
    fake.cloud.capacity = {B: 0}
    (failure,) = driver.launch(group("compute-0", zone=B)).failures
    assert failure.kind is ErrorClass.CAPACITY
    assert driver.launch(group("compute-0", zone=A)).failures == ()
    (failure,) = driver.launch(group("compute-1", zone="us-east1-c")).failures
    assert (failure.kind, failure.code) == (ErrorClass.CONFIG, "NoZone")
    assert failure.message == f"partition compute has no zone us-east1-c; it has: {A}, {B}"
    (failure,) = driver.launch(LaunchGroup("gone", ("gone-0",), True, "t")).failures
    assert (failure.kind, failure.code) == (ErrorClass.CONFIG, "NoTemplate")


def test_single_nodes_take_what_there_is_in_every_zone(fake: FakeGce, driver: GceDriver) -> None:
    fake.cloud.capacity = {A: 2, B: 1}
    result = driver.launch(group(*nodes(0, 5), whole=False))
    assert len(result.launched) == 3
    (failure,) = result.failures
    assert set(failure.nodes) == set(nodes(0, 5)) - set(result.launched)
    assert failure.kind is ErrorClass.CAPACITY
    assert len(fake.living()) == 3


@pytest.mark.parametrize("whole", [True, False])
def test_a_machine_that_is_missing_without_a_word(fake: FakeGce, driver: GceDriver, whole: bool) -> None:
    fake.cloud.silent = {"t-compute-1"}
    result = driver.launch(group(*nodes(0, 3), whole=whole, zone=A))
    (failure,) = result.failures
    assert set(result.launched) == (set() if whole else {"compute-0", "compute-2"})
    assert failure.nodes == (nodes(0, 3) if whole else ("compute-1",))
    assert failure.kind is ErrorClass.CAPACITY
    assert failure.message == (
        "3 machines cannot be had" if whole else f"Compute Engine gave 2 of 3 machines in zone {A}"
    )


def test_a_quota_is_the_same_in_every_zone(fake: FakeGce, driver: GceDriver) -> None:
    fake.cloud.quotas = {"CPUS": 16.0}
    (failure,) = driver.launch(group(*nodes(0, 3))).failures
    assert (failure.kind, failure.code) == (ErrorClass.QUOTA, "QUOTA_EXCEEDED")
    assert failure.message == "Quota 'CPUS' exceeded. Limit: 16.0 in region europe-west4."
    assert len(inserts(fake)) == 1
    assert fake.living() == []


def test_several_causes_are_told_apart(fake: FakeGce, driver: GceDriver) -> None:
    fake.cloud.failing = [
        Failing("insert", "QUOTA_EXCEEDED", "no more CPUS", ("t-compute-1",)),
        Failing("insert", "ZONE_RESOURCE_POOL_EXHAUSTED", "full", ("t-compute-2", "t-compute-3")),
    ]
    result = driver.launch(group(*nodes(0, 5), whole=False, zone=A))
    assert set(result.launched) == {"compute-0", "compute-4"}
    assert [(set(f.nodes), f.kind, f.message) for f in result.failures] == [
        ({"compute-2", "compute-3"}, ErrorClass.CAPACITY, "full"),
        ({"compute-1"}, ErrorClass.QUOTA, "no more CPUS"),
    ]


@pytest.mark.parametrize(
    ("code", "kind", "message"),
    [
        ("ZONE_RESOURCE_POOL_EXHAUSTED", ErrorClass.CAPACITY, ""),
        ("ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", ErrorClass.CAPACITY, ""),
        ("REGION_RESOURCE_POOL_EXHAUSTED", ErrorClass.CAPACITY, ""),
        ("ZONE_RESOURCE_POOL_EXHAUSTED", ErrorClass.PLACEMENT, "cannot satisfy the resource policy"),
        ("QUOTA_EXCEEDED", ErrorClass.QUOTA, ""),
        ("RESOURCE_OPERATION_RATE_EXCEEDED", ErrorClass.THROTTLED, ""),
        ("IP_SPACE_EXHAUSTED", ErrorClass.CAPACITY, ""),
        ("PERMISSIONS_ERROR", ErrorClass.PERMISSION, ""),
        ("INVALID_USAGE", ErrorClass.CONFIG, ""),
    ],
)
@pytest.mark.parametrize("where", ["bulkInsert", "insert"])
def test_errors_of_operations(
    fake: FakeGce, driver: GceDriver, code: str, kind: ErrorClass, message: str, where: str
) -> None:
    fake.cloud.failing = [Failing(where, code, message or "the cloud's own words")]
    result = driver.launch(group(*nodes(0, 2), zone=A))
    (failure,) = result.failures
    assert (result.launched, failure.nodes, failure.kind, failure.code) == ({}, nodes(0, 2), kind, code)
    assert failure.message == (message or "the cloud's own words")
    assert fake.living() == []


@pytest.mark.parametrize(
    ("reason", "status", "kind"),
    [
        ("rateLimitExceeded", 403, ErrorClass.THROTTLED),
        ("rateLimitExceeded", 429, ErrorClass.THROTTLED),
        ("quotaExceeded", 403, ErrorClass.QUOTA),
        ("forbidden", 403, ErrorClass.PERMISSION),
        ("badRequest", 400, ErrorClass.CONFIG),
        ("notFound", 404, ErrorClass.CONFIG),
        ("backendError", 503, ErrorClass.UNAVAILABLE),
        ("ZONE_RESOURCE_POOL_EXHAUSTED", 503, ErrorClass.CAPACITY),
    ],
)
def test_errors_of_the_call(
    fake: FakeGce, driver: GceDriver, reason: str, status: int, kind: ErrorClass
) -> None:
    fake.faults = [Fault("instances.bulk_insert", reason, status)]
    (failure,) = driver.launch(group("compute-0", zone=A)).failures
    assert (failure.kind, failure.code, failure.message) == (kind, reason, "the cloud's own words")
    assert fake.counts() == {"instances.bulk_insert": 1}, "the launcher repeats, not the client"


def test_a_call_whose_answer_is_lost_launches_once(fake: FakeGce, driver: GceDriver) -> None:
    fake.faults = [Fault("instances.bulk_insert", "backendError", 503, times=1, done=True)]
    wish = group(*nodes(0, 3), zone=A)
    (failure,) = driver.launch(wish).failures
    assert failure.kind is ErrorClass.UNAVAILABLE
    result = driver.launch(wish)
    assert (len(result.launched), result.failures) == (3, ())
    first, second = inserts(fake)
    assert first.request_id == second.request_id
    assert len(fake.living()) == 3


def test_a_wish_that_has_failed_is_another_launch(fake: FakeGce, driver: GceDriver) -> None:
    """With the same id the cloud would answer with the launch that has failed."""
    fake.cloud.capacity = {A: 0}
    assert driver.launch(group("compute-0", zone=A)).failures
    fake.cloud.capacity = {}
    assert driver.launch(group("compute-0", zone=A)).failures == ()


def test_what_is_there_already_is_taken_over(fake: FakeGce, driver: GceDriver) -> None:
    """A daemon that does not know of an earlier launch asks again: existing instances complete the group."""
    made = driver.launch(group("compute-1", zone=A, token="before")).launched
    for whole in (True, False):
        names = nodes(0, 3) if whole else nodes(1, 6)
        result = fake.driver(settings(fake)).launch(
            group(*names, whole=whole, zone=A, token=f"after {whole}")
        )
        assert set(result.launched) == set(names)
        assert result.failures == ()
        assert result.launched["compute-1"] == made["compute-1"]
    assert len(fake.living()) == 6


def test_a_strangers_machine_of_the_name_is_left_alone(fake: FakeGce, driver: GceDriver) -> None:
    driver.launch(group("compute-1", zone=A))
    (instance,) = fake.living()
    instance.labels = {"owner": "somebody"}
    result = driver.launch(group(*nodes(0, 2), zone=A, token="2"))
    (failure,) = result.failures
    assert (result.launched, failure.kind) == ({}, ErrorClass.CONFIG)
    assert failure.message == f"an instance t-compute-1 that is not this cluster's is in zone {A}"
    assert [i.name for i in fake.living()] == ["t-compute-1"]


def test_remains_of_the_nodes_earlier_machine_make_way(fake: FakeGce, driver: GceDriver) -> None:
    driver.launch(group("compute-0", zone=A))
    fake.status("t-compute-0", "TERMINATED")
    wish = group("compute-0", zone=A, token="2")
    (failure,) = driver.launch(wish).failures
    assert (failure.kind, failure.code) == (ErrorClass.UNAVAILABLE, "NAME_IN_USE"), "the launcher asks again"
    assert failure.own
    fake.cloud.advance(1)
    assert driver.launch(wish).failures == ()
    assert [i.name for i in fake.living()] == ["t-compute-0"]


def test_a_large_launch_is_several_calls_and_whole(
    fake: FakeGce, driver: GceDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gce_launch, "CALL_NODES", 2)
    result = driver.launch(group(*nodes(0, 5), zone=A))
    assert (len(result.launched), len(inserts(fake))) == (5, 3)
    fake.cloud.capacity = {A: 8}
    result = driver.launch(group(*nodes(5, 10), zone=A, token="2"))
    assert (result.launched, [f.nodes for f in result.failures]) == ({}, [nodes(5, 10)])
    fake.cloud.advance(1)
    assert len(fake.living()) == 5, "what came before the call that failed is undone"


# --- launches that take longer than they are watched ---------------------------------------------------


@pytest.fixture
def slow(fake: FakeGce, monkeypatch: pytest.MonkeyPatch) -> FakeGce:
    """Operations run, and end only when the test moves the time on."""
    monkeypatch.setattr(gce_launch, "WATCH_SECONDS", 0.05)
    fake.cloud.freeze()
    fake.cloud.seconds = 60.0
    return fake


def test_a_launch_that_goes_on_is_left(slow: FakeGce, driver: GceDriver) -> None:
    result = driver.launch(group(*nodes(0, 2), zone=A))
    assert result == LaunchResult({}, ()), "neither here nor lost"
    slow.cloud.advance(61)
    assert {m.node: m.state for m in driver.list()} == dict.fromkeys(nodes(0, 2), MachineState.PENDING)
    slow.cloud.advance(61)
    assert {m.node: m.state for m in driver.list()} == dict.fromkeys(nodes(0, 2), MachineState.RUNNING)


def test_nodes_of_a_launch_that_goes_on_are_not_launched_again(slow: FakeGce, driver: GceDriver) -> None:
    driver.launch(group(*nodes(0, 2), zone=A))
    assert driver.launch(group(*nodes(0, 2), zone=A, token="again")) == LaunchResult({}, ())
    assert len(inserts(slow)) == 1


@pytest.mark.parametrize("whole", [True, False])
def test_a_launch_that_fails_later_is_told_by_the_next(slow: FakeGce, driver: GceDriver, whole: bool) -> None:
    slow.cloud.capacity = {A: 1}
    wish = group(*nodes(0, 2), whole=whole, zone=A)
    assert driver.launch(wish).failures == ()
    slow.cloud.advance(61)
    slow.cloud.advance(61)
    listed = {m.node for m in driver.list() if m.state.alive}
    assert listed == (set() if whole else {"compute-0"})
    lost = tuple(node for node in wish.nodes if node not in listed)
    result = driver.launch(LaunchGroup("compute", lost, whole, "again", zone=A))
    (failure,) = result.failures
    assert (failure.nodes, failure.code) == (lost, "ZONE_RESOURCE_POOL_EXHAUSTED")
    assert len(inserts(slow)) == 1
    slow.cloud.capacity = {}
    driver.launch(LaunchGroup("compute", lost, whole, "third", zone=A))
    assert len(inserts(slow)) == 2, "told once"


def test_machines_that_were_told_of_and_came_to_nothing_have_ended(
    slow: FakeGce, driver: GceDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow.cloud.capacity = {A: 1}
    real = slow.answer
    waits: list[str] = []

    def later(verb: str, target: str, body: bytes) -> tuple[int, dict[str, Any]]:
        # The instances are made meanwhile, however late the launch is watched.
        if "/operations/operation-" in target and not waits:
            waits.append(target)
            slow.cloud.advance(61)
        return real(verb, target, body)

    monkeypatch.setattr(slow, "answer", later)
    result = driver.launch(group(*nodes(0, 2), zone=A))
    assert set(result.launched) == {"compute-0"}
    slow.cloud.advance(200)
    ended = {m.node: (m.id, m.state) for m in driver.list()}
    assert ended == {n: (i, MachineState.TERMINATED) for n, i in result.launched.items()}


def test_a_later_launch_of_the_same_nodes_says_nothing_of_an_earlier_one(
    fake: FakeGce, driver: GceDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both launches are of one user, and of the same names: only the operations' group tells them apart."""
    watched: list[tuple[gce_operations.Operations, gce_operations.BulkInsert]] = []
    really = gce_operations.Operations.watch

    def watch(
        operations: gce_operations.Operations, bulk: gce_operations.BulkInsert, seconds: float
    ) -> gce_operations.Outcome | None:
        watched.append((operations, bulk))
        return really(operations, bulk, seconds)

    monkeypatch.setattr(gce_operations.Operations, "watch", watch)
    fake.cloud.capacity = {A: 0}
    assert driver.launch(group(*nodes(0, 2), zone=A)).launched == {}
    fake.cloud.capacity = {}
    launched = driver.launch(group(*nodes(0, 2), zone=A, token="again")).launched
    assert set(launched) == set(nodes(0, 2))
    (operations, first), (_, second) = watched
    assert operations.inserted(first) == {}
    assert operations.inserted(second) == launched
    outcome = operations.look(first)
    assert outcome is not None
    assert (outcome.launched, [failure.nodes for failure in outcome.failures]) == ({}, [nodes(0, 2)])


def test_a_watch_that_gets_no_answer_is_not_a_failure(fake: FakeGce, driver: GceDriver) -> None:
    fake.faults = [
        Fault("zone_operations.wait", "backendError", 503, times=2),
        Fault("zone_operations.list", "forbidden", 403, times=1),
    ]
    result = driver.launch(group(*nodes(0, 2), zone=A))
    assert result.failures == ()
    assert len(driver.list()) == 2


def test_the_driver_is_found_by_its_provider(fake: FakeGce) -> None:
    assert isinstance(load(settings(fake)), GceDriver)


def test_many_launches_wait_at_once(driver: GceDriver) -> None:
    assert driver.launch_threads > 4
