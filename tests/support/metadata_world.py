"""A program that shows what each user of a machine, and a container, get from its metadata address.

Its arguments are `RULES PATHS USER…`: nftables rules, and the paths (JSON) for which there is a proxy. It
prints the answers to the users as JSON. The last user asks for more than a token. With `containers RULES` it
shows what a container of root's gets that has a network of its own behind the machine, as Docker makes one;
then the metadata address is in a third network, because what is on the machine itself is not forwarded. It
runs in an otherwise empty network namespace.
"""

from __future__ import annotations

import contextlib
import functools
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
V6 = metadata_guard.ADDRESSES_V6
POD, POD_V6 = "10.2.0.2", "fd02::2"
"""The container's addresses."""


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


def ask(path: str, source: str = "127.0.0.1") -> list[Any]:
    # The client's address differs from the server's, as on a machine: refusals are sent there.
    to = http.client.HTTPConnection(metadata_guard.ADDRESS, timeout=SECONDS, source_address=(source, 0))
    with contextlib.closing(to):
        to.request("GET", f"{BASE}/{path}", headers={"Metadata-Flavor": "Google"})
        answer = to.getresponse()
        return [answer.status, answer.read().decode()]


def connect_by_ipv6(address: str, source: str = "::1") -> str:
    """Connect to an IPv6 address, at which the cloud answers if the machine has one."""
    with socket.socket(socket.AF_INET6) as connection:
        connection.bind((source, 0))
        connection.settimeout(SECONDS)
        connection.connect((address, 80))
    return "connected"


def look_up() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as question:
        question.sendto(b"who?", (metadata_guard.ADDRESS, 53))
    return "sent"


def look_up_and_wait() -> str:
    """Ask the name server, and return its answer. A refusal comes as an error."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as question:
        question.settimeout(SECONDS)
        question.connect((metadata_guard.ADDRESS, 53))
        question.send(b"who?")
        return question.recv(64).decode()


def place() -> list[socket.socket]:
    """Give this network the metadata addresses, with a server at each of them."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    subprocess.run(["ip", "address", "add", f"{metadata_guard.ADDRESS}/32", "dev", "lo"], check=True)
    servers = []
    for address in metadata_guard.ADDRESSES_V6:
        # The search for duplicate addresses is off, because nothing can listen during it.
        subprocess.run(["ip", "address", "add", f"{address}/128", "dev", "lo", "nodad"], check=True)
        servers.append(socket.create_server((address, 80), family=socket.AF_INET6))
    serve(http.server.ThreadingHTTPServer((metadata_guard.ADDRESS, 80), Metadata))
    names = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    names.bind((metadata_guard.ADDRESS, 53))
    return [*servers, names]


def be_the_cloud() -> None:
    """Serve the metadata addresses in a network of their own, until the caller ends."""
    servers = place()
    print("ready", flush=True)
    while True:
        _, who = servers[-1].recvfrom(64)
        servers[-1].sendto(b"answered", who)


def ask_as_a_container() -> None:
    """Print what root of a container gets."""
    asked: dict[str, Callable[[], Any]] = {
        "token": lambda: ask(TOKEN, POD),
        "name": look_up_and_wait,
        **{address: functools.partial(connect_by_ipv6, address, POD_V6) for address in V6},
    }
    print(json.dumps({name: as_user(0, do) for name, do in asked.items()}))


def containers(rules: str) -> dict[str, Any]:
    """Return what a container gets without the rules, and with them."""
    with contextlib.ExitStack() as ends:

        def network(*command: str) -> subprocess.Popen[str]:
            line = ["unshare", "--net", "--kill-child", *command]
            made = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            ends.callback(made.wait)
            ends.callback(made.kill)
            assert made.stdout is not None
            assert made.stdout.readline() == "ready\n"
            return made

        def shell(script: str) -> None:
            subprocess.run(["sh", "-e", "-c", script], check=True)

        cloud = network(sys.executable, "-m", "tests.support.metadata_world", "cloud")
        pod = network("sh", "-c", "echo ready; read x")
        for name, one, (here, there), (here_v6, there_v6) in (
            ("cloud0", cloud, ("10.1.0.1", "10.1.0.2"), ("fd01::1", "fd01::2")),
            ("pod0", pod, ("10.2.0.1", POD), ("fd02::1", POD_V6)),
        ):
            inside = f"nsenter --net=/proc/{one.pid}/ns/net"
            shell(f"""
                ip link add {name} type veth peer name eth0 netns {one.pid}
                ip link set {name} up; {inside} ip link set eth0 up; {inside} ip link set lo up
                ip address add {here}/24 dev {name}; {inside} ip address add {there}/24 dev eth0
                ip address add {here_v6}/64 dev {name} nodad
                {inside} ip address add {there_v6}/64 dev eth0 nodad
                {inside} ip route add default via {here}; {inside} ip -6 route add default via {here_v6}
            """)
        shell("echo 1 >/proc/sys/net/ipv4/ip_forward; echo 1 >/proc/sys/net/ipv6/conf/all/forwarding")
        shell(f"ip route add {metadata_guard.ADDRESS} via 10.1.0.2")
        shell("; ".join(f"ip -6 route add {address} via fd01::2" for address in V6))

        def look() -> Any:
            inside = ["nsenter", f"--net=/proc/{pod.pid}/ns/net", sys.executable, "-m"]
            line = [*inside, "tests.support.metadata_world", "container"]
            return json.loads(subprocess.run(line, check=True, capture_output=True, text=True).stdout)

        open_to_all = look()
        subprocess.run(["nft", "-f", rules], check=True)
        return {"without the rules": open_to_all, "with them": look()}


def users_of_the_machine(rules: str, paths: str, users: tuple[str, ...]) -> dict[str, Any]:
    servers = place()
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
        "by IPv6": {
            address: {user: as_user(int(user), functools.partial(connect_by_ipv6, address)) for user in users}
            for address in V6
        },
    }
    for server in servers:
        server.close()
    return said


def main(rules: str, paths: str, *users: str) -> None:
    if rules == "containers":
        print(json.dumps(containers(paths)))
    else:
        print(json.dumps(users_of_the_machine(rules, paths, users)))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["cloud"]:
            be_the_cloud()
        case ["container"]:
            ask_as_a_container()
        case arguments:
            main(*arguments)
