"""The driver's client: what keeps an answer from coming, tokens, kept connections."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from node.elastic.drivers.gce import client as gce_client
from node.elastic.drivers.gce import errors as gce_errors
from node.elastic.drivers.gce.client import CallError, Compute, TokenError
from node.elastic.failures import ErrorClass as Kind
from node.gcp.metadata import Metadata
from tests.support.fake_gce import Fault, fake_gce
from tests.support.naps import noted_naps

ZONE = "europe-west4-a"


def http(status: str, body: bytes, *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


@contextmanager
def server(*answers: bytes | None, wrap: ssl.SSLContext | None = None) -> Iterator[tuple[str, list[bytes]]]:
    """A server whose connections get one answer each and are closed then; `None` leaves one waiting.

    Yields:
        Its address, and the requests.
    """
    asked: list[bytes] = []
    over = threading.Event()

    def serve(listener: socket.socket) -> None:
        for said in answers:
            try:
                connection, _ = listener.accept()
            except OSError:  # the end of the test, which needs no more of them
                return
            with connection:
                try:
                    stream = wrap.wrap_socket(connection, server_side=True) if wrap else connection
                except OSError:
                    continue
                asked.append(stream.recv(65536))
                if said is None:
                    over.wait(60)
                else:
                    stream.sendall(said)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,), daemon=True)
        thread.start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}", asked
        finally:
            over.set()


def anybody(*, fresh: bool = False) -> str:
    return "nobody"


def client(place: str, scheme: str = "http") -> Compute:
    return Compute("p-1", anybody, f"{scheme}://{place}/compute/v1")


def refused(call: Callable[[], object]) -> CallError:
    with pytest.raises(CallError) as raised:
        call()
    return raised.value


OPERATION = http("200 OK", b'{"name": "o", "status": "DONE"}')
CUT = OPERATION.replace(b'DONE"}', b"")


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (None, "Read timed out"),
        (b"", "Connection aborted"),
        (CUT, "does not answer|no JSON object"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "BadStatusLine|Connection aborted"),
        (http("200 OK", b"<html>maintenance</html>"), "no JSON object"),
        (http("200 OK", b"[1]"), "no JSON object"),
        (http("502 Bad Gateway", b"<html>bad gateway</html>"), "HTTP status 502"),
    ],
    ids=["slow", "closed", "cut", "ssh", "page", "list", "gateway"],
)
def test_no_answer_of_compute_engine_is_unavailable(said: bytes | None, words: str) -> None:
    with server(said) as (place, _):
        error = refused(lambda: client(place).wait(ZONE, "o", 0.2 if said is None else 60.0))
    failure = gce_errors.failure_of(error)
    assert failure.kind is Kind.UNAVAILABLE
    assert any(word in failure.message for word in words.split("|")), failure


def test_an_address_that_nobody_has_is_unavailable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    for place in (f"127.0.0.1:{port}", "compute.invalid"):
        failure = gce_errors.failure_of(refused(lambda place=place: client(place).wait(ZONE, "o", 9.0)))  # type: ignore[misc]
        assert (failure.kind, failure.code) == (Kind.UNAVAILABLE, gce_client.NO_ANSWER)


def test_a_redirect_takes_the_token_nowhere() -> None:
    with server(OPERATION) as (other, asked):
        moved = http("302 Found", b"", f"Location: http://{other}/compute/v1/x")
        with server(moved) as (place, _):
            error = refused(lambda: client(place).operation(ZONE, "o"))
    failure = gce_errors.failure_of(error)
    assert (failure.kind, failure.code, asked) == (Kind.UNAVAILABLE, "HTTP302", [])


def test_a_server_that_no_authority_knows_gets_no_token(tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl, which makes a certificate")
    key, certificate = tmp_path / "key", tmp_path / "certificate"
    line = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
            "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]  # fmt: skip
    subprocess.run([*line, "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with server(OPERATION, OPERATION, wrap=context) as (place, asked):
        named = place.replace("127.0.0.1", "localhost")
        failure = gce_errors.failure_of(refused(lambda: client(named, "https").operation(ZONE, "o")))
    assert failure.kind is Kind.UNAVAILABLE
    assert "certificate verify failed" in failure.message.lower()
    assert asked == []


def test_a_list_that_leads_back_to_its_own_page_ends() -> None:
    page = http("200 OK", b'{"items": [{"name": "a"}], "nextPageToken": "t"}')
    with server(*[page] * 9) as (place, asked):
        refused(lambda: list(client(place).instances(ZONE, "")))
    assert len(asked) == 2


# --- tokens ------------------------------------------------------------------------------------------------

GOOGLE = "Metadata-Flavor: Google"
TOKEN = http("200 OK", b'{"access_token": "a", "expires_in": 3600}', GOOGLE)


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ([b""] * 6, Kind.UNAVAILABLE),
        ([http("503 Unavailable", b"", GOOGLE)] * 6, Kind.UNAVAILABLE),
        ([http("429 Too Many Requests", b"", GOOGLE)] * 6, Kind.UNAVAILABLE),
        ([http("200 OK", b"{", GOOGLE)], Kind.UNAVAILABLE),
        ([http("200 OK", b"{}", GOOGLE)], Kind.UNAVAILABLE),
        ([http("404 Not Found", b"", GOOGLE)], Kind.PERMISSION),
        ([http("403 Forbidden", b"", GOOGLE)], Kind.PERMISSION),
    ],
    ids=["silent", "503", "429", "cut", "none", "404", "403"],
)
def test_a_token_that_does_not_come_is_a_missing_right_only_if_the_server_says_so(
    monkeypatch: pytest.MonkeyPatch, said: list[bytes], kind: Kind
) -> None:
    noted_naps(monkeypatch)
    with server(*said) as (place, _):
        compute = Compute("p-1", Metadata(f"http://{place}").token, "http://127.0.0.1:9")
        error = refused(lambda: compute.operation(ZONE, "o"))
    assert isinstance(error, TokenError)
    assert gce_errors.failure_of(error).kind is kind


def test_the_machines_own_token_goes_along(monkeypatch: pytest.MonkeyPatch) -> None:
    with server(TOKEN) as (metadata, _), server(OPERATION) as (place, asked):
        monkeypatch.setenv("GCE_METADATA_HOST", metadata)
        Compute("p-1", endpoint=f"http://{place}/compute/v1").operation(ZONE, "o")
    assert b"\r\nAuthorization: Bearer a\r\n" in asked[0]


@pytest.mark.parametrize("times", [1, 9])
def test_a_token_that_is_refused_is_renewed_once(times: int) -> None:
    wanted: list[bool] = []

    def token(*, fresh: bool = False) -> str:
        wanted.append(fresh)
        return "x"

    with fake_gce() as fake:
        fake.faults = [Fault("instances.list", "authError", 401, times=times)]
        compute = Compute("p-1", token, f"{fake.url}/compute/v1")
        if times == 1:
            assert list(compute.instances(ZONE, "")) == []
        else:
            error = refused(lambda: list(compute.instances(ZONE, "")))
            assert gce_errors.failure_of(error).kind is Kind.PERMISSION
    assert wanted == [False, True]


# --- connections -------------------------------------------------------------------------------------------


def test_calls_share_a_connection() -> None:
    with fake_gce() as fake:
        compute = fake.compute()
        for _ in range(5):
            assert list(compute.instances(ZONE, "")) == []
        (pool,) = compute._connections.pools._container.values()
    assert (pool.num_connections, pool.num_requests) == (1, 5)


def test_a_connection_that_the_server_has_closed_is_made_again() -> None:
    with server(OPERATION, OPERATION) as (place, asked):
        compute = client(place)
        compute.operation(ZONE, "o")
        (pool,) = compute._connections.pools._container.values()
        kept = pool.pool.get_nowait()
        kept.sock.settimeout(60)
        assert kept.sock.recv(1, socket.MSG_PEEK) == b"", "the server has closed it"
        pool.pool.put_nowait(kept)
        compute.operation(ZONE, "o")
    assert len(asked) == 2


def test_the_environments_proxy_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_gce() as fake:
        monkeypatch.setenv("http_proxy", fake.url)
        monkeypatch.setenv("no_proxy", "")
        assert list(client("compute.invalid").instances(ZONE, "")) == []
        assert fake.names() == ["instances.list"]


def test_a_projects_quotas_are_read_without_its_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    """A project's metadata may hold the keys of hundreds of users."""
    with fake_gce() as fake:
        fake.cloud.global_quotas = {"CPUS_ALL_REGIONS": 8.0}
        told: list[dict[str, Any]] = []
        really = fake.answer

        def answer(verb: str, target: str, body: bytes) -> tuple[int, dict[str, Any]]:
            status, content = really(verb, target, body)
            told.append(content)
            return status, content

        monkeypatch.setattr(fake, "answer", answer)
        (quota,) = fake.compute().quotas()
    assert quota == {"metric": "CPUS_ALL_REGIONS", "limit": 8.0, "usage": 0.0}
    assert told == [{"quotas": [quota]}]
