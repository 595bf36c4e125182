"""Slurm's files for containers: crun (`--container`), Enroot and Pyxis (`--container-image`). Pure.

For `--container` Slurm copies the `config.json` of the user's OCI bundle, with the task's command in it, and
then calls the commands of oci.conf as the user. `node/slurm/container_task.py` turns the copy into one that
works on every node, for every user.

Source: https://slurm.schedmd.com/oci.conf.html. Slurm 22.05 knows no other keys than these.

Slurm's traps (docs/internals/slurm_traps.md): containers-of-22-05.
"""

from __future__ import annotations

from pathlib import PurePosixPath

from node.design.folders import Folders
from node.design.model import Settings

OCI_STATE = "oci"
"""The folder, below `Folders.run`, in which each user has the state of running containers."""
OCI_PROGRAM = "node/slurm/container_task.py"
OCI_PACKAGES = ("crun",)
"""The distribution's packages that a node needs."""
OCI_TOOLS = ("skopeo", "umoci")
"""The packages with which users turn an image into a bundle, on the machines where they log in."""
OCI_NAME = "%n.%u.%j.%s.%t"
"""A container's name: node, user, job, step, task."""


def oci_state(settings: Settings) -> PurePosixPath:
    """Return the folder that has a folder for each user who runs a container."""
    return Folders(settings).run / OCI_STATE


def oci_conf(settings: Settings) -> str:
    """Return oci.conf, without a header.

    Every mount of nodes is an argument, so that a task's start reads no settings.
    """
    folders = Folders(settings)
    root = f"{oci_state(settings)}/%u"
    crun = f"crun --rootless=true --cgroup-manager=disabled --root={root}"
    shown = [mount.path for mount in settings.design.mounts if "compute" in mount.roles]
    mounts = "".join(f" --mount={path}" for path in dict.fromkeys(shown))
    # Without `exec` the shell would get the task's signals, and end before the task has done its work.
    program = f"{settings.site.python} -I {folders.code / OCI_PROGRAM}"
    start = f"exec {program} --bundle=%b --state={root}{mounts} {OCI_NAME}"
    lines = {
        "RunTimeQuery": f"{crun} state {OCI_NAME}",
        "RunTimeKill": f"{crun} kill {OCI_NAME} KILL",
        "RunTimeDelete": f"{crun} delete --force {OCI_NAME}",
        "RunTimeRun": start,
    }
    return "".join(f'{key}="{value}"\n' for key, value in lines.items())


PLUGSTACK = "include /etc/slurm/plugstack.conf.d/*.conf\n"
"""plugstack.conf, as the distributions' packages have it."""
PYXIS_LINE = "etc/slurm/plugstack.conf.d/slurm-stacks-pyxis.conf"
"""The file that makes a machine load the plugin."""
ENROOT = "etc/enroot/enroot.conf"
ENROOT_MOUNTS = "etc/enroot/mounts.d/50-slurm-stacks.fstab"
PYXIS_PLUGIN = "spank_pyxis.so"
PLUGIN_FOLDERS = (
    "usr/lib/slurm",
    "usr/lib/*/slurm",
    "usr/lib/*/slurm-wlm",
    "usr/local/lib/slurm",
    "usr/local/lib/*/slurm",
)
"""Where packages and `make install` put Pyxis's plugin."""
ENROOT_REQUIRED = (
    *("bash", "bsdextrautils", "curl", "gawk", "jq", "libcap2-bin", "parallel", "passwd", "pigz"),
    *("squashfs-tools", "zstd"),
)
"""The distribution's packages that Enroot's packages depend on, and pigz, which unpacks in parallel."""
ENROOT_HEADER = "# Written by slurm-stacks: changes are lost.\n"
ENROOT_RUNTIME = "/run/enroot"
"""The folder of containers that run. It is in memory, so every boot makes it."""
ENROOT_DATA = "/var/lib/enroot"
"""The folder of unpacked images on a machine without NVMe disks."""


def enroot_data(settings: Settings, role: str) -> str:
    """Return the folder in which a machine unpacks images: on its NVMe disks if it has a scratch there."""
    scratch = [m.path for m in settings.design.mounts if m.kind == "nvme" and role in m.roles]
    return f"{scratch[0]}/enroot" if scratch else ENROOT_DATA


def enroot_images(settings: Settings) -> str:
    """Return the folder of layers that were fetched."""
    containers = settings.design.containers
    assert containers is not None
    return containers.images


def enroot_conf(settings: Settings, role: str) -> str:
    """Return enroot.conf. Enroot computes the user's number, because each user has a folder in each."""
    folders = {
        "ENROOT_RUNTIME_PATH": ENROOT_RUNTIME,
        "ENROOT_CACHE_PATH": enroot_images(settings),
        "ENROOT_DATA_PATH": enroot_data(settings, role),
    }
    return ENROOT_HEADER + "".join(f"{key} {path}/$(id -u)\n" for key, path in folders.items())


def enroot_mounts(settings: Settings, role: str) -> str:
    """Return the cluster's folders that every container has, at their paths, as lines of Enroot's fstab."""
    paths = dict.fromkeys(m.path for m in settings.design.mounts if role in m.roles)
    return ENROOT_HEADER + "".join(
        f"{path} {path} none x-create=dir,rbind,rw,nosuid,rslave\n" for path in paths
    )


def pyxis_line(plugin: str) -> str:
    """Return the line of plugstack.conf.

    A job that asks for a container must never run outside of it, so a plugin that fails is an error
    (`required`).
    """
    return f"{ENROOT_HEADER}required {plugin} runtime_path=/run/pyxis\n"
