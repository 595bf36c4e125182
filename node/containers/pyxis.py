"""Enroot and Pyxis, which give Slurm `--container-image`: their configuration on a machine. Pure.

Slurm reads plugstack.conf on every machine, and nodes have the controller's. It includes a folder of the
machine's own, so that only a machine with the plugin loads it: a node that is up stays as it is when the
stack file changes.

Sources: https://slurm.schedmd.com/spank.html, NVIDIA/pyxis README.md, NVIDIA/enroot doc/configuration.md.
"""

from __future__ import annotations

from node.model import Settings

PLUGSTACK = "include /etc/slurm/plugstack.conf.d/*.conf\n"
"""plugstack.conf, as the distributions' packages have it."""
LINE = "etc/slurm/plugstack.conf.d/slurm-stacks-pyxis.conf"
"""The file that makes a machine load the plugin."""
ENROOT = "etc/enroot/enroot.conf"
MOUNTS = "etc/enroot/mounts.d/50-slurm-stacks.fstab"
PLUGIN = "spank_pyxis.so"
PLUGIN_FOLDERS = (
    "usr/lib/slurm",
    "usr/lib/*/slurm",
    "usr/lib/*/slurm-wlm",
    "usr/local/lib/slurm",
    "usr/local/lib/*/slurm",
)
"""Where packages and `make install` put Pyxis's plugin."""
REQUIRED = (
    *("bash", "bsdextrautils", "curl", "gawk", "jq", "libcap2-bin", "parallel", "passwd", "pigz"),
    *("squashfs-tools", "zstd"),
)
"""The distribution's packages that Enroot's packages depend on, and pigz, which unpacks in parallel."""
HEADER = "# Written by slurm-stacks: changes are lost.\n"
RUNTIME = "/run/enroot"
"""The folder of containers that run. It is in memory, so every boot makes it."""
DATA = "/var/lib/enroot"
"""The folder of unpacked images on a machine without NVMe disks."""


def data(settings: Settings, role: str) -> str:
    """The folder in which a machine unpacks images: on its NVMe disks if it has a scratch there."""
    scratch = [m.path for m in settings.design.mounts if m.kind == "nvme" and role in m.roles]
    return f"{scratch[0]}/enroot" if scratch else DATA


def images(settings: Settings) -> str:
    """The folder of layers that were fetched."""
    containers = settings.design.containers
    assert containers is not None
    return containers.images


def enroot(settings: Settings, role: str) -> str:
    """enroot.conf. Enroot itself computes the user's number, because each user has a folder in each."""
    folders = {
        "ENROOT_RUNTIME_PATH": RUNTIME,
        "ENROOT_CACHE_PATH": images(settings),
        "ENROOT_DATA_PATH": data(settings, role),
    }
    return HEADER + "".join(f"{key} {path}/$(id -u)\n" for key, path in folders.items())


def mounts(settings: Settings, role: str) -> str:
    """The cluster's folders that every container has, at their paths, as lines of Enroot's fstab."""
    paths = dict.fromkeys(m.path for m in settings.design.mounts if role in m.roles)
    return HEADER + "".join(f"{path} {path} none x-create=dir,rbind,rw,nosuid,rslave\n" for path in paths)


def line(plugin: str) -> str:
    """The line of plugstack.conf. A job that asks for a container must never run outside of it, so a plugin
    that fails is an error (`required`)."""
    return f"{HEADER}required {plugin} runtime_path=/run/pyxis\n"
