"""Tests of the client of Compute Engine's metadata server with a fake on loopback."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from node.gcp import metadata as metadata_module
from node.gcp.metadata import Metadata
from node.system import http_client
from node.system.cloud_api import MissingError, ServiceError, UnreachableError
from tests.support.fake_imds import fake_imds
from tests.support.fake_metadata import FakeMetadata, fake_metadata


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeMetadata]:
    monkeypatch.setattr(http_client, "FIRST_PAUSE_SECONDS", 0.01)
    with fake_metadata() as fake:
        monkeypatch.setenv("GCE_METADATA_HOST", fake.host)
        # Metadata is never requested through a proxy, because it is local to the machine.
        monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
        yield fake


def test_a_machine_knows_itself(server: FakeMetadata) -> None:
    metadata = Metadata()
    assert (metadata.name(), metadata.zone(), metadata.region()) == (
        "t-compute-3", "europe-west4-a", "europe-west4",
    )  # fmt: skip
    assert metadata.project() == "p-1"
    assert metadata.find("instance/attributes/none") is None
    with pytest.raises(MissingError, match="instance metadata: there is no instance/attributes/none"):
        metadata.get("instance/attributes/none")
    assert server.asked[:2] == ["GET instance/name", "GET instance/zone"]


def test_a_token_is_kept_and_renewed_before_it_ends(server: FakeMetadata) -> None:
    metadata = Metadata()
    assert [metadata.token(), metadata.token()] == ["token-1", "token-1"]
    assert metadata.token(fresh=True) == "token-2"
    server.expires = 200  # the server has no newer token yet, and this one would end before the next call
    ending = Metadata()
    assert [ending.token(), ending.token()] == ["token-3", "token-4"]
    # An error of the server does no harm while the present token is valid.
    server.expires = 100
    last = Metadata()
    assert last.token() == "token-5"
    last._endpoint = "http://127.0.0.1:1"
    assert last.token() == "token-5"
    with pytest.raises(UnreachableError):
        last.token(fresh=True)


def test_a_machine_without_an_account_is_told(server: FakeMetadata) -> None:
    server.account = False
    with pytest.raises(MissingError, match="has no service account: it can ask Google Cloud for nothing"):
        Metadata().token()


def test_nobody_and_somebody_else_at_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(http_client, "LONGEST_PAUSE_SECONDS", 0.01)
    with pytest.raises(UnreachableError, match=r"127\.0\.0\.1:1 did not answer \(tried 6 times\): .*refused"):
        Metadata("http://127.0.0.1:1").name()
    with fake_imds() as other, pytest.raises(ServiceError, match="another server answers there"):
        Metadata(other.url).name()


@pytest.mark.parametrize(
    ("instance", "told"),
    [
        ({"preempted": "TRUE"}, ("preempted", 30.0)),
        ({"maintenanceEvent": "TERMINATE_ON_HOST_MAINTENANCE"}, ("maintenance", 60.0)),
        ({"maintenanceEvent": "MIGRATE_ON_HOST_MAINTENANCE"}, None),
        ({"preempted": "FALSE"}, None),
    ],
)
def test_notices(server: FakeMetadata, instance: dict[str, str], told: tuple[str, float] | None) -> None:
    assert Metadata().notice() is None
    server.change(**instance)
    before = time.time()
    said = Metadata().notice()
    if told is None:
        assert said is None
    else:
        assert said is not None
        assert said.cause == told[0]
        assert said.at is not None
        assert before <= said.at - told[1] <= time.time()


@pytest.mark.parametrize("key", ["windowStartTime", "window_start_time"])
def test_the_window_of_the_maintenance_counts_where_the_machine_is_told_of_it(
    server: FakeMetadata, key: str
) -> None:
    """The values are from
    https://cloud.google.com/compute/docs/instances/monitor-plan-host-maintenance-event."""
    metadata = Metadata(maintenance_seconds=3600)

    def at(window: object) -> float:
        server.change(maintenanceEvent="TERMINATE_ON_HOST_MAINTENANCE", upcomingMaintenance=window)
        said = metadata.notice()
        assert said is not None
        assert said.at is not None
        return said.at - time.time()

    def within(seconds: float) -> dict[str, str]:
        start = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + seconds))
        return {"can_reschedule": "true", "maintenance_status": "PENDING", "type": "SCHEDULED", key: start}

    assert at(within(1200)) == pytest.approx(1200, abs=60)
    assert at(within(-1200)) == pytest.approx(0, abs=60), "it has begun"
    assert at(within(86400)) == pytest.approx(3600, abs=60), "the notice says that it is now"
    for nothing in ("NONE", {}, {"error": "no notifications have been received yet, try again later"}):
        assert at(nothing) == pytest.approx(3600, abs=60)
    # Maintenance that is announced for later is no notice yet. The reconciler reads it from the API.
    server.change(maintenanceEvent="NONE", upcomingMaintenance=within(1200))
    assert metadata.notice() is None


def test_a_notice_is_waited_for_and_none_is_missed(server: FakeMetadata) -> None:
    metadata = Metadata()
    before = time.time()
    # The wait is longer than the test may take: each call is answered before its time is up.
    assert metadata.wait(3600) is None, "the first answer comes at once: it has been there before"
    later = threading.Timer(0.1, server.change, kwargs={"preempted": "TRUE"})
    later.start()
    said = metadata.wait(3600)
    later.join()
    assert said is not None
    assert said.at is not None
    assert said.cause == "preempted"
    assert before <= said.at - 30 <= time.time()
    # A change between two calls is reported too.
    other = Metadata()
    server.change(preempted="FALSE")
    assert other.wait(3600) is None
    server.change(preempted="TRUE")
    assert other.wait(3600) is not None


def test_a_wait_ends_in_time(server: FakeMetadata, monkeypatch: pytest.MonkeyPatch) -> None:
    # The server answers when the time is up, which may take a while on a busy machine.
    monkeypatch.setattr(metadata_module, "TIMEOUT_SECONDS", 60.0)
    metadata = Metadata()
    metadata.wait(1)
    start = time.monotonic()
    assert metadata.wait(1) is None
    assert time.monotonic() - start > 0.9
    assert len(server.asked) == 2
