"""Mounting what machines share (the controller's exports, EFS, Filestore, FSx), and a node's own scratch.

A mount that is there stays. One that cannot be had within its time is a failure in words: a node without its
mounts is none.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Mapping

from infra.node.bootstrap import files
from infra.node.bootstrap.command import CommandError
from infra.node.bootstrap.context import Context
from infra.node.bootstrap.vm import clouds, disks, sources
from infra.node.model import Mount

SERVER_SECONDS = 200.0
"""How long a server is waited for: a controller that boots at the same time needs minutes. Within the step's
limit, so that it can be said what is missing."""
TRY_SECONDS = 60.0
PAUSE_SECONDS = 3.0
NFS_PORT, LUSTRE_PORT = 2049, 988
EXPORTS = "etc/exports.d/slurm-stacks.exports"
# mountpoint: before the disk is mounted, machines would be given the empty folder below it.
# no_root_squash: hooks and installers run as root on the nodes, and write into /apps.
EXPORT = "{path} {network}(rw,sync,no_subtree_check,no_root_squash,mountpoint)\n"
THREADS = "[nfsd]\nthreads=64\n"
"""The default of 8 is soon all waiting when hundreds of nodes start."""


def nfs(context: Context, mount: Mount) -> None:
    """The controller mounts its disk, to be exported; the others mount that."""
    if mount.served_by == context.role:
        disks.mount_volume(context, mount, disks.volume(context, mount))
    else:
        server = context.settings.site.controller_address
        look = f"./cluster logs --stack {context.settings.design.stack} controller"
        hint = f"see what the controller's boot came to ({look})"
        _mount(context, mount, "nfs", f"{server}:{mount.path}", server, NFS_PORT, hint)


def efs(context: Context, mount: Mount) -> None:
    origin = str(sources.of(context, mount)["source"])
    hint = "has it a mount target in this zone, and does its security group let this machine in?"
    _mount(context, mount, "nfs4", origin, origin.partition(":")[0], NFS_PORT, hint)


def filestore(context: Context, mount: Mount) -> None:
    origin = str(sources.of(context, mount)["source"])
    hint = "is the file server in this machine's network, and does a firewall rule stand in between?"
    _mount(context, mount, "nfs", origin, origin.partition(":")[0], NFS_PORT, hint)


def fsx_lustre(context: Context, mount: Mount) -> None:
    origin = str(sources.of(context, mount)["source"])
    context.run("modprobe", "lustre", timeout=60.0)
    hint = "do the security groups let ports 988 and 1018-1023 through, both ways?"
    _mount(context, mount, "lustre", origin, origin.partition("@")[0], LUSTRE_PORT, hint)


def nvme(context: Context, mount: Mount) -> None:
    disks.mount_volume(context, mount, disks.scratch(context), mount.options)
    # Any job's, as /tmp is.
    files.folder(context.at(mount.path.lstrip("/")), 0o1777)


def bind(context: Context, mount: Mount) -> None:
    """A folder of the host's, which has been there since the machine was switched on."""
    target = context.at(mount.path.lstrip("/"))
    if not disks.mounted(str(target)):
        raise FileNotFoundError(f"{mount.path}: the machine was started without this folder of its host's")


KINDS: Mapping[str, Callable[[Context, Mount], None]] = {
    "nfs": nfs,
    "efs": efs,
    "filestore": filestore,
    "fsx_lustre": fsx_lustre,
    "nvme": nvme,
    "bind": bind,
}


def kinds(context: Context) -> Mapping[str, Callable[[Context, Mount], None]]:
    """Those that this machine's cloud offers."""
    offered = ("nfs", "nvme", *clouds.of(context.settings).storage)
    return {kind: mount for kind, mount in KINDS.items() if kind in offered}


def export(context: Context) -> None:
    """Export what this machine serves, when all of it is mounted.

    Where the network is not known its bounds are the security group's.
    """
    served = [m.path for m in context.mounts() if m.kind == "nfs" and m.served_by == context.role]
    if not served:
        return
    network = context.settings.site.driver.get("cidr") or context.settings.design.network.cidr or "*"
    text = "".join(EXPORT.format(path=path, network=network) for path in served)
    exports, threads = context.at(EXPORTS), context.at("etc/nfs.conf.d/slurm-stacks.conf")
    for path in (exports, threads):
        path.parent.mkdir(parents=True, exist_ok=True)
    files.place(exports, text.encode())
    if files.place(threads, THREADS.encode()):
        context.run("systemctl", "restart", "nfs-server", timeout=60.0)
    context.run("exportfs", "-ra", timeout=30.0)


def _mount(context: Context, mount: Mount, kind: str, origin: str, server: str, port: int, hint: str) -> None:
    """Mount a server's file system, once it answers.

    Raises:
        TimeoutError: it did not within its time.
    """
    target = context.at(mount.path.lstrip("/"))
    if there := disks.mounted(str(target)):
        if there[1] == origin:
            return
        raise RuntimeError(f"{mount.path}: {there[1]} is mounted there, and should be {origin}")
    files.folder(target)
    deadline = time.monotonic() + SERVER_SECONDS
    while True:
        try:
            _reach(server, port)
            command = ("mount", "-t", kind, "-o", mount.options, origin, str(target))
            context.run(*command, timeout=TRY_SECONDS)
        except (OSError, CommandError) as error:
            if time.monotonic() > deadline:
                said = "\n".join(
                    [f"{mount.path}: {origin} could not be mounted for {SERVER_SECONDS:g} s; {hint}"]
                )
                raise TimeoutError(f"{said}\n{error}") from error
            time.sleep(PAUSE_SECONDS)
        else:
            return


def _reach(server: str, port: int) -> None:
    """A hard mount waits for ever for a server that does not answer: it is asked first.

    Raises:
        OSError: it does not.
    """
    try:
        with contextlib.closing(socket.create_connection((server, port), 5.0)):
            pass
    except OSError as error:
        raise OSError(f"{server}, port {port}: {error}") from error
