"""Lets only root and the kernel speak NFS to file services that trust every client.

EFS and Filestore take the client's word for which user it acts for (AUTH_SYS). EFS does so even on ports
that any process may use, because AWS recommends the mount option noresvport. An ordinary user's program
that speaks NFS itself could therefore act as root there, and write into another user's home folder. The
kernel's own client is not limited, because its connections belong to no user. A controller's exports need
no guard: they require ports below 1024.
"""

from __future__ import annotations

from collections.abc import Iterable

from node.bootstrap.context import Context
from node.bootstrap.vm.firewall import install, table
from node.design.storage import Mount

NFS_NAME = "nfs"
NFS_TABLE = "slurm_stacks_nfs"
NFS_PORT = 2049
NFS_CHAINS = f"""\
	chain refuse {{
		type filter hook output priority 0; policy accept;
		meta skuid != 0 tcp dport {NFS_PORT} reject with tcp reset
		meta skuid != 0 udp dport {NFS_PORT} reject
	}}
"""


def needs_nfs_guard(mounts: Iterable[Mount]) -> bool:
    """Return whether these mounts need the guard: one is on a service or on somebody's own server."""
    kinds = ("nfs", "efs", "filestore")
    return any(mount.kind in kinds and mount.served_by is None for mount in mounts)


def install_nfs_guard(context: Context) -> None:
    """Install the rules if the machine needs them.

    Raises:
        CommandError: nftables refuses the rules.
    """
    if needs_nfs_guard(context.mounts()):
        what = "only root and the kernel speak NFS to other machines"
        install(context, NFS_NAME, what, table(NFS_TABLE, NFS_CHAINS))
