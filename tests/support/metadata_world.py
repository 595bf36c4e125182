"""A program that shows what each user of a machine gets from its metadata address.

Its arguments are `RULES PATHS USER…`: nftables rules, and the paths (JSON) for which there is a proxy. It
prints the answers to the users as JSON. The last user asks for more than a token. It runs in an otherwise
empty network namespace.
"""

from __future__ import annotations

import contextlib
import http.client
import http.server
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

from node.bootstrap.vm import metadata_guard

BASE = "/computeMetadata/v1"
TOKEN = "instance/service-accounts/default/token"
SECONDS = 60.0


class Metadata(http.server.BaseHTTPRequestHandler):
    """A server that answers with the request."""

    def do_GET(self) -> None:
        body = f"{self.headers.get('Metadata-Flavor', '')} {self.path}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


def serve(server: http.server.HTTPServer) -> None:
    threading.Thread(target=server.serve_forever, daemon=True).start()


def as_user(user: int, do: Callable[[], Any]) -> Any:
    """Return what `do` returns in a process of this user."""
    end, child = os.pipe()
    if (pid := os.fork()) == 0:
        os.setgroups([])
        os.setgid(user)
        os.setuid(user)
        said: Any
        try:
            said = do()
        except OSError as error:
            said = [type(error).__name__, ""]
        os.write(child, json.dumps(said).encode())
        os._exit(0)
    os.close(child)
    with os.fdopen(end, "rb") as answer:
        said = json.loads(answer.read())
    os.waitpid(pid, 0)
    return said


def ask(path: str) -> list[Any]:
    # The client's address differs from the server's, as on a machine: refusals are sent there.
    to = http.client.HTTPConnection(metadata_guard.ADDRESS, timeout=SECONDS, source_address=("127.0.0.1", 0))
    with contextlib.closing(to):
        to.request("GET", f"{BASE}/{path}", headers={"Metadata-Flavor": "Google"})
        answer = to.getresponse()
        return [answer.status, answer.read().decode()]


def connect_by_ipv6() -> str:
    """Connect to the IPv6 address, at which EC2 answers if an instance has it enabled."""
    with socket.socket(socket.AF_INET6) as connection:
        connection.bind(("::1", 0))
        connection.settimeout(SECONDS)
        connection.connect((metadata_guard.ADDRESS_V6, 80))
    return "connected"


def look_up() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as question:
        question.sendto(b"who?", (metadata_guard.ADDRESS, 53))
    return "sent"


def main(rules: str, paths: str, *users: str) -> None:
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    subprocess.run(["ip", "address", "add", f"{metadata_guard.ADDRESS}/32", "dev", "lo"], check=True)
    # The search for duplicate addresses is off, because nothing can listen during it.
    by_v6 = [f"{metadata_guard.ADDRESS_V6}/128", "dev", "lo", "nodad"]
    subprocess.run(["ip", "address", "add", *by_v6], check=True)
    serve(http.server.ThreadingHTTPServer((metadata_guard.ADDRESS, 80), Metadata))
    by_ipv6 = socket.create_server((metadata_guard.ADDRESS_V6, 80), family=socket.AF_INET6)
    names = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    names.bind((metadata_guard.ADDRESS, 53))
    if open_paths := json.loads(paths):
        serve(metadata_guard.server(open_paths, metadata_guard.PROXY_PORT, metadata_guard.ADDRESS))
    for _ in range(2):  # again, as at the next boot
        subprocess.run(["nft", "-f", rules], check=True)
    last = int(users[-1])
    said = {
        "token": {user: as_user(int(user), lambda: ask(TOKEN)) for user in users},
        "login": as_user(last, lambda: ask("oslogin/users?username=ada")),
        "round": as_user(last, lambda: ask(f"oslogin/../{TOKEN}")),
        "hidden": as_user(last, lambda: ask(f"oslogin/%2e%2e/{TOKEN}")),
        "name": as_user(last, look_up),
        "name of root": as_user(0, look_up),
        "by IPv6": {user: as_user(int(user), connect_by_ipv6) for user in users},
    }
    by_ipv6.close()
    print(json.dumps(said))


if __name__ == "__main__":
    main(*sys.argv[1:])
