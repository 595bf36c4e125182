"""Tests of Google Cloud's objects and secrets with a fake on loopback. Their errors go into reports."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import pytest

from node.gcp import services
from node.gcp.metadata import Metadata
from node.gcp.services import Bucket, Secret
from node.system import http_client, waiting
from node.system.cloud_api import MissingError, ServiceError, UnreachableError
from tests.support.fake_metadata import SECRET, FakeMetadata, environment, fake_metadata


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeMetadata]:
    monkeypatch.setattr(http_client, "FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(http_client, "LONGEST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(services, "PAUSE_SECONDS", 0.01)
    with fake_metadata() as fake:
        for name, value in environment(fake).items():
            monkeypatch.setenv(name, value)
        yield fake


@pytest.fixture
def bucket(cloud: FakeMetadata) -> Bucket:
    return Bucket("gs://t-bucket", Metadata().token)


# --- objects ---------------------------------------------------------------------------------------------


def test_objects_go_and_come_whole(cloud: FakeMetadata, bucket: Bucket) -> None:
    content = bytes(range(256)) * 5000
    cloud.objects["code/a b+c.zip"] = content
    assert bucket.get("code/a b+c.zip", hashlib.sha256(content).hexdigest()) == content
    bucket.put("boot/compute-0.json", b"{}")
    bucket.put("boot/compute-0.json", b'{"state": "ready"}')
    assert cloud.objects["boot/compute-0.json"] == b'{"state": "ready"}'
    bucket.put("empty", b"")
    assert bucket.get("empty") == b""
    assert cloud.asked[0] == "GET storage/v1/b/t-bucket/o/code%2Fa%20b%2Bc.zip"
    assert cloud.tokens == ["token-1"], "one token for all"


def test_a_bucket_is_listed_by_a_prefix_page_by_page(cloud: FakeMetadata, bucket: Bucket) -> None:
    cloud.page = 2
    names = [f"backups/lab-{number} & <{number}>.tar" for number in range(5)]
    for name in (*names, "backups/other-1.tar"):
        bucket.put(name, b"x")
    assert bucket.names("backups/lab-") == names
    bucket.delete(names[0])
    bucket.delete(names[0])
    assert bucket.names("backups/lab-") == names[1:]
    assert bucket.names("none") == []


def test_another_digest_is_refused(cloud: FakeMetadata, bucket: Bucket) -> None:
    cloud.objects["code/x.zip"] = b"tampered"
    with pytest.raises(ServiceError, match=r"gs://t-bucket/code/x\.zip: its digest is [0-9a-f]{64}, and"):
        bucket.get("code/x.zip", hashlib.sha256(b"original").hexdigest())


def test_what_is_not_there_is_said(bucket: Bucket) -> None:
    says = r"gs://t-bucket/current\.json: it does not exist \(notFound: No such object: t-bucket/current"
    with pytest.raises(MissingError, match=says):
        bucket.get("current.json")
    with pytest.raises(MissingError, match=r"gs://none-such/a: it does not exist \(notFound: The spec"):
        Bucket("gs://none-such", Metadata().token).get("a")


@pytest.mark.parametrize(
    ("status", "reason", "says"),
    [
        (403, "forbidden", r"the machine's service account may not do that \(forbidden: why\)"),
        (401, "UNAUTHENTICATED", "the token of the machine's service account was not accepted"),
        (412, "conditionNotMet", "gs://t-bucket/k: conditionNotMet: why"),
    ],
)
def test_refusals_in_words(cloud: FakeMetadata, bucket: Bucket, status: int, reason: str, says: str) -> None:
    cloud.refuse = [(status, reason)] * 2
    with pytest.raises(ServiceError, match=says) as caught:
        bucket.get("k")
    assert (caught.value.status, caught.value.code) == (status, reason)
    assert len(cloud.asked) == (2 if status == 401 else 1)


def test_what_passes_is_asked_again(cloud: FakeMetadata, bucket: Bucket) -> None:
    cloud.objects["k"] = b"there"
    cloud.refuse = [(503, "backendError"), (429, "rateLimitExceeded"), (500, "internalError")]
    assert bucket.get("k") == b"there"
    assert len(cloud.asked) == 4


def test_a_token_that_was_withdrawn_is_replaced(cloud: FakeMetadata, bucket: Bucket) -> None:
    cloud.objects["k"] = b"there"
    bucket.get("k")
    cloud.tokens.append("another")
    assert bucket.get("k") == b"there"
    assert len(cloud.tokens) == 3


def test_the_report_gives_up_soon(cloud: FakeMetadata, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "127.0.0.1:1")
    with pytest.raises(UnreachableError, match="tried once"):
        Bucket("gs://b", Metadata().token, attempts=1).put("boot/a.json", b"{}")
    assert cloud.asked == []


def test_googles_own_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("STORAGE_EMULATOR_HOST", "CLOUDSDK_API_ENDPOINT_OVERRIDES_SECRETMANAGER"):
        monkeypatch.delenv(name, raising=False)
    asked: list[tuple[str, str]] = []

    def answer(method: str, url: str, *_rest: object, **_options: object) -> http_client.Answer:
        asked.append((method, url))
        return http_client.Answer(200, b'{"payload": {"data": ""}}')

    monkeypatch.setattr(http_client, "call", answer)

    def token(*, fresh: bool = False) -> str:
        return "t"

    Bucket("gs://b", token).get("boot/x.json")
    Bucket("gs://b", token).put("boot/x.json", b"")
    Secret(SECRET, token).get()
    assert asked == [
        ("GET", "https://storage.googleapis.com/storage/v1/b/b/o/boot%2Fx.json?alt=media"),
        (
            "POST",
            "https://storage.googleapis.com/upload/storage/v1/b/b/o?uploadType=media&name=boot%2Fx.json",
        ),
        ("GET", f"https://secretmanager.googleapis.com/v1/{SECRET}/versions/latest:access"),
    ]


# --- secrets ---------------------------------------------------------------------------------------------


def test_an_empty_secret_is_filled_once_and_read(cloud: FakeMetadata) -> None:
    secret = Secret(SECRET, Metadata().token)
    assert secret.get() is None, "it has no value yet"
    key = bytes(range(256)) * 4
    secret.put(key)
    assert (cloud.versions, secret.get()) == ([key], key)


def test_a_secret_that_does_not_exist_cannot_be_filled(cloud: FakeMetadata) -> None:
    cloud.versions = None
    with pytest.raises(MissingError, match=f"secret {SECRET}: it does not exist .*NOT_FOUND: Secret"):
        Secret(SECRET, Metadata().token).put(b"x")


class Clock:
    """A fake of the module `time`."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_a_permission_that_is_not_known_yet_is_waited_for(
    cloud: FakeMetadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud.versions = [b"key"]
    clock = Clock()
    monkeypatch.setattr(waiting, "time", clock)
    monkeypatch.setattr(services, "PAUSE_SECONDS", 5.0)
    # This is eight minutes, with a request every five seconds.
    cloud.refuse = [(403, "PERMISSION_DENIED")] * 96
    assert Secret(SECRET, Metadata().token).get() == b"key"
    assert clock.now == 480
    # Both permissions are given together, so the second call does not wait for the whole time again.
    cloud.refuse = [(403, "PERMISSION_DENIED")] * 96
    secret = Secret(SECRET, Metadata().token)
    assert secret.get() == b"key"
    cloud.refuse = [(403, "PERMISSION_DENIED")] * 96
    with pytest.raises(ServiceError, match="PERMISSION_DENIED"):
        secret.put(b"new")
    assert clock.now == pytest.approx(480 + 600, abs=10)
    cloud.refuse = []
    monkeypatch.setattr(services, "DENIED_SECONDS", -1)
    cloud.refuse = [(403, "PERMISSION_DENIED")]
    with pytest.raises(ServiceError, match=r"may not do that \(PERMISSION_DENIED: why\)"):
        Secret(SECRET, Metadata().token).get()
