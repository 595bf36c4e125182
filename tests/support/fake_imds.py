"""An instance metadata service on loopback: version 2 only, with what the test puts into it."""

from __future__ import annotations

import http.server
import json
import secrets
import threading
from collections.abc import Iterator
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


def key(name: str, expires: str = "2099-01-01T00:00:00Z") -> dict[str, str]:
    """Credentials as the service gives them; they open nothing."""
    return {
        "Code": "Success",
        "AccessKeyId": f"AKID{name}",
        "SecretAccessKey": f"secret-of-{name}",
        "Token": f"token-of-{name}",
        "Expiration": expires,
    }


class FakeImds:
    """`content`: path below /latest/ -> text. `asked`: what was asked for, tokens not counted."""

    def __init__(self) -> None:
        self.content: dict[str, str] = {
            "dynamic/instance-identity/document": json.dumps(IDENTITY),
            "meta-data/placement/region": IDENTITY["region"],
            "meta-data/ami-launch-index": "0",
            ROLE: "compute-role",
            f"{ROLE}compute-role": json.dumps(key("ONE")),
        }
        self.asked: list[str] = []
        self.tokens: set[str] = set()
        self.url = ""
        self.broken = 0
        """How many of the next answers are HTTP 503."""

    def answer(self, handler: http.server.BaseHTTPRequestHandler) -> tuple[int, str]:
        path = handler.path.removeprefix("/latest/")
        if self.broken:
            self.broken -= 1
            return 503, ""
        if handler.command == "PUT":
            if path != "api/token" or not handler.headers.get("X-aws-ec2-metadata-token-ttl-seconds"):
                return 400, ""
            self.tokens.add(token := secrets.token_hex(8))
            return 200, token
        if handler.headers.get("X-aws-ec2-metadata-token") not in self.tokens:
            return 401, "Unauthorized"
        self.asked.append(path)
        return (200, self.content[path]) if path in self.content else (404, "Not Found")


@contextmanager
def fake_imds(host: str = "127.0.0.1", port: int = 0) -> Iterator[FakeImds]:
    fake = FakeImds()

    class Handler(http.server.BaseHTTPRequestHandler):
        def _do(self) -> None:
            status, text = fake.answer(self)
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
