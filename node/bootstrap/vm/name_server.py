"""The controller's name server: dnsmasq, which knows only the names of the cluster's machines.

dnsmasq watches files. The boot writes the file of the machines that exist as long as the cluster does, and
the elastic daemon writes those of running nodes (`node.elastic.dns_hosts`). dnsmasq forwards nothing and
refuses other names, so that a machine asks its cloud's resolver for those. An address has a TTL of zero, and
the answer that a name is unknown has no SOA record. So no resolver caches either, and a node with a new
address is found.
"""

from __future__ import annotations

from node.bootstrap import daemons
from node.bootstrap.context import Context
from node.bootstrap.services import Service
from node.design import names
from node.system import files

SERVICE = "names"
PROGRAM = "/usr/sbin/dnsmasq"
PACKAGE = "dnsmasq-base"
"""The package of dnsmasq without its service, which would listen on every address of the machine."""
USER, GROUP = "dnsmasq", "nogroup"
"""The user and group of dnsmasq when it listens. The package makes the user."""
STATIC = "hosts"
ASK_SECONDS = 1.0


def start_name_server(context: Context) -> str:
    """Start or restarts the name server. It answers when this returns."""
    site = context.settings.site
    # The elastic daemon writes to the folder, and the name server's user reads it.
    folder = files.folder(context.path(names.folder(context.folders)), 0o755, context.slurm_user)
    suffix = names.domain(context.settings.design)
    files.write(folder / STATIC, names.lines(names.hosts(site), suffix).encode())
    log = context.path(context.folders.log) / "names.log"
    argv = (PROGRAM, *name_server_options(context))
    context.services.stop(SERVICE)
    pid = context.services.start(Service(SERVICE, argv, log))
    controller = f"{site.controller_host}.{suffix}"

    def answers() -> bool:
        return names.ask(controller, site.controller_address, ASK_SECONDS) == site.controller_address

    daemons.wait("the name server", answers, log, pid)
    return "the name server"


def name_server_options(context: Context) -> tuple[str, ...]:
    """Return dnsmasq's options. The machine's own configuration files of dnsmasq are not used."""
    return (
        "--keep-in-foreground",
        "--conf-file=/dev/null",
        f"--pid-file={context.folders.run}/names.pid",
        "--log-facility=-",
        f"--user={USER}",
        f"--group={GROUP}",
        f"--port={names.PORT}",
        # dnsmasq does not listen on the loopback, because systemd-resolved does.
        f"--listen-address={context.settings.site.controller_address}",
        "--bind-interfaces",
        "--no-hosts",
        "--no-resolv",
        "--local-ttl=0",
        f"--local=/{names.domain(context.settings.design)}/",
        # Names without a dot are never forwarded either.
        "--local=//",
        f"--hostsdir={names.folder(context.folders)}",
    )
