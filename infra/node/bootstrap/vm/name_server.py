"""The controller's name server: dnsmasq, which knows the names of the cluster's machines and no other.

It follows files: the boot writes that of the machines that live as long as the cluster, and the elastic
daemon those of the nodes that are up (`infra.node.elastic.names`). It forwards nothing and refuses other
names, so that a machine asks its cloud's resolver for those. An address has a TTL of zero, and the answer
that a name is unknown has no SOA record: nobody remembers either, and a node that comes back is found there.
"""

from __future__ import annotations

from infra.node import names
from infra.node.bootstrap import daemons, files
from infra.node.bootstrap.context import Context
from infra.node.bootstrap.services import Service

NAME = "names"
PROGRAM = "/usr/sbin/dnsmasq"
PACKAGE = "dnsmasq-base"
"""Without the package `dnsmasq`, whose own service would listen on every address of the machine."""
USER, GROUP = "dnsmasq", "nogroup"
"""Whom it becomes once it listens. The package makes the user."""
STATIC = "hosts"
ASK_SECONDS = 1.0


def start(context: Context) -> str:
    """Start it, or start it again with what is now to be served; it answers when this returns."""
    site = context.settings.site
    # The elastic daemon adds to it, and the name server's own user reads it.
    folder = files.folder(context.path(names.folder(context.folders)), 0o755, context.slurm_user)
    suffix = names.domain(context.settings.design)
    files.place(folder / STATIC, names.lines(names.hosts(site), suffix).encode())
    log = context.path(context.folders.log) / "names.log"
    argv = (PROGRAM, *options(context))
    context.services.stop(NAME)
    pid = context.services.start(Service(NAME, argv, log))
    controller = f"{site.controller_host}.{suffix}"

    def answers() -> bool:
        return names.ask(controller, site.controller_address, ASK_SECONDS) == site.controller_address

    daemons.wait("the name server", answers, log, pid)
    return "the name server"


def options(context: Context) -> tuple[str, ...]:
    """dnsmasq's options: nothing comes from this machine's own configuration of it."""
    return (
        "--keep-in-foreground",
        "--conf-file=/dev/null",
        f"--pid-file={context.folders.run}/names.pid",
        "--log-facility=-",
        f"--user={USER}",
        f"--group={GROUP}",
        f"--port={names.PORT}",
        # Not on the loopback: systemd-resolved listens there.
        f"--listen-address={context.settings.site.controller_address}",
        "--bind-interfaces",
        "--no-hosts",
        "--no-resolv",
        "--local-ttl=0",
        f"--local=/{names.domain(context.settings.design)}/",
        # A name without a dot is nobody else's either.
        "--local=//",
        f"--hostsdir={names.folder(context.folders)}",
    )
