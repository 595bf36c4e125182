"""Mounts the shared file systems (the controller's exports, EFS, Filestore, FSx), and a node's own scratch.

A mount that exists already stays. A mount that fails within its time limit stops the boot with a message,
because a node without its mounts must not register.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Mapping

from node.bootstrap.command import CommandError
from node.bootstrap.context import Context
from node.bootstrap.vm import buckets, clouds, disks
from node.design.storage import Mount
from node.system import files
from node.system.waiting import pauses_for, retry

SERVER_SECONDS = 200.0
"""How long to wait for a server, because a controller that boots at the same time needs minutes. It is less
than the step's limit, so that the error can say what is missing."""
TRY_SECONDS = 60.0
PAUSE_SECONDS = 3.0
NFS_PORT, LUSTRE_PORT = 2049, 988
EXPORTS = "etc/exports.d/slurm-stacks.exports"
# mountpoint: without it, machines would get the empty folder below the disk until the disk is mounted.
# no_root_squash: hooks and installers run as root on the nodes and write into /apps.
EXPORT = "{path} {network}(rw,sync,no_subtree_check,no_root_squash,mountpoint)\n"
THREADS = "[nfsd]\nthreads=64\n"
"""The number of threads of the NFS server. The default of 8 is too small when hundreds of nodes start."""


def nfs(context: Context, mount: Mount) -> None:
    """Mount the controller's disk on the controller and its export on other machines, or another export."""
    if mount.served_by is None:
        origin = str(context.mount_source(mount).source)
        hint = f"does {origin} exist, and may this machine's network reach and mount it?"
        _mount(context, mount, "nfs", origin, origin.partition(":")[0], NFS_PORT, hint)
    elif mount.served_by == context.role:
        disks.mount_volume(context, mount, disks.volume(context, mount))
    else:
        server = context.settings.site.controller_address
        look = f"./cluster logs --stack {context.settings.design.stack} controller"
        hint = f"see what the controller's boot came to ({look})"
        _mount(context, mount, "nfs", f"{server}:{mount.path}", server, NFS_PORT, hint)


def efs(context: Context, mount: Mount) -> None:
    origin = str(context.mount_source(mount).source)
    hint = "has it a mount target in this zone, and does its security group let this machine in?"
    _mount(context, mount, "nfs4", origin, origin.partition(":")[0], NFS_PORT, hint)


def filestore(context: Context, mount: Mount) -> None:
    origin = str(context.mount_source(mount).source)
    hint = "is the file server in this machine's network, and does a firewall rule stand in between?"
    _mount(context, mount, "nfs", origin, origin.partition(":")[0], NFS_PORT, hint)


def fsx_lustre(context: Context, mount: Mount) -> None:
    origin = str(context.mount_source(mount).source)
    context.run("modprobe", "lustre", timeout=60.0)
    hint = "do the security groups let ports 988 and 1018-1023 through, both ways?"
    _mount(context, mount, "lustre", origin, origin.partition("@")[0], LUSTRE_PORT, hint)


def nvme(context: Context, mount: Mount) -> None:
    disks.mount_volume(context, mount, disks.scratch(context), mount.options)
    # Every job may write to it, as to /tmp.
    files.folder(context.at(mount.path.lstrip("/")), 0o1777)


def tmp_on_disk(context: Context) -> None:
    """Put a node's /tmp on its root disk where it is in memory, as on Debian 13.

    Slurm promises jobs the disk's space there (TmpDisk), and drains a node that has less. In memory, what a
    job writes there would also count as the job's memory.
    """
    partition = context.settings.design.partition_of(context.host)
    target = context.at("tmp")
    if partition is None or not partition.tmp_disk_mib or (disks.mounted(str(target)) or ("",))[0] != "tmpfs":
        return
    place = files.folder(context.path(context.folders.lib) / "tmp", 0o1777)
    context.run("mount", "--bind", str(place), str(target))


def disk(context: Context, mount: Mount) -> None:
    """Check the disk with Slurm's state, which the step `disks` mounts: packages may need its folders."""
    if not disks.mounted(str(context.at(mount.path.lstrip("/")))):
        raise FileNotFoundError(f"{mount.path}: the disk with Slurm's state is not mounted there")


def bind(context: Context, mount: Mount) -> None:
    """Check a folder of the host, which the local cloud mounts before the machine starts."""
    target = context.at(mount.path.lstrip("/"))
    if not disks.mounted(str(target)):
        raise FileNotFoundError(f"{mount.path}: the machine was started without this folder of its host")


KINDS: Mapping[str, Callable[[Context, Mount], None]] = {
    "nfs": nfs,
    "efs": efs,
    "filestore": filestore,
    "fsx_lustre": fsx_lustre,
    "nvme": nvme,
    "disk": disk,
    "bind": bind,
    "s3": buckets.s3,
    "gcs": buckets.gcs,
}


def kinds(context: Context) -> Mapping[str, Callable[[Context, Mount], None]]:
    """Return the kinds of storage that this machine's cloud offers, with the functions that mount them."""
    offered = ("nfs", "nvme", "disk", *clouds.of(context.settings).storage)
    return {kind: mount for kind, mount in KINDS.items() if kind in offered}


def export(context: Context) -> None:
    """Export what this machine serves, when all of it is mounted.

    If the network is not known, only the security group limits the access.
    """
    served = [m.path for m in context.mounts() if m.kind == "nfs" and m.served_by == context.role]
    if not served:
        return
    network = context.settings.design.network.cidr or "*"
    text = "".join(EXPORT.format(path=path, network=network) for path in served)
    exports, threads = context.at(EXPORTS), context.at("etc/nfs.conf.d/slurm-stacks.conf")
    for path in (exports, threads):
        path.parent.mkdir(parents=True, exist_ok=True)
    files.write(exports, text.encode())
    if files.write(threads, THREADS.encode()):
        context.run("systemctl", "restart", "nfs-server", timeout=60.0)
    context.run("exportfs", "-ra", timeout=30.0)


def _mount(context: Context, mount: Mount, kind: str, origin: str, server: str, port: int, hint: str) -> None:
    """Mount a server's file system when the server answers.

    Raises:
        RuntimeError: A different file system is mounted there.
        TimeoutError: The file system could not be mounted in time.
    """
    target = context.at(mount.path.lstrip("/"))
    if present := disks.mounted(str(target)):
        if present[1] == origin:
            return
        raise RuntimeError(f"{mount.path}: {present[1]} is mounted there, and should be {origin}")
    files.folder(target)

    def once() -> None:
        _reach(server, port)
        command = ("mount", "-t", kind, "-o", mount.options, origin, str(target))
        context.run(*command, timeout=TRY_SECONDS)

    try:
        retry(once, (OSError, CommandError), pauses_for(SERVER_SECONDS, PAUSE_SECONDS))
    except (OSError, CommandError) as error:
        raise TimeoutError(
            f"{mount.path}: {origin} could not be mounted for {SERVER_SECONDS:g} s; {hint}\n{error}"
        ) from error


def _reach(server: str, port: int) -> None:
    """Connect to a server before a mount, because a hard mount would wait for ever for a silent server.

    Raises:
        OSError: The server does not answer.
    """
    try:
        with contextlib.closing(socket.create_connection((server, port), 5.0)):
            pass
    except OSError as error:
        raise OSError(f"{server}, port {port}: {error}") from error
