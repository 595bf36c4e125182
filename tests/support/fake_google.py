"""Google Cloud's services beside Compute Engine, on loopback: OS Login, buckets, secrets, Filestore.

`project()` yields an account whose Compute Engine is `fake_gce`, with credentials of nobody.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from google.cloud import compute_v1 as gce

from node.elastic.drivers.gce.names import BUCKET as NAMED
from node.elastic.drivers.gce.names import CLUSTER, HOST, PARTITION, ROLE, instance_of
from operations.gcp.account import Account
from tests.support.fake_gce import FakeGce, fake_gce

EMAIL = "ada@example.com"
USER = "ada_example_com"
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIEEEEEEEEEEEEEEEEEEEEEEEEEEEEEEEEEEEEEEEEEEE"
BUCKET = "c-1a2b3c"
PLACES = ("storage", "oslogin", "secretmanager", "file", "oauth2")


class Anybody:
    """Credentials that no fake service checks."""

    token = "nobody"
    valid = True
    expired = False

    def __init__(self) -> None:
        self.refreshed = 0

    def before_request(self, _request: Any, _method: str, _url: str, headers: dict[str, str]) -> None:
        headers["authorization"] = f"Bearer {self.token}"

    def refresh(self, _request: Any) -> None:
        self.refreshed += 1


@dataclass
class Project:
    """A project.

    Attributes:
        account: the engineer's account.
        objects: the bucket's objects: key -> content and time of the last change.
        buckets: the buckets in the API's form.
        keys: the user's keys in OS Login: fingerprint -> key.
        accounts: the user's accounts on machines.
        managed: whether OS Login accepts users' keys.
        disabled: APIs that are not enabled.
        refuse: (method, beginning of the path) -> status and body of the answer.
        calls: method and path of each call, without Compute Engine's.
    """

    gce: FakeGce
    account: Account = field(init=False)
    url: str = ""
    objects: dict[str, tuple[bytes, float]] = field(default_factory=dict)
    buckets: list[dict[str, Any]] = field(default_factory=list)
    secrets: list[dict[str, Any]] = field(default_factory=list)
    filestores: list[dict[str, Any]] = field(default_factory=list)
    keys: dict[str, dict[str, str]] = field(default_factory=dict)
    accounts: list[dict[str, Any]] = field(default_factory=list)
    managed: bool = True
    disabled: set[str] = field(default_factory=set)
    refuse: list[tuple[str, str, int, bytes]] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    queries: list[dict[str, str]] = field(default_factory=list)

    # --- for tests -----------------------------------------------------------------------------------------

    def empty(self) -> None:
        """Make the project empty again for the next test, without refusals and recorded calls."""
        self.gce.cloud.store.clear()
        self.gce.cloud.failing.clear()
        self.gce.faults.clear()
        self.gce.forget()
        things = (self.buckets, self.secrets, self.filestores, self.accounts, self.refuse, self.calls)
        for one in (*things, self.queries, self.objects, self.keys, self.disabled):
            one.clear()
        self.managed = True

    def machine(
        self,
        name: str,
        zone: str = "europe-west4-a",
        status: str = "RUNNING",
        bucket: str | None = None,
        **labels: str,
    ) -> None:
        """Add an instance of a cluster, with its labels as they are on Google Cloud.

        Args:
            bucket: the bucket in its metadata.
        """
        cloud = self.gce.cloud
        stamp = cloud.stamp()
        interface = gce.NetworkInterface(network_i_p="10.0.0.2")
        made = gce.Instance(
            name=name, status=status, zone=cloud.link(f"zones/{zone}", "", "").rstrip("/"), labels=labels,
            machine_type=cloud.link(f"zones/{zone}", "machineTypes", "n2-standard-4"),
            creation_timestamp=stamp, last_start_timestamp=stamp, network_interfaces=[interface],
            metadata=gce.Metadata(items=[gce.Items(key=NAMED, value=bucket)] if bucket else []),
        )  # fmt: skip
        cloud.put(f"zones/{zone}", "instances", made)

    def node(self, node: str, cluster: str = "c", **where: str) -> None:
        marks = {CLUSTER: cluster, ROLE: "compute", PARTITION: node.rpartition("-")[0]}
        self.machine(instance_of(cluster, node), **where, **marks)

    def head(
        self, host: str = "controller", cluster: str = "c", bucket: str | None = BUCKET, **where: str
    ) -> None:
        marks = {CLUSTER: cluster, ROLE: host.partition("-")[0], HOST: host}
        self.machine(instance_of(cluster, host), bucket=bucket, **where, **marks)

    def bucket(self, cluster: str = "c", name: str = BUCKET, *, uniform: bool = True) -> None:
        access = {"uniformBucketLevelAccess": {"enabled": uniform}}
        self.buckets.append({"name": name, "labels": {CLUSTER: cluster}, "iamConfiguration": access})
        self.put("current.json", b"{}")

    def put(self, key: str, content: bytes) -> None:
        self.objects[key] = (content, time.time())

    def report(self, host: str, state: str, **more: Any) -> None:
        """Put a boot report into the bucket."""
        content = {
            "host": host, "state": state, "started": time.time() + 60, "host_keys": [KEY],
            "facts": {"slurm": "slurm 23.11.4"}, "steps": [], **more,
        }  # fmt: skip
        self.put(f"boot/{host}.json", json.dumps(content).encode())

    # --- the server ----------------------------------------------------------------------------------------

    def answer(self, method: str, target: str, body: bytes) -> tuple[int, bytes]:
        parts = urlsplit(target)
        path, query = parts.path, {key: value[0] for key, value in parse_qs(parts.query).items()}
        self.calls.append(f"{method} {path}")
        self.queries.append(query)
        for verb, beginning, status, content in self.refuse:
            if verb == method and path.startswith(beginning):
                return status, content
        service, _, rest = path.lstrip("/").partition("/")
        if service in self.disabled:
            return 403, disabled(service)
        found = getattr(self, f"_{service}")(method, rest, query, body)
        if found is None:
            return 404, json.dumps(
                {"error": {"code": 404, "message": "not here", "status": "NOT_FOUND"}}
            ).encode()
        return 200, found if isinstance(found, bytes) else json.dumps(found).encode()

    def _oauth2(self, _method: str, rest: str, query: dict[str, str], _body: bytes) -> Any:
        assert (rest, query) == ("tokeninfo", {"access_token": "nobody"})
        return {"email": EMAIL, "scope": "email"}

    def _storage(self, _method: str, rest: str, query: dict[str, str], _body: bytes) -> Any:
        if rest == "b":
            assert query["project"] == self.account.project
            return {"items": self.buckets} if self.buckets else {}
        bucket, _, key = rest.removeprefix("b/").partition("/o/")
        if not key:
            return next((one for one in self.buckets if one["name"] == bucket), None)
        known = self.objects.get(unquote(key)) if bucket in {one["name"] for one in self.buckets} else None
        if known is None:
            return None
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(known[1]))
        return known[0] if query.get("alt") == "media" else {"name": unquote(key), "updated": stamp}

    def _secretmanager(self, _method: str, rest: str, query: dict[str, str], _body: bytes) -> Any:
        assert rest == f"projects/{self.account.project}/secrets"
        return {"secrets": _labelled(self.secrets, query)}

    def _file(self, _method: str, rest: str, query: dict[str, str], _body: bytes) -> Any:
        whole = f"projects/{self.account.project}/locations/-/instances"
        if rest != whole:
            return next((filestore for filestore in self.filestores if filestore["name"] == rest), None)
        return {"instances": _labelled(self.filestores, query)}

    def _oslogin(self, method: str, rest: str, query: dict[str, str], body: bytes) -> Any:
        user, _, what = rest.removeprefix("users/").partition("/")
        if method == "PATCH":
            assert (unquote(user), query) == (EMAIL, {"updateMask": "expirationTimeUsec"})
            known = self.keys.get(unquote(what.removeprefix("sshPublicKeys/")))
            if known is not None:
                known.update(json.loads(body))
            return known
        assert query == {"projectId": self.account.project}
        if method == "GET" and what == "loginProfile":
            assert unquote(user) == EMAIL
            return self._profile()
        assert (method, unquote(rest)) == ("POST", f"users/{EMAIL}:importSshPublicKey")
        key = json.loads(body)
        assert set(key) <= {"key", "expirationTimeUsec", "fingerprint", "name"}, "SshPublicKey's fields"
        if self.managed:
            # An existing key stays as it is: the documentation does not promise that an import changes it.
            if not any(one["key"].split()[:2] == key["key"].split()[:2] for one in self.keys.values()):
                self.keys[hashlib.sha256(key["key"].split()[1].encode()).hexdigest()] = key
            self.accounts = self.accounts or [{"username": USER, "primary": True, "uid": "1234"}]
        return {"loginProfile": self._profile()}

    def _profile(self) -> dict[str, Any]:
        return {"name": "1234567890", "posixAccounts": self.accounts, "sshPublicKeys": self.keys}


def disabled(service: str) -> bytes:
    """Return Google's answer for an API that is not enabled."""
    info = {
        "@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "SERVICE_DISABLED",
        "domain": "googleapis.com",
        "metadata": {"service": f"{service}.googleapis.com", "consumer": "projects/123"},
    }  # fmt: skip
    text = f"{service} API has not been used in project 123 before or it is disabled."
    return json.dumps(
        {"error": {"code": 403, "message": text, "status": "PERMISSION_DENIED", "details": [info]}}
    ).encode()


def _labelled(things: list[dict[str, Any]], query: dict[str, str]) -> list[dict[str, Any]]:
    """Return the things with the label of a query's filter.

    Raises:
        ValueError: The filter is not for one label, so the list would have other clusters' resources.
    """
    read = re.fullmatch(r"labels\.([a-z][a-z0-9_-]*)=([a-z0-9_-]*)", query["filter"])
    if read is None:
        raise ValueError(f"no filter of a label: {query['filter']!r}")
    return [thing for thing in things if thing.get("labels", {}).get(read[1]) == read[2]]


@contextmanager
def project() -> Iterator[Project]:
    """Yield an empty project."""
    with fake_gce(()) as compute:
        made = Project(compute)

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def _serve(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                status, data = made.answer(self.command, self.path, body)
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_PATCH = do_DELETE = _serve  # noqa: N815

            def log_message(self, *_: Any) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        made.url = f"http://127.0.0.1:{server.server_port}"
        services = {name: f"{made.url}/{name}" for name in PLACES}
        services["compute"] = f"{compute.url}/compute/v1"
        made.account = Account(compute.cloud.project, Anybody(), services, sleep=lambda _: None)
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield made
        finally:
            server.shutdown()
            server.server_close()
            thread.join()
