"""Compute Engine's metadata server on loopback, with what the test puts into it, and Google's APIs."""

from __future__ import annotations

import base64
import contextlib
import datetime
import http.server
import json
import threading
import time
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

SECRET = "projects/p-1/secrets/t-munge"


class FakeMetadata:
    """What a machine of project `p-1` sees: its metadata, bucket `t-bucket`, secret `t-munge`.

    Attributes:
        instance: the machine's metadata, as it is asked for recursively.
        host, url: of the metadata server, as GCE_METADATA_HOST has it, and of the APIs.
        objects: name -> content.
        versions: of the secret; None: there is no such secret.
        asked: each request as `METHOD path`, tokens not counted.
        refuse: the next answers of the APIs: a status, and Google's reason.
        expires: seconds that a token lasts.
        tokens: those given so far; only the last one is accepted.
    """

    def __init__(self) -> None:
        self.instance: dict[str, Any] = {
            "name": "t-compute-3",
            "zone": "projects/1/zones/europe-west4-a",
            "preempted": "FALSE",
            "maintenanceEvent": "NONE",
        }
        self.host = self.url = ""
        self.objects: dict[str, bytes] = {}
        self.written: list[tuple[float, str]] = []
        self.versions: list[bytes] | None = []
        self.asked: list[str] = []
        self.refuse: list[tuple[int, str]] = []
        self.expires = 3599
        self.tokens: list[str] = []
        self.account = True
        self.page = 1000
        self._changed = threading.Condition()
        self._etag = 1

    def change(self, **instance: Any) -> None:
        """Change the metadata; who waits for that is answered."""
        with self._changed:
            self.instance.update(instance)
            self._etag += 1
            self._changed.notify_all()

    # --- the metadata server -----------------------------------------------------------------------------

    def metadata(
        self, path: str, query: dict[str, str], flavor: str | None
    ) -> tuple[int, bytes, dict[str, str]]:
        if flavor != "Google":
            return 403, b"Missing Metadata-Flavor:Google header.", {}
        told = {"Metadata-Flavor": "Google"}
        if path == "instance/service-accounts/default/token":
            if not self.account:
                return 404, b"", told
            self.tokens.append(f"token-{len(self.tokens) + 1}")
            said = {"access_token": self.tokens[-1], "expires_in": self.expires, "token_type": "Bearer"}
            return 200, json.dumps(said).encode(), told
        self.asked.append(f"GET {path}")
        if path == "instance/" and query.get("recursive") == "true":
            with self._changed:
                if query.get("wait_for_change") == "true" and query.get("last_etag") == str(self._etag):
                    self._changed.wait(float(query["timeout_sec"]))
                return 200, json.dumps(self.instance).encode(), {**told, "ETag": str(self._etag)}
        known = {"project/project-id": "p-1"}
        known |= {
            f"instance/{name}": value for name, value in self.instance.items() if isinstance(value, str)
        }
        return (200, known[path].encode(), told) if path in known else (404, b"", told)

    # --- the APIs ----------------------------------------------------------------------------------------

    def api(
        self, method: str, path: str, query: dict[str, str], given: str | None, body: bytes
    ) -> tuple[int, bytes]:
        self.asked.append(f"{method} {path}")
        if self.refuse:
            status, reason = self.refuse.pop(0)
            return _refusal(status, reason, "why")
        if not self.tokens or given != f"Bearer {self.tokens[-1]}":
            return _refusal(401, "UNAUTHENTICATED", "Request had invalid authentication credentials.")
        if path.startswith("v1/"):
            return self._secret(method, path.removeprefix("v1/"), body)
        if (
            method == "POST"
            and path == "upload/storage/v1/b/t-bucket/o"
            and query.get("uploadType") == "media"
        ):
            self.objects[query["name"]] = body
            self.written.append((time.time(), query["name"]))
            return 200, json.dumps({"name": query["name"]}).encode()
        if method == "GET" and path == "storage/v1/b/t-bucket/o":
            return 200, json.dumps(self._list(query)).encode()
        folder = "storage/v1/b/t-bucket/o/"
        name = urllib.parse.unquote(path.removeprefix(folder))
        # An object's name is one part of the address: its own slashes are written otherwise.
        if method == "GET" and path.startswith(folder) and "/" not in path.removeprefix(folder):
            if query.get("alt") == "media" and name in self.objects:
                return 200, self.objects[name]
            return _refusal(404, "notFound", f"No such object: t-bucket/{name}")
        return _refusal(404, "notFound", "The specified bucket does not exist.")

    def _list(self, query: dict[str, str]) -> dict[str, Any]:
        names = sorted(name for name in self.objects if name.startswith(query.get("prefix", "")))
        first = int(query.get("pageToken", "0"))
        stamp = (
            datetime.datetime(2026, 11, 21, 12, tzinfo=datetime.UTC).isoformat().replace("+00:00", ".000Z")
        )
        items = [
            {"name": n, "updated": stamp, "etag": f"e-{len(self.objects[n])}"}
            for n in names[first : first + self.page]
        ]
        more = {"nextPageToken": str(first + self.page)} if first + self.page < len(names) else {}
        return {"kind": "storage#objects", **({"items": items} if items else {}), **more}

    def _secret(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        missing = f"Secret [{SECRET}] not found or has no versions."
        if method == "POST" and path == f"{SECRET}:addVersion" and self.versions is not None:
            self.versions.append(base64.b64decode(json.loads(body)["payload"]["data"]))
            return 200, json.dumps({"name": f"{SECRET}/versions/{len(self.versions)}"}).encode()
        if method == "GET" and path == f"{SECRET}/versions/latest:access" and self.versions:
            data = base64.b64encode(self.versions[-1]).decode()
            return 200, json.dumps({"payload": {"data": data}}).encode()
        return _refusal(404, "NOT_FOUND", missing)


def _refusal(status: int, reason: str, message: str) -> tuple[int, bytes]:
    """In the form of the API that says it: reasons in capitals are gRPC's."""
    named = {"status": reason} if reason.isupper() else {"errors": [{"reason": reason, "message": message}]}
    return status, json.dumps({"error": {"code": status, "message": message, **named}}).encode()


@contextmanager
def fake_metadata() -> Iterator[FakeMetadata]:
    fake = FakeMetadata()

    class Handler(http.server.BaseHTTPRequestHandler):
        def _do(self) -> None:
            place = urllib.parse.urlsplit(self.path)
            query = dict(urllib.parse.parse_qsl(place.query))
            path = place.path.lstrip("/")
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            root = "computeMetadata/v1/"
            if path.startswith(root):
                answer = fake.metadata(path.removeprefix(root), query, self.headers.get("Metadata-Flavor"))
                status, content, headers = answer
            else:
                given = self.headers.get("Authorization")
                (status, content), headers = fake.api(self.command, path, query, given, body), {}
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            with contextlib.suppress(BrokenPipeError):  # who has asked has ended meanwhile
                self.wfile.write(content)

        do_GET = do_POST = _do  # noqa: N815 - the names that http.server calls

        def log_message(self, *_arguments: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    fake.host = f"127.0.0.1:{server.server_address[1]}"
    fake.url = f"http://{fake.host}"
    try:
        yield fake
    finally:
        fake.change()  # nobody waits any more
        server.shutdown()
        server.server_close()
        thread.join()


def environment(fake: FakeMetadata) -> dict[str, str]:
    """What leads a machine's code to it."""
    return {
        "GCE_METADATA_HOST": fake.host,
        "STORAGE_EMULATOR_HOST": fake.url,
        "CLOUDSDK_API_ENDPOINT_OVERRIDES_SECRETMANAGER": fake.url,
    }
