"""Tests of objects and secrets with moto's server on loopback. Their errors go into the boot report."""

from __future__ import annotations

import hashlib
import http.server
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import boto3
import pytest

from node.aws import services
from node.aws.services import Bucket, Secret
from node.aws.signatures import Credentials
from node.system import http_client
from node.system.cloud_api import MissingError, ServiceError, UnreachableError
from tests.support.moto_server import moto_server

REGION = "eu-west-1"


def role() -> Credentials:
    return Credentials("AKIDTEST", "secret", "token")


@pytest.fixture(scope="module")
def moto() -> Iterator[str]:
    with moto_server() as url:
        yield url


def client(service: str, endpoint: str) -> Any:
    return boto3.client(
        service, REGION, endpoint_url=endpoint, aws_access_key_id="a", aws_secret_access_key="b"
    )


@pytest.fixture
def cloud(moto: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("AWS_ENDPOINT_URL", moto)
    return moto


@pytest.fixture
def bucket(cloud: str) -> Bucket:
    s3 = client("s3", cloud)
    if not s3.list_buckets()["Buckets"]:
        s3.create_bucket(Bucket="t-bucket", CreateBucketConfiguration={"LocationConstraint": REGION})
    return Bucket("s3://t-bucket", REGION, role)


# --- objects ---------------------------------------------------------------------------------------------


def test_objects_go_and_come_whole(cloud: str, bucket: Bucket) -> None:
    content = bytes(range(256)) * 5000
    client("s3", cloud).put_object(Bucket="t-bucket", Key="code/a b+c.zip", Body=content)
    assert bucket.get("code/a b+c.zip", hashlib.sha256(content).hexdigest()) == content
    bucket.put("boot/compute-0.json", b"{}")
    bucket.put("boot/compute-0.json", b'{"state": "ready"}')
    there = client("s3", cloud).get_object(Bucket="t-bucket", Key="boot/compute-0.json")["Body"].read()
    assert there == b'{"state": "ready"}'
    bucket.put("empty", b"")
    assert bucket.get("empty") == b""


def test_a_bucket_is_listed_by_a_prefix_page_by_page(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "PAGE", 2)
    keys = [f"backups/lab-{number} & <{number}>.tar" for number in range(5)]
    for key in (*keys, "backups/other-1.tar"):
        bucket.put(key, b"x")
    assert bucket.names("backups/lab-") == keys
    bucket.delete(keys[0])
    bucket.delete(keys[0])
    assert bucket.names("backups/lab-") == keys[1:]
    assert bucket.names("none") == []


def test_another_digest_is_refused(bucket: Bucket) -> None:
    bucket.put("code/x.zip", b"tampered")
    with pytest.raises(
        ServiceError, match=r"s3://t-bucket/code/x\.zip: its digest is [0-9a-f]{64}, and should"
    ):
        bucket.get("code/x.zip", hashlib.sha256(b"original").hexdigest())


@pytest.mark.usefixtures("bucket")
def test_what_is_not_there_is_said() -> None:
    with pytest.raises(MissingError, match=r"s3://t-bucket/current\.json: there is no such object"):
        Bucket("s3://t-bucket", REGION, role).get("current.json")
    with pytest.raises(ServiceError, match=r"s3://none-such/a: there is no such bucket \(NoSuchBucket"):
        Bucket("s3://none-such", REGION, role).get("a")


class Stub:
    """A server that sends the next of `answers` for each request, and records the requests."""

    def __init__(self, *answers: tuple[int, str]) -> None:
        self.answers, self.seen = list(answers), []
        stub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def _do(self) -> None:
                size = int(self.headers.get("Content-Length") or 0)
                stub.seen.append(
                    (
                        self.command,
                        self.path,
                        {name.lower(): value for name, value in self.headers.items()},
                        self.rfile.read(size),
                    )
                )
                status, text = stub.answers.pop(0)
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.send_header("x-amz-bucket-region", "us-east-1")
                self.end_headers()
                self.wfile.write(text.encode())

            do_GET = do_PUT = do_POST = _do  # noqa: N815

            def log_message(self, *_arguments: Any) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    seen: list[tuple[str, str, dict[str, str], bytes]]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stub]:
    made = Stub()
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", made.url)
    monkeypatch.setenv("AWS_ENDPOINT_URL_SECRETS_MANAGER", made.url)
    monkeypatch.setattr(http_client, "FIRST_PAUSE_SECONDS", 0.01)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("status", "code", "says"),
    [
        (403, "AccessDenied", r"the machine's role does not allow it \(AccessDenied: why\)"),
        (403, "SignatureDoesNotMatch", "is this machine's clock right"),
        (301, "PermanentRedirect", "the bucket is in us-east-1, not in eu-west-1"),
        (418, "Strange", "Strange: why"),
    ],
)
def test_refusals_in_words(stub: Stub, status: int, code: str, says: str) -> None:
    stub.answers = [(status, f"<Error><Code>{code}</Code><Message>why</Message></Error>")]
    with pytest.raises(ServiceError, match=f"s3://b/k: .*{says}") as caught:
        Bucket("s3://b", REGION, role).get("k")
    assert (caught.value.status, len(stub.seen)) == (status, 1)


@pytest.mark.parametrize("ahead", [7200.0, -7200.0])
def test_a_clock_that_is_off_is_told_the_services_time(
    stub: Stub, monkeypatch: pytest.MonkeyPatch, ahead: float
) -> None:
    """S3's answer to a signature of another time, as its page of error responses has it."""
    there = datetime.now(UTC) + timedelta(seconds=ahead)
    date = format_datetime(there, usegmt=True)
    monkeypatch.setattr(http.server.BaseHTTPRequestHandler, "date_time_string", lambda *_: date)
    refused = (403, "<Error><Code>RequestTimeTooSkewed</Code><Message>The difference</Message></Error>")
    bucket = Bucket("s3://b", REGION, role)
    stub.answers = [refused, (200, "there")]
    assert bucket.get("k") == b"there"
    signed = [datetime.strptime(h["x-amz-date"], "%Y%m%dT%H%M%S%z") for _, _, h, _ in stub.seen]
    assert abs(signed[1] - there) < timedelta(minutes=5)
    assert abs(signed[0] - there) > timedelta(hours=1)
    # A service that refuses its own time is asked no third time.
    stub.answers = [refused, refused]
    with pytest.raises(ServiceError, match=r"s3://b/k: this machine's clock is wrong by minutes"):
        bucket.get("k")


def test_each_attempt_is_signed_anew_with_the_credentials_of_the_moment(stub: Stub) -> None:
    given = iter("ABC")
    stub.answers = [(503, ""), (500, ""), (200, "there")]
    bucket = Bucket("s3://b", REGION, lambda: Credentials(f"AKID{next(given)}", "s", "t"))
    assert bucket.get("k") == b"there"
    who = [headers["authorization"].partition("Credential=")[2][:5] for _, _, headers, _ in stub.seen]
    assert who == ["AKIDA", "AKIDB", "AKIDC"]
    assert {path for _, path, _, _ in stub.seen} == {"/b/k"}
    assert all(headers["x-amz-security-token"] == "t" for _, _, headers, _ in stub.seen)


def test_the_report_gives_up_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1")
    with pytest.raises(UnreachableError, match="tried once"):
        Bucket("s3://b", REGION, role, attempts=1).put("boot/a.json", b"{}")


def test_addresses_of_the_regions(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    asked: list[str] = []

    def answer(_method: str, url: str, *_rest: Any, **_options: Any) -> http_client.Answer:
        asked.append(url)
        return http_client.Answer(200, b"{}")

    monkeypatch.setattr(http_client, "call", answer)
    for name, region in (("b", "eu-west-1"), ("a.b", "eu-west-1"), ("b", "cn-north-1")):
        Bucket(f"s3://{name}", region, role).get("code/x")
    Secret("t-munge", "eu-west-1", role)._call("GetSecretValue")
    assert asked == [
        "https://b.s3.eu-west-1.amazonaws.com/code/x",
        "https://s3.eu-west-1.amazonaws.com/a.b/code/x",
        "https://b.s3.cn-north-1.amazonaws.com.cn/code/x",
        "https://secretsmanager.eu-west-1.amazonaws.com/",
    ]


# --- secrets ---------------------------------------------------------------------------------------------


def test_an_empty_secret_is_filled_once_and_read(cloud: str) -> None:
    boto = client("secretsmanager", cloud)
    made = boto.create_secret(Name="t-munge")
    for name in ("t-munge", made["ARN"]):
        assert Secret(name, REGION, role).get() is None, "it has no value yet"
    key = bytes(range(256)) * 4
    Secret("t-munge", REGION, role).put(key)
    assert Secret(made["ARN"], REGION, role).get() == key
    assert boto.get_secret_value(SecretId="t-munge")["SecretBinary"] == key
    boto.put_secret_value(SecretId="t-munge", SecretString="by hand")
    assert Secret("t-munge", REGION, role).get() == b"by hand"


@pytest.mark.usefixtures("cloud")
def test_a_secret_that_does_not_exist_is_no_empty_one() -> None:
    secret = Secret("none-such", REGION, role)
    with pytest.raises(MissingError, match="secret none-such: ResourceNotFoundException"):
        secret.get()
    with pytest.raises(ServiceError, match="none-such"):
        secret.put(b"x")


def test_a_secret_that_is_refused(stub: Stub) -> None:
    stub.answers = [(400, '{"__type": "a.b#AccessDeniedException", "Message": "no"}')]
    with pytest.raises(
        ServiceError, match=r"the machine's role does not allow it \(AccessDeniedException: no\)"
    ):
        Secret("t-munge", REGION, role).get()
    (only,) = stub.seen
    assert only[2]["x-amz-target"] == "secretsmanager.GetSecretValue"
    assert only[3] == b'{"SecretId": "t-munge"}'
