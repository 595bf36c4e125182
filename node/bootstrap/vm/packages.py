"""Installs the packages that a role needs on Ubuntu 24.04, and the kernel that a file system may need."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from node.bootstrap.context import Context, Reboot
from node.bootstrap.vm import (
    apt,
    clouds,
    directory,
    firewall,
    mariadb,
    name_server,
    nfs_guard,
    slurm_packages,
)
from node.design.model import ClusterDesign
from node.design.storage import BUCKETS
from node.slurm import container_conf
from node.system import files

FOR_JOBS = ("libpmix-dev", "rsync")
"""`srun --mpi=pmix` loads the library by the name that Debian 12 has in no other package, here and on nodes.
rsync has to be on both sides."""
FOR_USERS = ("build-essential", "python3-venv")
"""What users make environments of their own with, where they log in to a cloud's cluster."""
MASKED = ("munge.service", "slurmctld.service", "slurmd.service", "slurmdbd.service")
"""The packages' own units, which would start without a configuration, or in addition to ours."""
UPGRADES = ("apt-daily.timer", "apt-daily-upgrade.timer", "unattended-upgrades.service")


def wanted(context: Context) -> list[str]:
    """Return the packages of this machine, in a stable order."""
    return of_role(context.settings.design, context.role)


def of_role(design: ClusterDesign, role: str) -> list[str]:
    """Return the packages of a role, in a stable order."""
    return list(dict.fromkeys(name for needed, names in _needs(design, role) if needed for name in names))


def _needs(design: ClusterDesign, role: str) -> Iterator[tuple[object, Sequence[str]]]:
    """Yield what may need packages on a machine of a role, as (whether it is there, its packages)."""
    mounts = [mount for mount in design.mounts if role in mount.roles]
    kinds = {mount.kind for mount in mounts}
    exports = any(mount.kind == "nfs" and mount.served_by == "controller" for mount in mounts)
    controls, whole = role == "controller", design.isolation == "vm"
    # Nodes of AWS Batch have no Slurm.
    slurm = not design.batch
    logs_in = design.login_hosts() if whole and slurm else ()
    if slurm:
        yield True, ("munge", "chrony", *slurm_packages.of_distribution(design, role), *FOR_JOBS)
    yield True, ("chrony",)
    yield kinds & {"nfs", "efs", "filestore"}, ("nfs-common",)
    yield controls and exports, ("nfs-kernel-server",)
    yield "nvme" in kinds, ("mdadm",)
    yield design.containers, _of_containers(design, role)
    yield controls or (whole and slurm) or nfs_guard.needs_nfs_guard(mounts), (firewall.PACKAGE,)
    yield controls, (name_server.PACKAGE, *clouds.kind(design.provider).packages)
    yield slurm and design.access.directory, directory.PACKAGES
    yield controls and design.slurm.accounting, ("mariadb-server",)
    # This is for the training environment, which the local stack makes on the host. It is there without a
    # training, too: otherwise an image would change when the benchmark is turned on or off.
    yield controls and whole and slurm, ("python3-venv",)
    yield logs_in and logs_in[0].role == role, FOR_USERS


def _of_containers(design: ClusterDesign, role: str) -> Sequence[str]:
    if design.containers is None:
        return ()
    if design.containers.runtime != "oci":
        return container_conf.ENROOT_REQUIRED
    return container_conf.OCI_PACKAGES if role == "compute" else container_conf.OCI_TOOLS


def install(context: Context) -> str:
    """Install the packages of this machine, and return the step's note.

    Raises:
        Reboot: The machine must restart with another kernel that was installed.
    """
    apt.mask(context, *MASKED)
    # A node runs only for its jobs. Automatic upgrades would cost time and might remove its kernel.
    if context.role == "compute" and (running := apt.mask(context, *UPGRADES)):
        context.run("systemctl", "stop", *running, allow=(0, 5))
    name, source = clouds.of(context.settings).time
    files.write(files.folder(context.at("etc/chrony/sources.d")) / name, source.encode())
    accounting = context.role == "controller" and context.settings.design.slurm.accounting
    if accounting:
        mariadb.configure(context)
    # The release of the stack file comes first: what follows would otherwise bring the distribution's.
    installed = slurm_packages.install(context)
    installed += apt.install(context, wanted(context))
    if accounting:
        mariadb.disable_autostart(context)
    # Imported late to save time: every node's boot runs this, but most need none of these modules.
    if context.settings.design.containers is not None:
        from node.bootstrap.vm import pyxis as runtime

        installed += runtime.install(context)
    if any(mount.kind in BUCKETS for mount in context.mounts()):
        from node.bootstrap.vm import buckets

        installed += buckets.install(context)
    if any(mount.kind == "fsx_lustre" for mount in context.mounts()):
        from node.bootstrap.vm import lustre

        kernel, more = lustre.install(context, fresh=bool(installed))
        installed += more
        if kernel is not None:
            raise Reboot(f"installed Linux {kernel}, for which there is a Lustre client")
    return f"installed {', '.join(installed)}" if installed else "all are there"
