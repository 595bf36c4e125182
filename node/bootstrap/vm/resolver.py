"""Sets the machine's name, which must be its node's name at every boot, and configures its resolver.

/etc/hosts has the machine itself and the machines that exist as long as the cluster does. The controller's
name server knows the running nodes. Each machine asks it for names of the cluster's domain,
which is also searched for names without a dot. All other names are resolved by the cloud's resolver.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Collection

from node.bootstrap.context import Context
from node.bootstrap.vm import clouds
from node.design import names
from node.system import files

KEEP = (
    "# slurm-stacks: the boot's steps name the machine.\npreserve_hostname: true\nmanage_etc_hosts: false\n"
)
RESOLVED = "etc/systemd/resolved.conf.d/slurm-stacks.conf"
RESOLVED_TEXT = """\
# Written by slurm-stacks: the controller knows the names of the cluster's machines. It refuses others, for
# which the servers of the machine's links are asked as well.
[Resolve]
DNS={server}
Domains={domain}
# A name that no machine has is then unknown at once, and not a temporary failure.
ResolveUnicastSingleLabel=yes
LLMNR=no
MulticastDNS=no
"""
RESOLVED_SECONDS = 60.0
STUB = "run/systemd/resolve/"
RESOLV = "etc/resolv.conf"
MARK = "# slurm-stacks: the first server and the first domain are the cluster's."
OPTIONS = "options timeout:2"
"""The options of resolv.conf. They limit how long a silent controller delays other look-ups."""
SEARCH = ("search ", "domain ")
LOOPBACK = "localhost"
"""A name that always stays at its own address."""
MOST_SERVERS = 3
"""The greatest number of servers that resolv.conf(5) uses."""


def configure(context: Context) -> str:
    """Set the machine's name, writes /etc/hosts, and configures the resolver."""
    files.write(context.at("etc/hostname"), f"{context.host}\n".encode())
    cloud_init = context.at("etc/cloud/cloud.cfg.d/99-slurm-stacks.cfg")
    cloud_init.parent.mkdir(parents=True, exist_ok=True)
    # Otherwise cloud-init would restore the cloud's name at each boot.
    files.write(cloud_init, KEEP.encode())
    clouds.of(context.settings).keep_name(context)
    if socket.gethostname() != context.host:
        socket.sethostname(context.host)
    site, domain = context.settings.site, names.domain(context.settings.design)
    known = names.hosts(site)
    if context.host not in known:
        known[context.host] = address_towards(site.controller_address)
    hosts = context.at("etc/hosts")
    before = hosts.read_text() if hosts.exists() else "127.0.0.1 localhost\n"
    text = files.with_part(without(before, context.host, known), names.lines(known, domain))
    files.write(hosts, text.encode())
    _ask_controller(context, domain)
    return f"{context.host}.{domain} at {known[context.host]}; the controller knows the others"


def without(hosts: str, host: str, known: Collection[str]) -> str:
    """Return the lines of /etc/hosts without the names of our own lines, which would have two addresses.

    Debian's installer and cloud-init give the machine's own name a loopback address, also as a full name.
    Then other machines could not reach a program that listens at its machine's name.

    Args:
        hosts: The text of /etc/hosts.
        own: The machine's name.
        known: The names in our lines, without a domain.
    """
    kept = []
    for line in hosts.splitlines():
        address, *words = line.partition("#")[0].split() or [""]
        left = [word for word in words if word not in known or word == LOOPBACK]
        if address.startswith(("127.", "::1")) and host in words:
            left = [word for word in left if word.partition(".")[0] != host]
        if left == words:
            kept.append(line)
        elif left:
            kept.append(" ".join([address, *left]))
    return "".join(f"{line}\n" for line in kept)


def address_towards(other: str) -> str:
    """Return the IPv4 address from which this machine reaches another. A machine may have several."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((other, names.PORT))  # a datagram socket sends nothing here: it only picks the route
        return str(probe.getsockname()[0])


def _ask_controller(context: Context, domain: str) -> None:
    server, resolv = context.settings.site.controller_address, context.at(RESOLV)
    if str(context.at(STUB)) in os.path.realpath(resolv):
        path = context.at(RESOLVED)
        path.parent.mkdir(parents=True, exist_ok=True)
        if files.write(path, RESOLVED_TEXT.format(server=server, domain=domain).encode()):
            context.run("systemctl", "restart", "systemd-resolved.service", timeout=RESOLVED_SECONDS)
        return
    before = resolv.read_text() if resolv.exists() else ""
    files.write(resolv, resolv_conf(before, server, domain).encode())


def resolv_conf(before: str, server: str, domain: str) -> str:
    """Return resolv.conf for a machine without systemd-resolved.

    The C library asks the controller first. If the controller refuses a name, it asks the next server.

    Args:
        before: The present text, perhaps of an earlier boot.
    """
    lines = [line for line in before.splitlines() if line not in (MARK, OPTIONS)]
    servers = [line.split()[1] for line in lines if line.startswith("nameserver ")]
    searched = [word for line in lines if line.startswith(SEARCH) for word in line.split()[1:]]
    rest = [line for line in lines if not line.startswith(("nameserver ", *SEARCH))]
    nameservers = list(dict.fromkeys([server, *servers]))[:MOST_SERVERS]
    header = [MARK, " ".join(["search", *dict.fromkeys([domain, *searched])]), OPTIONS]
    return "".join(
        f"{line}\n" for line in [*header, *(f"nameserver {address}" for address in nameservers), *rest]
    )
