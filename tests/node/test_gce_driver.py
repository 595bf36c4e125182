"""The Compute Engine driver over a real client: lists, ends, notices, quotas and deletes."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from google.cloud import compute_v1 as gce

from node.bootstrap.report_server import ReportServer
from node.design.model import ClusterDesign, Partition, Settings, Site
from node.elastic.driver import LaunchGroup, Machine, MachineState
from node.elastic.drivers.boot_reports import BootStatus
from node.elastic.drivers.gce import client as gce_client
from node.elastic.drivers.gce import deletes as gce_deletes
from node.elastic.drivers.gce import notices as gce_notices
from node.elastic.drivers.gce import zones as gce_zones
from node.elastic.drivers.gce.client import Compute
from node.elastic.drivers.gce.driver import GceDriver
from node.elastic.drivers.gce.errors import GceError
from node.elastic.drivers.gce.names import Identity
from node.elastic.failures import ErrorClass
from node.system.cloud_api import MissingError
from tests.support import doubles
from tests.support.fake_gce import Failing, FakeGce, Fault, fake_gce
from tests.support.fake_gce_wire import as_json

COMPUTE = Partition("compute", "n1-standard-8", 8, 100, 0, 50)
DESIGN = doubles.design(COMPUTE, provider="gcp", isolation="vm")
A, B = "europe-west4-a", "europe-west4-b"


def settings(fake: FakeGce, design: ClusterDesign = DESIGN) -> Settings:
    return Settings(design, Site("/", "slurm", "head", "10.0.0.1", **fake.site()))


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGce]:
    monkeypatch.setattr(gce_deletes, "PAUSES", (0.01, 0.01))
    monkeypatch.setattr(gce_deletes, "ASK_SECONDS", 0.0)
    monkeypatch.setattr(gce_notices, "ASK_SECONDS", 0.0)
    with fake_gce() as made:
        yield made


@pytest.fixture
def driver(fake: FakeGce) -> GceDriver:
    return fake.driver(settings(fake))


def launch(driver: GceDriver, *numbers: int, zone: str = A) -> dict[str, str]:
    nodes = tuple(f"compute-{n}" for n in numbers)
    return driver.launch(
        LaunchGroup("compute", nodes, True, f"{numbers} {time.monotonic()}", zone=zone)
    ).launched


def by_node(driver: GceDriver) -> dict[str | None, Machine]:
    return {machine.node: machine for machine in driver.list()}


# --- lists ---------------------------------------------------------------------------------------------


def test_all_pages_zones_and_states_are_listed(fake: FakeGce, driver: GceDriver) -> None:
    fake.page = 2
    made = launch(driver, 0, 1, 2, 3) | launch(driver, 4, 5, 6, zone=B)
    states = ["PROVISIONING", "STAGING", "RUNNING", "REPAIRING", "STOPPING", "SUSPENDING", "RUNNING"]
    for number, state in enumerate(states):
        fake.status(f"t-compute-{number}", state)
    fake.forget()
    found = by_node(driver)
    assert {node: machine.id for node, machine in found.items()} == made
    assert fake.counts()["instances.aggregated_list"] == 4
    assert [found[f"compute-{n}"].state for n in range(7)] == [
        MachineState.PENDING, MachineState.PENDING, MachineState.RUNNING, MachineState.RUNNING,
        MachineState.STOPPING, MachineState.STOPPING, MachineState.RUNNING,
    ]  # fmt: skip
    assert found["compute-4"].failure == "the instance is stopping: no reason given"
    assert {found["compute-0"].zone, found["compute-5"].zone} == {A, B}
    assert all(abs(machine.launched - time.time()) < 60 for machine in found.values())


def test_strangers_are_not_its_machines(fake: FakeGce, driver: GceDriver) -> None:
    launch(driver, 0)
    for cluster, role in (("other", "compute"), ("t", "controller")):
        labels = {"slurm-stacks-cluster": cluster, "slurm-stacks-role": role}
        fake.cloud.put(f"zones/{A}", "instances", gce.Instance(name=f"x-{cluster}", labels=labels))
    labels = {"slurm-stacks-cluster": "t", "slurm-stacks-role": "compute"}
    fake.cloud.put(f"zones/{A}", "instances", gce.Instance(name="odd", status="RUNNING", labels=labels))
    assert {(m.node, Identity.parse(m.id).name) for m in driver.list()} == {
        ("compute-0", "t-compute-0"), (None, "odd"),
    }  # fmt: skip


def test_a_list_that_lags_shows_machines_later(fake: FakeGce, driver: GceDriver) -> None:
    fake.cloud.lag = 30
    made = launch(driver, 0, 1)
    assert len(made) == 2
    assert driver.list() == []
    fake.cloud.advance(31)
    assert set(by_node(driver)) == set(made)


def test_half_a_list_is_none(fake: FakeGce, driver: GceDriver) -> None:
    fake.page = 1
    only = fake.driver(Settings(DESIGN, Site("/", "slurm", "h", "10.0.0.1", **fake.site([A]))))
    launch(only, 0, 1, 2)
    fake.faults = [Fault("instances.list", "backendError", 503, skip=1, times=1)]
    with pytest.raises(GceError, match=r"unavailable: the cloud's own words \(backendError\)"):
        only.list()
    assert len(only.list()) == 3
    fake.faults = [Fault("instances.list", "forbidden", 403, times=1)]
    with pytest.raises(GceError, match="permission"):
        driver.list()


def test_a_zone_that_cannot_be_reached_blinds_only_itself(
    fake: FakeGce, driver: GceDriver, capsys: pytest.CaptureFixture[str]
) -> None:
    """The zone's last list counts, other zones are up to date, and other clusters' zones do not matter."""
    launch(driver, 0, 1)
    launch(driver, 2, zone=B)
    assert {m.node: m.zone for m in driver.list()} == {"compute-0": A, "compute-1": A, "compute-2": B}
    capsys.readouterr()
    fake.unreachable = {B, "us-east1-b"}
    for node in ("t-compute-0", "t-compute-2"):
        fake.cloud.system_end(node)
    fake.cloud.advance(1)
    found = by_node(driver)
    assert found["compute-2"].state is MachineState.RUNNING, "nobody says that it has ended"
    assert found["compute-0"].state is MachineState.TERMINATED
    driver.list()
    (said,) = [
        line for line in capsys.readouterr().out.splitlines() if "does not answer; its last list" in line
    ]
    assert f"zone {B} does not answer; its last list counts, with 1 machine: unavailable: " in said
    fake.unreachable = set()
    assert by_node(driver)["compute-2"].state is MachineState.TERMINATED
    assert f"zone {B} answers again" in capsys.readouterr().out
    fake.unreachable = set(fake.cloud.zones)
    with pytest.raises(GceError, match="cannot be reached"):
        driver.list()


def test_machines_in_a_zone_that_the_stack_file_names_no_more_are_found(
    fake: FakeGce, driver: GceDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch(driver, 0, zone=B)
    only = Settings(DESIGN, Site("/", "slurm", "h", "10.0.0.1", **fake.site([A])))
    later = fake.driver(only)
    fake.unreachable = {"us-east1-b"}
    assert later.list() == [], "the look at all zones fails, and that at the cluster's own does not"
    fake.unreachable = set()
    monkeypatch.setattr(gce_zones, "RETRY_SECONDS", 0.0)
    again = fake.driver(only)
    assert [m.node for m in again.list()] == ["compute-0"]
    fake.forget()
    assert [m.node for m in again.list()] == ["compute-0"], "known from then on"
    assert fake.counts() == {"instances.list": 2}


def test_a_cloud_that_is_not_there(fake: FakeGce) -> None:
    fake.url = "http://127.0.0.1:9"
    driver = fake.driver(settings(fake))
    with pytest.raises(GceError, match=r"unavailable: .*Connection refused"):
        driver.list()
    (failure,) = driver.launch(LaunchGroup("compute", ("compute-0",), True, "t", zone=A)).failures
    assert failure.kind is ErrorClass.UNAVAILABLE
    with pytest.raises(GceError):
        driver.terminate([f"{A}/t-compute-0/7"])


def test_a_machine_without_credentials(fake: FakeGce) -> None:
    def token(*, fresh: bool = False) -> str:
        raise MissingError("this machine has no service account", status=404)

    driver = GceDriver(settings(fake), Compute("p-1", token, fake.url), lambda running: {})
    with pytest.raises(GceError, match="permission: this machine has no service account"):
        driver.list()
    assert fake.calls == []


def test_nodes_of_an_older_template_are_told_apart(fake: FakeGce) -> None:
    launch(fake.driver(settings(fake)), 0)
    fake.template("compute", name="t-compute-2")
    driver = fake.driver(settings(fake))
    launch(driver, 1)
    assert {node: machine.outdated for node, machine in by_node(driver).items()} == {
        "compute-0": True, "compute-1": False,
    }  # fmt: skip


# --- machines that the cloud takes ---------------------------------------------------------------------


def test_a_preempted_machine_that_is_deleted_is_told_of_as_ended(fake: FakeGce) -> None:
    fake.template("compute", scheduling=gce.Scheduling(instance_termination_action="DELETE"))
    driver = fake.driver(settings(fake))
    made = launch(driver, 0, 1)
    assert len(driver.list()) == 2
    fake.cloud.system_end("t-compute-0")
    assert len(fake.living()) == 1
    found = by_node(driver)
    assert found["compute-1"].state is MachineState.RUNNING
    ended = found["compute-0"]
    assert (ended.id, ended.state) == (made["compute-0"], MachineState.TERMINATED)
    assert ended.failure == "Compute Engine has preempted the machine"
    fake.forget()
    driver.list()
    assert fake.counts() == {"instances.list": 2}, "the reason is known"


def test_a_machine_that_ends_before_any_list_shows_it_is_told_of(fake: FakeGce) -> None:
    fake.template("compute", scheduling=gce.Scheduling(instance_termination_action="DELETE"))
    driver = fake.driver(settings(fake))
    made = launch(driver, 0)
    fake.cloud.system_end("t-compute-0")
    assert [(m.id, m.node, m.state) for m in driver.list()] == [
        (made["compute-0"], "compute-0", MachineState.TERMINATED)
    ]


def test_a_machine_that_is_being_preempted_has_ended_and_says_why(fake: FakeGce, driver: GceDriver) -> None:
    launch(driver, 0)
    driver.list()
    fake.cloud.system_end("t-compute-0", notice=1_000_000)
    (machine,) = driver.list()
    assert (machine.state, machine.failure) == (
        MachineState.STOPPING, "Compute Engine has preempted the machine",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "why"),
    [("compute.instances.preempted", "preempted"), ("compute.instances.hostError", "host has failed")],
)
def test_a_halted_machine_has_ended_and_is_deleted_once(
    fake: FakeGce, driver: GceDriver, kind: str, why: str
) -> None:
    launch(driver, 0)
    driver.list()
    fake.cloud.system_end("t-compute-0", kind)
    fake.cloud.advance(1)
    fake.forget()
    (machine,) = driver.list()
    assert machine.state is MachineState.TERMINATED
    assert why in str(machine.failure)
    driver.list()
    fake.cloud.advance(1)
    assert fake.counts()["instances.delete"] == 1
    assert fake.cloud.instances() == []


def test_a_machine_that_a_list_does_not_mention_is_not_said_to_have_ended(
    fake: FakeGce, driver: GceDriver
) -> None:
    launch(driver, 0)
    driver.list()
    (instance,) = fake.cloud.at(f"zones/{A}", "instances").values()
    fake.cloud._shown_at[int(instance.id)] = time.time() + 1000
    assert driver.list() == []


def test_ends_that_were_wanted_are_not_asked_about(fake: FakeGce, driver: GceDriver) -> None:
    made = launch(driver, 0)
    driver.list()
    driver.terminate(list(made.values()))
    fake.cloud.advance(1)
    fake.forget()
    assert driver.list() == []
    lists = [call.request for call in fake.calls if call.name == "zone_operations.list"]
    assert len(lists) == 1, "what became of the delete, and not why it ended"
    assert re.fullmatch(r'\(user = "me"\) AND \(creationTimestamp >= "20\S+"\)', lists[0].filter)


def test_a_busy_project_hides_no_reason(fake: FakeGce, driver: GceDriver) -> None:
    """Other users' operations of the same time fill more than a page, and older ones are not read."""
    launch(driver, 0)
    driver.list()
    fake.page = 50

    def others(count: int) -> None:
        with fake.lock:
            for number in range(count):
                fake.cloud.operation(f"zones/{A}", "setLabels", f"x/{number}", user="somebody")

    others(60)
    fake.cloud.advance(300)
    others(60)
    fake.cloud.system_end("t-compute-0")
    others(120)
    fake.forget()
    (machine,) = driver.list()
    assert machine.failure == "Compute Engine has preempted the machine"
    assert fake.counts()["zone_operations.list"] == 3, "newest first, as far as they are in question"


def test_a_list_does_not_depend_on_reasons(fake: FakeGce, driver: GceDriver) -> None:
    launch(driver, 0)
    driver.list()
    fake.cloud.system_end("t-compute-0", notice=1_000_000)
    fake.faults = [Fault("zone_operations.list", "forbidden", 403)]
    (machine,) = driver.list()
    assert machine.failure == "the instance is stopping: no reason given"


def test_maintenance_that_ends_a_machine_is_a_notice_when_it_is_near(
    fake: FakeGce, driver: GceDriver
) -> None:
    launch(driver, 0, 1, 2)
    soon = "2030-01-01T00:10:00.000-08:00"
    at = 1893485400.0
    for name, when, policy in (
        ("t-compute-0", soon, "TERMINATE"), ("t-compute-1", soon, "MIGRATE"),
        ("t-compute-2", "2030-01-03T00:10:00Z", "TERMINATE"),
    ):  # fmt: skip
        (instance,) = [i for i in fake.cloud.instances() if i.name == name]
        instance.scheduling.on_host_maintenance = policy
        instance.resource_status.upcoming_maintenance.window_start_time = when
    found = [as_json(i) for i in sorted(fake.cloud.instances(), key=lambda i: str(i.name))]
    # An hour ahead, as a machine with GPUs is told itself.
    for ahead in (60, 3500):
        assert [gce_notices.maintenance(i, at - ahead) for i in found] == [pytest.approx(at), None, None]
    assert gce_notices.maintenance(found[0], at - 3700) is None


# --- boot reports --------------------------------------------------------------------------------------


def test_boot_reports_are_asked_for_running_machines_at_once(fake: FakeGce) -> None:
    asked: list[Sequence[Machine]] = []
    made: dict[str, str] = {}

    def boots(running: Sequence[Machine]) -> Mapping[str, BootStatus]:
        asked.append(running)
        return {
            made["compute-0"]: BootStatus("step mounts: no route"),
            made["compute-2"]: BootStatus(notice=5.0),
        }

    driver = fake.driver(settings(fake), boots)
    assert driver.list() == []
    assert asked == []
    made |= launch(driver, 0, 1, 2)
    fake.status("t-compute-1", "STAGING")
    found = by_node(driver)
    assert {n: (m.failure, m.notice) for n, m in found.items()} == {
        "compute-0": ("step mounts: no route", None), "compute-1": (None, None), "compute-2": (None, 5.0),
    }  # fmt: skip
    (running,) = asked
    assert {m.node for m in running} == {"compute-0", "compute-2"}


def test_a_machine_reports_from_its_first_address_and_of_itself_only(fake: FakeGce, tmp_path: Path) -> None:
    """The driver's own reader, over what the controller's server has taken, notices too."""
    its = settings(fake)
    its = replace(its, site=replace(its.site, root=str(tmp_path)))
    folder = tmp_path / "var/lib/slurm-stacks/reports"
    folder.mkdir(parents=True)
    driver = GceDriver(its, fake.compute())
    launch(driver, 0, 1)
    cards = {i.name: [card.network_i_p for card in i.network_interfaces] for i in fake.cloud.instances()}
    assert len({address for card in cards.values() for address in card}) == 2
    assert {m.node: list(m.addresses) for m in driver.list()} == {
        "compute-0": cards["t-compute-0"][:1], "compute-1": cards["t-compute-1"][:1],
    }  # fmt: skip
    # A second interface is in another network, in which others may have the same addresses.
    (second,) = [i for i in fake.cloud.instances() if i.name == "t-compute-1"]
    second.network_interfaces.append(type(second.network_interfaces[0])(network_i_p="10.9.9.9"))
    at = fake.cloud.now() + 30
    content = {"state": "failed", "steps": [{"name": "mounts", "note": "no route"}], "host": "compute-0"}
    with socket.socket() as listener:
        server = ReportServer(listener, folder, fake.cloud.now)
    assert server.take(cards["t-compute-1"][0], json.dumps({**content, "notice": at}).encode()) == ""
    assert server.take("10.9.9.9", json.dumps({**content, "notice": at - 20}).encode()) == ""
    assert {n: (m.failure, m.notice) for n, m in by_node(driver).items()} == {
        "compute-0": (None, None), "compute-1": ("step mounts: no route", at),
    }  # fmt: skip


def test_a_list_does_not_depend_on_boot_reports(fake: FakeGce) -> None:
    def boots(running: Sequence[Machine]) -> Mapping[str, BootStatus]:
        raise OSError("no folder")

    driver = fake.driver(settings(fake), boots)
    launch(driver, 0)
    assert set(by_node(driver)) == {"compute-0"}


# --- deletes -------------------------------------------------------------------------------------------


def test_deletes_skip_what_is_gone_and_may_be_repeated(fake: FakeGce, driver: GceDriver) -> None:
    made = launch(driver, 0, 1, 2)
    ids = [f"{A}/t-compute-9/99", *list(made.values())[:2]]
    driver.terminate(ids)
    driver.terminate(ids)
    fake.cloud.advance(1)
    driver.terminate(ids)
    assert [i.name for i in fake.living()] == ["t-compute-2"]
    fake.forget()
    driver.terminate([])
    assert fake.calls == []


def test_a_late_repetition_does_not_hit_the_next_machine_of_the_name(
    fake: FakeGce, driver: GceDriver
) -> None:
    old = launch(driver, 0)
    driver.terminate(list(old.values()))
    fake.cloud.advance(1)
    new = launch(driver, 0)
    assert new != old
    driver.terminate(list(old.values()))
    fake.cloud.advance(1)
    assert {m.id for m in driver.list()} == set(new.values())
    driver.terminate(list(new.values()))
    fake.cloud.advance(1)
    assert driver.list() == []


def test_a_machine_that_somebody_else_deletes_now_is_no_trouble(fake: FakeGce, driver: GceDriver) -> None:
    made = launch(driver, 0)
    fake.faults = [Fault("instances.delete", "resourceNotReady", 400)]
    driver.terminate(list(made.values()))


def test_a_busy_cloud_is_asked_again(fake: FakeGce, driver: GceDriver) -> None:
    made = launch(driver, 0, 1)
    fake.faults = [Fault("instances.delete", "rateLimitExceeded", 403, times=2)]
    driver.terminate(list(made.values()))
    fake.cloud.advance(1)
    assert fake.living() == []


@pytest.mark.parametrize("bad", [0, 20, 39])
def test_a_delete_that_is_refused_is_raised_after_the_others(
    fake: FakeGce, driver: GceDriver, monkeypatch: pytest.MonkeyPatch, bad: int
) -> None:
    """There are many more than are deleted in parallel: those behind the refused one have not begun yet."""
    monkeypatch.setattr(gce_deletes, "THREADS", 2)
    made = launch(driver, *range(40))
    fake.faults = [Fault("instances.delete", "forbidden", 403, skip=bad, times=1)]
    with pytest.raises(GceError, match=r"permission: the cloud's own words \(forbidden\)"):
        driver.terminate(list(made.values()))
    assert fake.counts()["instances.delete"] == 40
    fake.cloud.advance(1)
    assert len(fake.living()) == 1


def test_a_surprise_of_one_delete_keeps_no_other_from_its_end(
    fake: FakeGce, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error is none of the client's own, for example one of a library below it."""
    monkeypatch.setattr(gce_deletes, "THREADS", 2)
    compute = fake.compute()
    driver = GceDriver(settings(fake), compute, lambda running: {})
    made = launch(driver, *range(20))
    delete = compute.delete

    def odd(zone: str, name: str, request_id: str) -> Any:
        if name == "t-compute-0":
            raise ValueError("what is this?")
        return delete(zone, name, request_id)

    monkeypatch.setattr(compute, "delete", odd)
    with pytest.raises(GceError, match=r"what is this\? \(ValueError\)"):
        driver.terminate(list(made.values()))
    fake.cloud.advance(1)
    assert [i.name for i in fake.living()] == ["t-compute-0"]


def test_a_delete_that_fails_later_is_noticed_and_can_be_asked_for_again(
    fake: FakeGce, driver: GceDriver, capsys: pytest.CaptureFixture[str]
) -> None:
    made = launch(driver, 0)
    fake.cloud.failing = [Failing("delete", "RESOURCE_OPERATION_RATE_EXCEEDED", "too many", times=1)]
    driver.terminate(list(made.values()))
    fake.cloud.advance(1)
    assert by_node(driver)["compute-0"].state is MachineState.RUNNING
    assert "t-compute-0: not deleted: throttled: too many" in capsys.readouterr().out
    driver.terminate(list(made.values()))
    fake.cloud.advance(1)
    assert driver.list() == []


# --- many ----------------------------------------------------------------------------------------------


def test_a_thousand_machines_come_in_one_launch() -> None:
    """The calls below are counted with a page of 500 and a burst of 300, in tenths."""
    assert (gce_client.PAGE, gce_deletes.BURST) == (500, 300)


def test_machines_of_two_pages_cost_few_calls(fake: FakeGce, monkeypatch: pytest.MonkeyPatch) -> None:
    """The calls are counted by page.

    There are one launch, two pages of its operations, a list of two pages, one delete for each machine, and
    two pages with the deletes' results.
    """
    monkeypatch.setattr(gce_deletes, "BURST", 100)
    monkeypatch.setattr(gce_client, "PAGE", 50)
    big = doubles.design(replace(COMPUTE, max=100), provider="gcp", isolation="vm")
    driver = fake.driver(settings(fake, big))
    result = driver.launch(LaunchGroup("compute", tuple(big.partitions[0].nodes()), True, "t", zone=A))
    assert (len(result.launched), result.failures) == (100, ())
    assert fake.counts() == {"instances.bulk_insert": 1, "zone_operations.wait": 1, "zone_operations.list": 3}
    fake.forget()
    assert len(driver.list()) == 100
    # The other zone's list is empty. All zones of the world are listed now and then, not each time.
    assert fake.counts() == {"instances.list": 3, "instances.aggregated_list": 2}
    fake.forget()
    driver.terminate(list(result.launched.values()))
    fake.cloud.advance(1)
    assert driver.list() == []
    assert fake.counts() == {
        "instances.delete": 100, "instances.list": 2, "zone_operations.list": 2,
    }  # fmt: skip
