"""The driver's client of EC2: every way in which a call fails is told as botocore tells it."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import socketserver
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError
from hypothesis import given, settings
from hypothesis import strategies as st

from node.aws import imds
from node.aws.signatures import Credentials
from node.elastic.drivers.ec2 import client as ec2_client
from node.elastic.drivers.ec2.client import CallError, Ec2Client, NoAnswerError, RefusedError
from node.elastic.drivers.ec2.errors import code_of, failure_of
from node.elastic.failures import ErrorClass as Kind
from node.system import http_client
from tests.support import boto_models  # noqa: F401  models are read once
from tests.support import fake_ec2_xml as xml
from tests.support.cloud_authority import Authority
from tests.support.fake_imds import ROLE, FakeImds, fake_imds, key

REGION = "eu-central-1"
KEYS = {"AWS_ACCESS_KEY_ID": "AKIDENV", "AWS_SECRET_ACCESS_KEY": "secret"}
EMPTY = xml.listing("DescribeInstancesResponse", "reservationSet", [])[1]


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Only what a test sets is there, and waiting takes no time."""
    for name in [name for name in os.environ if name.upper().endswith("_PROXY") or name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setattr(http_client, "FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(imds, "ROLE_SECONDS", 0.1)


class Server:
    """A server on loopback that does one thing with each connection.

    Attributes:
        requests: The requests, with their heads.
    """

    def __init__(self, behave: Callable[[Server, socket.socket], None], tls: Authority | None = None) -> None:
        self.requests: list[bytes] = []
        self.open = threading.Event()
        context = tls and tls.context()

        class Handler(socketserver.BaseRequestHandler):
            def handle(handler) -> None:  # noqa: N805
                with contextlib.suppress(OSError):
                    connection = handler.request
                    if context:
                        connection = context.wrap_socket(connection, server_side=True)
                    behave(self, connection)
                    connection.close()

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def read(self, connection: socket.socket) -> bytes:
        """Read one request with its body."""
        content = b""
        while b"\r\n\r\n" not in content:
            content += connection.recv(65536)
        head, _, body = content.partition(b"\r\n\r\n")
        lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        length = int(lengths[0].split(b":")[1]) if lengths else 0
        while len(body) < length:
            body += connection.recv(65536)
        self.requests.append(head + b"\r\n\r\n" + body)
        return body

    def close(self) -> None:
        self.open.set()
        self._server.shutdown()
        self._server.server_close()


@contextlib.contextmanager
def serving(
    behave: Callable[[Server, socket.socket], None], tls: Authority | None = None
) -> Iterator[Server]:
    server = Server(behave, tls)
    try:
        yield server
    finally:
        server.close()


def text(status: int, body: bytes, headers: Mapping[str, str] | None = None, length: int = 0) -> bytes:
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {length or len(body)}", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


def answers(status: int, body: bytes, length: int = 0) -> Callable[[Server, socket.socket], None]:
    def behave(server: Server, connection: socket.socket) -> None:
        server.read(connection)
        connection.sendall(text(status, body, length=length))

    return behave


def hangs(server: Server, connection: socket.socket) -> None:
    server.read(connection)
    server.open.wait(60)


def says_nothing(server: Server, _connection: socket.socket) -> None:
    server.open.wait(60)


def closes(server: Server, connection: socket.socket) -> None:
    server.read(connection)


def resets(server: Server, connection: socket.socket) -> None:
    server.read(connection)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def nothing_listens() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# --- both clients before the same server -------------------------------------------------------------------


def ours(url: str, read_seconds: float = 60.0) -> CallError | None:
    try:
        list(Ec2Client(REGION, url, read_seconds=read_seconds).instances({"a": "b"}))
    except CallError as error:
        return error
    return None


def theirs(url: str, read_seconds: float = 60.0) -> Exception | None:
    """Call with boto3 as the driver's client was before: it does not retry."""
    config = Config(
        retries={"mode": "standard", "total_max_attempts": 1},
        connect_timeout=5,
        read_timeout=read_seconds,
        inject_host_prefix=False,
    )
    session = boto3.session.Session()
    client = session.client("ec2", region_name=REGION, endpoint_url=url, config=config)
    try:
        list(client.get_paginator("describe_instances").paginate())
    except Exception as error:
        return error
    return None


def same(url: str, read_seconds: float = 60.0) -> CallError:
    """Check that both clients tell the same, and return our error."""
    our_error, their_error = ours(url, read_seconds), theirs(url, read_seconds)
    assert our_error is not None
    assert their_error is not None
    if isinstance(their_error, ClientError):
        assert isinstance(our_error, RefusedError)
        assert our_error.response["Error"]["Code"] == their_error.response["Error"]["Code"]
        message = our_error.response["Error"]["Message"]
        assert message == (their_error.response["Error"]["Message"] or "")
        status = their_error.response["ResponseMetadata"]["HTTPStatusCode"]
        assert our_error.response["ResponseMetadata"] == {"HTTPStatusCode": status}
    else:
        assert type(our_error).__name__ == type(their_error).__name__, repr(their_error)
    return our_error


def refused(code: str, message: str, status: int) -> tuple[int, bytes]:
    return xml.error(code, message, status)


PAGE = b"<html><head><title>Sorry</title></head><body><h1>no</h1></body></html>"
BEHAVIOURS = {
    "ReadTimeoutError": (hangs, 0.3),
    "ConnectionClosedError": (closes, 60.0),
    "ConnectionClosedError after a reset": (resets, 60.0),
    "ResponseParserError": (answers(200, b"Welcome to the portal"), 60.0),
    "ResponseParserError of a part": (answers(200, EMPTY[:-9]), 60.0),
    "ResponseParserError of a refusal": (answers(403, b"not allowed by the firewall"), 60.0),
    "503": (answers(503, PAGE), 60.0),
    "502": (answers(502, b""), 60.0),
    "RequestLimitExceeded": (answers(*refused("RequestLimitExceeded", "Request limit exceeded.", 503)), 60.0),
    "UnauthorizedOperation": (answers(*refused("UnauthorizedOperation", "You are <not>", 403)), 60.0),
    "InsufficientInstanceCapacity": (answers(*refused("InsufficientInstanceCapacity", "no", 500)), 60.0),
    "Novel": (answers(*refused("Novel", "", 400)), 60.0),
}


@pytest.mark.parametrize("name", BEHAVIOURS)
def test_botocore_tells_the_same(name: str) -> None:
    behave, read_seconds = BEHAVIOURS[name]
    with serving(behave) as server:
        error = same(f"http://127.0.0.1:{server.port}", read_seconds)
    code = name.split(maxsplit=1)[0]
    assert code_of(error) == code
    kinds = {
        "UnauthorizedOperation": Kind.PERMISSION,
        "RequestLimitExceeded": Kind.THROTTLED,
        "InsufficientInstanceCapacity": Kind.CAPACITY,
        "Novel": Kind.CONFIG,
    }
    assert failure_of(error).kind is kinds.get(code, Kind.UNAVAILABLE)


def test_an_answer_that_ends_early_is_none() -> None:
    """botocore reads what has come, and finds that it is no XML."""
    with serving(answers(200, EMPTY[:40], len(EMPTY))) as server:
        error = ours(f"http://127.0.0.1:{server.port}")
    assert error is not None
    assert (code_of(error), failure_of(error).kind) == ("ConnectionClosedError", Kind.UNAVAILABLE)


def test_an_address_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    error = same(f"http://127.0.0.1:{nothing_listens()}")
    assert (code_of(error), failure_of(error).kind) == ("EndpointConnectionError", Kind.UNAVAILABLE)

    def unknown(*_: object, **__: object) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    assert code_of(same("http://ec2.example.org")) == "EndpointConnectionError"


def test_a_connection_that_is_not_made_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its limit is shorter than the answer's, which a launch of hundreds needs."""
    limits: list[float] = []

    def slow(_address: object, timeout: float, *_: object) -> Any:
        limits.append(timeout)
        raise TimeoutError("timed out")

    monkeypatch.setattr(socket, "create_connection", slow)
    error = ours("http://ec2.example.org")
    assert error is not None
    assert (code_of(error), failure_of(error).kind) == ("ConnectTimeoutError", Kind.UNAVAILABLE)
    assert limits == [ec2_client.CONNECT_SECONDS]


def test_an_answer_may_take_longer_than_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ec2_client, "CONNECT_SECONDS", 0.2)

    def slow(server: Server, connection: socket.socket) -> None:
        server.read(connection)
        time.sleep(0.6)
        connection.sendall(text(200, EMPTY))

    with serving(slow) as server:
        assert ours(f"http://127.0.0.1:{server.port}") is None


# --- TLS and proxies ---------------------------------------------------------------------------------------


def test_a_certificate_is_checked_and_the_environment_may_name_another_authority(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path, ["localhost"])
    with serving(answers(200, EMPTY), authority) as server:
        url = f"https://localhost:{server.port}"
        error = same(url)
        assert (code_of(error), failure_of(error).kind) == ("SSLError", Kind.UNAVAILABLE)
        assert "certificate verify failed" in str(error)
        assert server.requests == [], "no credentials have been sent"
        bundle = tmp_path / "bundle.pem"
        monkeypatch.setenv("AWS_CA_BUNDLE", str(bundle))
        unread = ours(url)
        assert unread is not None
        assert f"{bundle} gives no certificates to trust" in str(unread)
        bundle.write_text(authority.pem)
        assert (ours(url), theirs(url)) == (None, None)


def test_a_server_that_speaks_no_tls() -> None:
    with serving(lambda _server, connection: connection.sendall(text(400, b""))) as server:
        assert code_of(same(f"https://127.0.0.1:{server.port}")) == "SSLError"


def test_a_server_that_agrees_on_no_tls_is_left_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ec2_client, "CONNECT_SECONDS", 0.3)
    with serving(says_nothing) as server:
        error = ours(f"https://127.0.0.1:{server.port}")
    assert error is not None
    assert (code_of(error), failure_of(error).kind) == ("ConnectTimeoutError", Kind.UNAVAILABLE)


def connects(server: Server, connection: socket.socket) -> None:
    server.read(connection)
    connection.sendall(text(403, b""))


def test_certificates_are_read_once_and_only_for_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading the system's takes 20 ms, which every call of a boot to its metadata service would cost."""
    http_client._context.cache_clear()
    made: list[dict[str, Any]] = []
    make = ssl.create_default_context

    def noted(**how: Any) -> ssl.SSLContext:
        made.append(how)
        return make(**how)

    monkeypatch.setattr(ssl, "create_default_context", noted)
    with serving(answers(200, EMPTY)) as server:
        assert ours(f"http://127.0.0.1:{server.port}") is None
    assert made == []
    for _ in range(2):
        assert ours(f"https://127.0.0.1:{nothing_listens()}") is not None
    assert made == [{"cafile": None}]


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("listens", [True, False])
def test_a_proxy_of_the_environment(
    scheme: str, listens: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with serving(connects if scheme == "https" else answers(200, EMPTY)) as server:
        port = server.port if listens else nothing_listens()
        monkeypatch.setenv(f"{scheme.upper()}_PROXY", f"http://ada:secret@127.0.0.1:{port}")
        url = f"{scheme}://ec2.example.org"
        if listens and scheme == "http":
            assert (ours(url), theirs(url)) == (None, None)
            assert all(b"POST http://ec2.example.org/" in request for request in server.requests)
        else:
            error = same(url)
            assert (code_of(error), failure_of(error).kind) == ("ProxyConnectionError", Kind.UNAVAILABLE)
            assert f"the proxy is 127.0.0.1:{port}" in str(error)
            assert "secret" not in str(error)
        if listens:
            assert all(b"Proxy-" in request for request in server.requests)
            assert len(server.requests) == 2
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with serving(answers(200, EMPTY)) as server:
        assert ours(f"http://127.0.0.1:{server.port}") is None


# --- addresses ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("region", ["eu-central-1", "cn-north-1", "us-gov-west-1"])
def test_addresses_of_the_regions(region: str) -> None:
    theirs = boto3.session.Session().client("ec2", region_name=region).meta.endpoint_url
    assert Ec2Client(region)._url() == f"{theirs}/"


def test_the_environment_sets_other_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, url in (("AWS_ENDPOINT_URL", "http://all:1"), ("AWS_ENDPOINT_URL_EC2", "http://ec2:2/")):
        monkeypatch.setenv(name, url)
        theirs = boto3.session.Session().client("ec2", region_name=REGION).meta.endpoint_url
        assert Ec2Client(REGION)._url() == f"{theirs.rstrip('/')}/"
    assert Ec2Client(REGION, "http://given")._url() == "http://given/"


def test_without_a_region_it_is_the_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_imds() as fake:
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", fake.url)
        assert Ec2Client("")._url() == "https://ec2.eu-west-1.amazonaws.com/"
        fake.broken = 100
        with pytest.raises(CallError, match="gives no") as caught:
            Ec2Client("")._url()
    assert failure_of(caught.value).kind is Kind.UNAVAILABLE


# --- credentials -------------------------------------------------------------------------------------------


@pytest.fixture
def metadata(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeImds]:
    for name in KEYS:
        monkeypatch.delenv(name)
    with fake_imds() as fake:
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", fake.url)
        yield fake


def signers(server: Server) -> list[str]:
    return [request.partition(b"Credential=")[2].split(b"/")[0].decode() for request in server.requests]


def test_credentials_are_the_roles_and_renewed(metadata: FakeImds) -> None:
    soon = (datetime.now(UTC) + timedelta(minutes=5)).strftime("%Y-%m-%dT%H:%M:%SZ")
    metadata.content[f"{ROLE}compute-role"] = json.dumps(key("ONE", soon))
    with serving(answers(200, EMPTY)) as server:
        client = Ec2Client(REGION, f"http://127.0.0.1:{server.port}")
        assert list(client.instances({})) == []
        metadata.content[f"{ROLE}compute-role"] = json.dumps(key("TWO"))
        assert list(client.instances({})) == []
        metadata.content[f"{ROLE}compute-role"] = json.dumps(key("THREE"))
        assert list(client.instances({})) == []
        assert signers(server) == ["AKIDONE", "AKIDTWO", "AKIDTWO"]
        assert b"token-of-TWO" in server.requests[-1]


def test_credentials_of_the_environment_come_first(
    metadata: FakeImds, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of-a-session")
    with serving(answers(200, EMPTY)) as server:
        url = f"http://127.0.0.1:{server.port}"
        assert (ours(url), theirs(url)) == (None, None)
        assert signers(server) == ["AKIDENV", "AKIDENV"]
        assert all(b"of-a-session" in request for request in server.requests)
    assert metadata.asked == []


def no_role(fake: FakeImds) -> None:
    del fake.content[ROLE], fake.content[f"{ROLE}compute-role"]


def failed_role(fake: FakeImds) -> None:
    fake.content[f"{ROLE}compute-role"] = json.dumps({"Code": "AssumeRoleUnauthorizedAccess", "Message": "x"})


def no_json(fake: FakeImds) -> None:
    fake.content[f"{ROLE}compute-role"] = "<html>"


def busy(fake: FakeImds) -> None:
    fake.broken = 1000


@pytest.mark.parametrize("spoil", [no_role, failed_role, no_json, busy])
def test_a_role_that_gives_none_is_a_failure_that_passes(
    metadata: FakeImds, spoil: Callable[[FakeImds], None]
) -> None:
    """PERMISSION would stop all launches for minutes, and a young machine's role may still come."""
    spoil(metadata)
    with serving(answers(200, EMPTY)) as server:
        error = same(f"http://127.0.0.1:{server.port}")
        assert server.requests == []
    assert (code_of(error), failure_of(error).kind) == ("NoCredentialsError", Kind.UNAVAILABLE)


@pytest.mark.parametrize("missing", KEYS)
def test_a_part_of_the_credentials_is_said(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(missing)
    with serving(answers(200, EMPTY)) as server:
        error = ours(f"http://127.0.0.1:{server.port}")
    assert error is not None
    assert (code_of(error), failure_of(error).kind) == ("PartialCredentialsError", Kind.PERMISSION)
    assert missing in str(error)


# --- the clock ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", ["AuthFailure", "RequestExpired", "SignatureDoesNotMatch"])
@pytest.mark.parametrize("hours", [0, 2, -2])
def test_a_clock_that_is_off_is_told_ec2s_time_once(code: str, hours: int) -> None:
    there = datetime.now(UTC) + timedelta(hours=hours)
    status, content = xml.error(code, "Signature expired: 2026 is now earlier than 2027", 401)
    date = {"Date": format_datetime(there, usegmt=True)}

    def behave(server: Server, connection: socket.socket) -> None:
        body = server.read(connection)
        assert body
        connection.sendall(text(status, content, date) if len(server.requests) < 2 else text(200, EMPTY))

    with serving(behave) as server:
        error = ours(f"http://127.0.0.1:{server.port}")
        assert len(server.requests) == (2 if hours else 1)
        if hours:
            assert error is None
            stamp = server.requests[1].lower().partition(b"x-amz-date: ")[2][:16].decode().upper()
            signed = datetime.strptime(stamp, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
            assert abs(signed - there) < timedelta(minutes=5)
            assert (
                server.requests[0].partition(b"\r\n\r\n")[2] == server.requests[1].partition(b"\r\n\r\n")[2]
            )
        else:
            assert isinstance(error, RefusedError)
            assert failure_of(error).kind is Kind.PERMISSION


# --- pages -------------------------------------------------------------------------------------------------


def reservations(pages: list[list[list[str]]]) -> list[bytes]:
    """Return pages of DescribeInstances, of reservations, of instances."""
    bodies = []
    for number, page in enumerate(pages, 1):
        items = [
            "<item><instancesSet>"
            + "".join(
                f"<item><instanceId>{one}</instanceId><instanceState><name>running</name></instanceState>"
                "<launchTime>2026-11-28T10:00:00.000Z</launchTime></item>"
                for one in reservation
            )
            + "</instancesSet></item>"
            for reservation in page
        ]
        token = f"token-{number}" if number < len(pages) else None
        bodies.append(xml.listing("DescribeInstancesResponse", "reservationSet", items, token)[1])
    return bodies


def paged(bodies: list[bytes]) -> Callable[[Server, socket.socket], None]:
    def behave(server: Server, connection: socket.socket) -> None:
        body = server.read(connection)
        number = int(body.partition(b"NextToken=token-")[2].partition(b"&")[0] or 0)
        connection.sendall(text(200, bodies[number]))

    return behave


@settings(max_examples=15, deadline=None)
@given(counts=st.lists(st.lists(st.integers(0, 3), max_size=3), min_size=1, max_size=4))
def test_every_instance_of_every_page_is_listed_once(counts: list[list[int]]) -> None:
    names = iter(f"i-{number:x}" for number in range(1000))
    pages = [[[next(names) for _ in range(count)] for count in page] for page in counts]
    with serving(paged(reservations(pages))) as server:
        client = Ec2Client(REGION, f"http://127.0.0.1:{server.port}", lambda: Credentials("a", "b"))
        found = [instance.id for instance in client.instances({"a": "b"})]
        assert len(server.requests) == len(pages)
    assert found == [one for page in pages for reservation in page for one in reservation]


def test_a_page_that_leads_to_itself_is_no_end() -> None:
    bodies = reservations([[["i-1"]], [["i-2"]], [["i-3"]]])
    bodies[2] = bodies[1]
    with serving(paged(bodies)) as server:
        error = ours(f"http://127.0.0.1:{server.port}")
    assert isinstance(error, NoAnswerError)
    assert "twice" in str(error)
    assert failure_of(error).kind is Kind.UNAVAILABLE
