"""Compute Engine's metadata server and Google's APIs on loopback. The test sets their content.

The source is "View and query VM metadata" of Compute Engine's documentation: a request needs the header
Metadata-Flavor and must not be forwarded (403), each answer has that header, a folder lists its content or,
if asked for recursively, is JSON, and a folder's name without a slash is redirected (301).
"""

from __future__ import annotations

import base64
import contextlib
import datetime
import http.server
import json
import re
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

SECRET = "projects/p-1/secrets/t-munge"
V1 = "computeMetadata/v1/"


class FakeMetadata:
    """What a machine of project `p-1` sees: its metadata, bucket `t-bucket`, secret `t-munge`.

    Attributes:
        instance: the machine's metadata, as a recursive request returns it.
        host: the metadata server's address, as in GCE_METADATA_HOST.
        url: the APIs' address.
        objects: name -> content.
        versions: the secret's versions; `None` means that there is no such secret.
        asked: each request as `METHOD path`, without those for tokens.
        refuse: the next answers of the APIs: a status, and Google's reason.
        expires: the seconds that a token is valid.
        tokens: the tokens given so far; only the last one is accepted.
        named: the beginning of tokens.
        login: the users of OS Login, each as a POSIX account in the API's form.
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
        self.named = "token"
        self.project: dict[str, Any] = {"projectId": "p-1", "numericProjectId": 1, "attributes": {}}
        self.login: list[dict[str, Any]] = []
        self.account = True
        self.page = 1000
        self._changed = threading.Condition()
        self._etag = 1

    def change(self, **instance: Any) -> None:
        """Change the metadata, and answer the requests that wait for a change."""
        with self._changed:
            self.instance.update(instance)
            self._etag += 1
            self._changed.notify_all()

    # --- the metadata server -----------------------------------------------------------------------------

    def metadata(
        self, path: str, query: dict[str, str], header: Callable[[str], str | None]
    ) -> tuple[int, bytes, dict[str, str]]:
        """Return the answer to a request.

        Args:
            path: the path behind `computeMetadata/v1/`.
            header: returns a header of the request by its name in small letters.
        """
        if header("metadata-flavor") != "Google":
            return 403, b"Missing Metadata-Flavor:Google header.", {}
        if header("x-forwarded-for"):
            return 403, b"X-Forwarded-For is not allowed.", {}
        told = {"Metadata-Flavor": "Google", "Server": "Metadata Server for VM"}
        told["Content-Type"] = "application/json"
        if path == "instance/service-accounts/default/token":
            if not self.account:
                return 404, b"", told
            self.tokens.append(f"{self.named}-{len(self.tokens) + 1}")
            said = {"access_token": self.tokens[-1], "expires_in": self.expires, "token_type": "Bearer"}
            return 200, json.dumps(said).encode(), told
        self.asked.append(f"GET {path}")
        if path.startswith("oslogin/"):
            found = self._login(path.removeprefix("oslogin/"), query)
            return (404, b"", told) if found is None else (200, json.dumps(found).encode(), told)
        recursive = query.get("recursive", "").lower() == "true"
        with self._changed:
            if query.get("wait_for_change") == "true" and query.get("last_etag") == str(self._etag):
                self._changed.wait(float(query.get("timeout_sec", "60")))
            status, text = self._shown(path, recursive)
            if not recursive:
                told["Content-Type"] = "application/text"
            return status, text.encode(), {**told, **self._more(path, status)}

    def _more(self, path: str, status: int) -> dict[str, str]:
        return {"ETag": str(self._etag)} | ({"Location": f"/{V1}{path}/"} if status == 301 else {})

    def _shown(self, path: str, recursive: bool) -> tuple[int, str]:
        """Return the text or the folder at a path."""
        found: Any = {"instance": self.instance, "project": self.project}
        for word in path.strip("/").split("/") if path.strip("/") else []:
            if isinstance(found, list):
                found = {str(number): one for number, one in enumerate(found)}
            found = found.get(word, found.get(_camel(word))) if isinstance(found, dict) else None
        if found is None:
            return 404, ""
        if recursive:
            return 200, json.dumps(found)
        if isinstance(found, list):
            found = {str(number): one for number, one in enumerate(found)}
        if not isinstance(found, dict):
            return 200, str(found)
        if not path.endswith("/"):
            return 301, ""
        return 200, "".join(
            f"{_kebab(word)}{'/' if isinstance(one, dict | list) else ''}\n" for word, one in found.items()
        )

    def _login(self, what: str, query: dict[str, str]) -> dict[str, Any] | None:
        """Answer the requests of OS Login's library on each machine."""
        if what != "users":
            return {"posixGroups": []} if what == "groups" else None
        wanted = [
            one for one in self.login
            if query.get("username", one["username"]) == one["username"]
            and query.get("uid", str(one["uid"])) == str(one["uid"])
        ]  # fmt: skip
        if not wanted and "pagesize" not in query:
            return None
        profiles = [{"name": str(one["uid"]), "posixAccounts": [one]} for one in wanted]
        return {"loginProfiles": profiles, **({"nextPageToken": "0"} if "pagesize" in query else {})}

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
        return self.serve(method, path, query, body)

    def serve(self, method: str, path: str, query: dict[str, str], body: bytes) -> tuple[int, bytes]:
        """Return an API's answer to a caller who has the permission."""
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
        # An object's name is one part of the path, so its own slashes are escaped.
        if method == "GET" and path.startswith(folder) and "/" not in path.removeprefix(folder):
            if query.get("alt") == "media" and name in self.objects:
                return 200, self.objects[name]
            return _refusal(404, "notFound", f"No such object: t-bucket/{name}")
        if method == "DELETE" and path.startswith(folder) and "/" not in path.removeprefix(folder):
            if self.objects.pop(name, None) is not None:
                return 204, b""
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


def _camel(word: str) -> str:
    first, *rest = word.split("-")
    return first + "".join(part.capitalize() for part in rest)


def _kebab(word: str) -> str:
    return re.sub(r"(?<=[a-z])([A-Z])", lambda found: f"-{found[1].lower()}", word)


def refusal(status: int, reason: str, message: str) -> tuple[int, bytes]:
    """Return a refusal in the form of Google's APIs."""
    return _refusal(status, reason, message)


def _refusal(status: int, reason: str, message: str) -> tuple[int, bytes]:
    """Return a refusal in the form of its API: reasons in capitals are gRPC's."""
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
            if path.startswith(V1):
                answer = fake.metadata(path.removeprefix(V1), query, self.headers.get)
                status, content, headers = answer
            else:
                given = self.headers.get("Authorization")
                (status, content), headers = fake.api(self.command, path, query, given, body), {}
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            with contextlib.suppress(BrokenPipeError):  # the caller has ended meanwhile
                self.wfile.write(content)

        do_GET = do_POST = do_DELETE = _do  # noqa: N815 - the names that http.server calls

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
    """Return the environment variables that make a machine's code use this fake."""
    return {
        "GCE_METADATA_HOST": fake.host,
        "STORAGE_EMULATOR_HOST": fake.url,
        "CLOUDSDK_API_ENDPOINT_OVERRIDES_SECRETMANAGER": fake.url,
    }
