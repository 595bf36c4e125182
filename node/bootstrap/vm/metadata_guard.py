"""Keeps a machine's cloud identity from its users: the metadata address is root's and the system's services'.

Any process of a machine can request the machine's credentials from the metadata address. The controller's may
launch and end machines and read the munge key, and users run processes there if it is also the login machine.
Those of nodes and login machines may write logs, boot reports and mounted buckets. ParallelCluster protects
its head node in the same way (cookbook: imds). On nodes and login machines a key of the stack file opens the
address (`open_metadata`), on the controller nothing does.

The rules are in our own table of nftables. At every later boot they are loaded before the network starts.
A process on the machine itself is known by its user. A container with a network of its own is not: its
requests are forwarded, so they are refused whoever makes them. EC2 refuses these by its hop limit as well,
Google has no such limit.
What users need of that address still works: DNS and time on Google Cloud, and OS Login's look-ups there,
which the NSS library makes in each user's process. A small proxy, which runs as root, forwards only those.
"""

from __future__ import annotations

import pwd
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from node.bootstrap.context import Context
from node.bootstrap.services import Service
from node.bootstrap.vm import apt, firewall

if TYPE_CHECKING:
    from http.server import ThreadingHTTPServer

ADDRESS = "169.254.169.254"
"""The metadata address of both clouds."""
ADDRESSES_V6 = ("fd00:ec2::254", "fd20:ce::254")
"""The metadata addresses over IPv6: EC2's and Google's. A network of the user's own may have IPv6."""
TABLE = "slurm_stacks_metadata"
NAME = "metadata"
REFUSE = """\
	chain refuse {{
		type filter hook output priority 0; policy accept;
		meta skuid {{ {users} }} accept
{open}{closed}	}}
	chain refuse_containers {{
		type filter hook forward priority 0; policy accept;
{open}{closed}	}}
"""
CLOSED = """\
		ip daddr {address} meta l4proto tcp reject with tcp reset
		ip daddr {address} reject
		ip6 daddr {{ {addresses_v6} }} meta l4proto tcp reject with tcp reset
		ip6 daddr {{ {addresses_v6} }} reject
"""
PASS_ON = """\
	chain pass_on {{
		type nat hook output priority -100; policy accept;
		ip daddr {address} tcp dport 80 meta skuid != {{ {users} }} redirect to :{port}
	}}
"""
PROXY = "metadata-proxy"
PROXY_PORT = 815
"""The proxy's port. It is below 1024, so that no ordinary user can take the proxy's place."""
PROXY_SECONDS = 10.0
PROXY_BACKLOG = 1024
"""The connections that may wait for the proxy: a job's processes may all look their user up at once."""
HEADER = "Metadata-Flavor"
REFUSED = "Only root may ask for that on this machine (open_metadata in the stack file)"


@dataclass(frozen=True, slots=True)
class Openings:
    """The uses of the metadata address that stay allowed.

    Attributes:
        ports: Protocols and ports that stay open to every user, such as `("udp", 53)`.
        paths: Prefixes of the HTTP paths that the proxy forwards for every user. Empty means no proxy.
        users: System users that may use the address like root, if the image has them.
    """

    ports: tuple[tuple[str, int], ...] = ()
    paths: tuple[str, ...] = ()
    users: tuple[str, ...] = ()


def install(context: Context, openings: Openings) -> str:
    """Install the rules, now and for each later boot.

    Raises:
        CommandError: nftables cannot be installed, or refuses the rules.
    """
    # This step comes before that of all packages, and not every image has nftables.
    apt.install(context, [firewall.PACKAGE])
    if openings.paths:
        context.services.stop(PROXY)
        context.services.start(_service(context, openings.paths))
    # Slurm's user has work in the cloud on the controller only: there it is the elastic daemon's.
    slurm = (context.settings.site.user,) if context.role == "controller" else ()
    whose = " and ".join(("root", *slurm))
    users = _ids(("root", *slurm, *openings.users))
    what = f"only {whose} may ask the metadata address"
    firewall.install(context, NAME, what, rules(users, openings))
    return f"only {whose} may ask {ADDRESS}"


def open_to_all(context: Context) -> str:
    """Leave the address open to every user, and removes the rules of an earlier boot.

    Raises:
        CommandError: nftables does not remove them.
    """
    if firewall.remove(context, NAME, TABLE):
        context.services.stop(PROXY)
    return f"every user may ask {ADDRESS}, as the stack file says (open_metadata)"


def rules(users: Sequence[int], openings: Openings) -> str:
    """Return the rule set, which replaces an earlier one."""
    who = ", ".join(str(user) for user in users)
    by_v6 = ", ".join(ADDRESSES_V6)
    ports = "".join(
        f"\t\t{where} {protocol} dport {port} accept\n"
        for protocol, port in openings.ports
        for where in (f"ip daddr {ADDRESS}", f"ip6 daddr {{ {by_v6} }}")
    )
    closed = CLOSED.format(address=ADDRESS, addresses_v6=by_v6)
    chains = PASS_ON.format(users=who, address=ADDRESS, port=PROXY_PORT) if openings.paths else ""
    return firewall.table(TABLE, chains + REFUSE.format(users=who, open=ports, closed=closed))


def _ids(names: Sequence[str]) -> list[int]:
    uids = []
    for name in names:
        try:
            uids.append(pwd.getpwnam(name).pw_uid)
        except KeyError:
            continue  # the image has no such user
    return list(dict.fromkeys(uids))


def _service(context: Context, paths: Sequence[str]) -> Service:
    start = f"import sys; sys.path.insert(0, {str(context.folders.code)!r})"
    call = f"from node.bootstrap.vm.metadata_guard import main; main({tuple(paths)!r})"
    log = context.path(context.folders.log) / "metadata-proxy.log"
    return Service(PROXY, (context.settings.site.python, "-I", "-S", "-c", f"{start}; {call}"), log)


def main(paths: Sequence[str], port: int = PROXY_PORT, address: str = ADDRESS) -> None:
    """Run the proxy for ever."""
    server(paths, port, address).serve_forever()


def server(paths: Sequence[str], port: int, address: str) -> ThreadingHTTPServer:
    """Return the proxy, which forwards GET requests whose path begins with one of `paths`."""
    # Imported late to save time: each boot imports this module, but few machines have a proxy.
    import http.client
    import http.server

    class Handler(http.server.BaseHTTPRequestHandler):
        timeout = PROXY_SECONDS

        def do_GET(self) -> None:
            # The path is forwarded unchanged. A path that could mean a different one is refused.
            strange = any(word in self.path.partition("?")[0] for word in ("..", "%", "//", "\\"))
            if strange or not self.path.startswith(tuple(paths)):
                self.send_error(403, REFUSED)
                return
            connection = http.client.HTTPConnection(address, timeout=PROXY_SECONDS)
            try:
                connection.request("GET", self.path, headers={HEADER: self.headers.get(HEADER, "")})
                answer = connection.getresponse()
                body = answer.read()
            except OSError as error:
                self.send_error(502, f"{address}: {error}")
                return
            finally:
                connection.close()
            self.send_response(answer.status)
            self.send_header(HEADER, "Google")
            self.send_header("Content-Type", answer.getheader("Content-Type", "application/json"))
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            print(format % args, file=sys.stderr, flush=True)

    class Server(http.server.ThreadingHTTPServer):
        request_queue_size = PROXY_BACKLOG

    return Server(("127.0.0.1", port), Handler)
