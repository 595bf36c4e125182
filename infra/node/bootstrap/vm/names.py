"""The machine's name, which has to be its node's at every boot, and the controller's address."""

from __future__ import annotations

import socket

from infra.node.bootstrap import files
from infra.node.bootstrap.context import Context
from infra.node.bootstrap.vm import clouds

KEEP = (
    "# slurm-stacks: the boot's steps name the machine.\npreserve_hostname: true\nmanage_etc_hosts: false\n"
)


def place(context: Context) -> str:
    """Name the machine, and know the controller by its name.

    The own name stays out of /etc/hosts: there it would be a loopback address, which a job would hand to the
    machines that it works with.
    """
    files.place(context.at("etc/hostname"), f"{context.host}\n".encode())
    cloud_init = context.at("etc/cloud/cloud.cfg.d/99-slurm-stacks.cfg")
    cloud_init.parent.mkdir(parents=True, exist_ok=True)
    # cloud-init would give back the name that the cloud knows, at each boot.
    files.place(cloud_init, KEEP.encode())
    clouds.of(context.settings).keep_name(context)
    if socket.gethostname() != context.host:
        socket.sethostname(context.host)
    site = context.settings.site
    if context.host == site.controller_host:
        return f"{context.host}; nodes tell Slurm their addresses"
    hosts = context.at("etc/hosts")
    before = hosts.read_text() if hosts.exists() else "127.0.0.1 localhost\n"
    line = f"{site.controller_address} {site.controller_host}\n"
    files.place(hosts, files.with_part(before, line).encode())
    return f"{context.host}; the controller is {site.controller_address}"
