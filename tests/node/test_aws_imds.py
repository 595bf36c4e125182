"""Tests of the client of EC2's metadata service with a fake on loopback: tokens, role, tags, notices."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from node.aws import imds
from node.aws.imds import Metadata
from node.system import http_client
from node.system.cloud_api import MissingError, Notice, ServiceError, UnreachableError
from tests.support.fake_imds import ROLE, FakeImds, fake_imds, key
from tests.support.naps import noted_naps


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeImds]:
    monkeypatch.setattr(http_client, "FIRST_PAUSE_SECONDS", 0.01)
    with fake_imds() as fake:
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", fake.url)
        # Metadata is never requested through a proxy, because it is local to the machine.
        monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
        yield fake


def test_an_instance_knows_itself_with_one_token(service: FakeImds) -> None:
    metadata = Metadata()
    identity = metadata.identity()
    assert (identity.instance, identity.region, identity.zone) == (
        "i-0123456789abcdef0",
        "eu-west-1",
        "eu-west-1b",
    )
    assert (identity.machine, identity.address) == ("g4dn.xlarge", "10.0.1.17")
    assert metadata.region() == "eu-west-1"
    service.content["meta-data/ami-launch-index"] = "7"
    assert metadata.launch_index() == 7
    assert len(service.tokens) == 1


def test_a_token_that_ended_early_is_replaced(service: FakeImds) -> None:
    metadata = Metadata()
    metadata.region()
    service.tokens.clear()
    assert metadata.region() == "eu-west-1"
    assert len(service.tokens) == 1


def test_tags_are_there_or_not(service: FakeImds) -> None:
    metadata = Metadata()
    assert metadata.tag("slurm-stacks:nodes") is None
    service.content["meta-data/tags/instance/slurm-stacks:nodes"] = "compute-[0-3]"
    assert metadata.tag("slurm-stacks:nodes") == "compute-[0-3]"


def test_credentials_are_kept_and_renewed_before_they_end(service: FakeImds) -> None:
    metadata = Metadata()
    first = metadata.credentials()
    assert (first.access_key, first.secret_key, first.token) == ("AKIDONE", "secret-of-ONE", "token-of-ONE")
    assert first.expires == imds.seconds("2099-01-01T00:00:00Z") == 4070908800.0
    asked = len(service.asked)
    assert metadata.credentials() is first
    assert len(service.asked) == asked

    def stamp(seconds: float) -> str:
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + seconds))

    service.content[f"{ROLE}compute-role"] = json.dumps(key("TWO", stamp(300)))
    ending = Metadata()
    assert ending.credentials().access_key == "AKIDTWO"
    service.content[f"{ROLE}compute-role"] = json.dumps(key("THREE"))
    assert ending.credentials().access_key == "AKIDTHREE"
    # An error of the service does no harm while the present credentials are valid.
    service.content[f"{ROLE}compute-role"] = json.dumps(key("FOUR", stamp(300)))
    last = Metadata()
    assert last.credentials().access_key == "AKIDFOUR"
    del service.content[f"{ROLE}compute-role"]
    assert last.credentials().access_key == "AKIDFOUR"


def test_a_role_may_come_some_seconds_late_or_never(
    service: FakeImds, monkeypatch: pytest.MonkeyPatch
) -> None:
    role = {path: service.content.pop(path) for path in (ROLE, f"{ROLE}compute-role")}

    def nap(_seconds: float) -> None:
        service.content |= role

    naps = noted_naps(monkeypatch, nap)
    assert Metadata().credentials().access_key == "AKIDONE"
    assert naps == [1.0]
    for path in role:
        del service.content[path]
    monkeypatch.setattr(imds, "ROLE_SECONDS", -1)
    with pytest.raises(MissingError, match="no role"):
        Metadata().credentials()
    service.content[ROLE] = "compute-role"
    service.content[f"{ROLE}compute-role"] = json.dumps({"Code": "AssumeRoleUnauthorizedAccess"})
    with pytest.raises(ServiceError, match="compute-role gives no credentials: AssumeRoleUnauth"):
        Metadata().credentials()


def test_notices(service: FakeImds, monkeypatch: pytest.MonkeyPatch) -> None:
    naps = noted_naps(monkeypatch)
    metadata = Metadata()
    assert metadata.notice() is None
    service.content["meta-data/events/recommendations/rebalance"] = '{"noticeTime": "2026-11-21T18:00:00Z"}'
    assert metadata.notice() == Notice("rebalance recommendation", None)
    notice = {"action": "terminate", "time": "2026-11-21T18:02:00Z"}
    service.content["meta-data/spot/instance-action"] = json.dumps(notice)
    assert metadata.notice() == Notice("terminate", imds.seconds("2026-11-21T18:02:00Z"))
    assert naps == []
    assert metadata.wait(60) == metadata.notice()
    assert naps == [imds.POLL_SECONDS]


def test_what_passes_is_asked_again_and_what_stays_is_said(
    service: FakeImds, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata = Metadata()
    metadata.region()
    service.broken = 2
    assert metadata.region() == "eu-west-1"
    service.broken = 99
    with pytest.raises(ServiceError, match=r"placement/region: HTTP status 503"):
        metadata.region()
    monkeypatch.setattr(http_client, "LONGEST_PAUSE_SECONDS", 0.01)
    with pytest.raises(UnreachableError, match=r"127\.0\.0\.1:1 did not answer \(tried 6 times\): .*refused"):
        Metadata("http://127.0.0.1:1").region()
