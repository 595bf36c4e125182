"""EC2's instance metadata service, version 2 only, on loopback. The test sets its content.

The source is the EC2 User Guide, "Use the Instance Metadata Service to access instance metadata": a token is
valid for 1 s to 6 h (400), a forwarded request for a token is refused (403), every other request needs a
valid token (401), folders list their content, and versions since 2009-04-04 exist beside `latest`.
"""

from __future__ import annotations

import http.server
import json
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

IDENTITY = {
    "instanceId": "i-0123456789abcdef0",
    "region": "eu-west-1",
    "availabilityZone": "eu-west-1b",
    "instanceType": "g4dn.xlarge",
    "accountId": "123456789012",
    "imageId": "ami-0123456789abcdef0",
    "privateIp": "10.0.1.17",
}
ROLE = "meta-data/iam/security-credentials/"
LONGEST_SECONDS = 21600
_VERSION = re.compile(r"/(latest|20\d\d-\d\d-\d\d)/")


def key(name: str, expires: str = "2099-01-01T00:00:00Z") -> dict[str, str]:
    """Return credentials in the service's form, which give access to nothing."""
    return {
        "Code": "Success",
        "AccessKeyId": f"AKID{name}",
        "SecretAccessKey": f"secret-of-{name}",
        "Token": f"token-of-{name}",
        "Expiration": expires,
    }


class FakeImds:
    """The service. `content`: path below /latest/ -> text. `asked`: the requested paths, without tokens."""

    def __init__(self) -> None:
        self.content: dict[str, str] = {
            "dynamic/instance-identity/document": json.dumps(IDENTITY),
            "meta-data/placement/region": IDENTITY["region"],
            "meta-data/ami-launch-index": "0",
            ROLE: "compute-role",
            f"{ROLE}compute-role": json.dumps(key("ONE")),
        }
        self.asked: list[str] = []
        self.tokens: dict[str, float] = {}
        self.url = ""
        self.broken = 0
        """How many of the next answers are HTTP 503."""

    def answer(self, method: str, target: str, header: Callable[[str], str | None]) -> tuple[int, str]:
        """Return the answer to a request.

        Args:
            header: returns a header of the request by its name in small letters.
        """
        if self.broken:
            self.broken -= 1
            return 503, ""
        version = _VERSION.match(target)
        path = target[version.end() :] if version else ""
        if method == "PUT":
            return self._token(path, header)
        if self.tokens.get(header("x-aws-ec2-metadata-token") or "", 0.0) < time.monotonic():
            return 401, "Unauthorized"
        self.asked.append(path)
        if version is None:
            return (200, "2009-04-04\n2021-03-23\nlatest") if target == "/" else (404, "Not Found")
        if path in self.content:
            return 200, self.content[path]
        inside = self._folder(path)
        return (200, "\n".join(inside)) if inside else (404, "Not Found")

    def _token(self, path: str, header: Callable[[str], str | None]) -> tuple[int, str]:
        if header("x-forwarded-for"):
            return 403, "Forbidden"
        seconds = header("x-aws-ec2-metadata-token-ttl-seconds") or ""
        if path != "api/token" or not seconds.isdigit() or not 1 <= int(seconds) <= LONGEST_SECONDS:
            return 400, "Bad Request"
        self.tokens[token := secrets.token_hex(8)] = time.monotonic() + int(seconds)
        return 200, token

    def _folder(self, path: str) -> list[str]:
        """Return the content of a folder. Names of folders end with a slash."""
        start = f"{path.rstrip('/')}/" if path else ""
        names = [name.removeprefix(start) for name in self.content if name.startswith(start)]
        inside = {name.partition("/")[0] + ("/" if "/" in name else "") for name in names if name}
        return sorted(inside)


@contextmanager
def fake_imds(host: str = "127.0.0.1", port: int = 0) -> Iterator[FakeImds]:
    fake = FakeImds()

    class Handler(http.server.BaseHTTPRequestHandler):
        def _do(self) -> None:
            status, text = fake.answer(self.command, self.path, self.headers.get)
            self.send_response(status)
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        do_GET = do_PUT = _do  # noqa: N815 - the names that http.server calls

        def log_message(self, *_arguments: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer((host, port), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    fake.url = f"http://{host}:{server.server_address[1]}"
    try:
        yield fake
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
