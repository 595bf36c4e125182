"""Installs the packages that a role needs on Ubuntu 24.04, and the kernel that a file system may need."""

from __future__ import annotations

from node.bootstrap.context import Context, Reboot
from node.bootstrap.vm import (
    apt,
    clouds,
    firewall,
    mariadb,
    name_server,
    nfs_guard,
    slurm_packages,
)
from node.design.model import BUCKETS, ClusterDesign
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
    mounts = [mount for mount in design.mounts if role in mount.roles]
    kinds = {mount.kind for mount in mounts}
    # Nodes of AWS Batch have no Slurm.
    names = ["chrony"]
    if not design.batch:
        names = ["munge", "chrony", *slurm_packages.of_distribution(design, role), *FOR_JOBS]
    if kinds & {"nfs", "efs", "filestore"}:
        names.append("nfs-common")
    if role == "controller" and any(
        mount.kind == "nfs" and mount.served_by == "controller" for mount in mounts
    ):
        names.append("nfs-kernel-server")
    if "nvme" in kinds:
        names.append("mdadm")
    if design.containers is not None:
        if design.containers.runtime == "oci":
            names += container_conf.OCI_PACKAGES if role == "compute" else container_conf.OCI_TOOLS
        else:
            names += container_conf.ENROOT_REQUIRED
    if role == "controller" or (design.isolation == "vm" and not design.batch):
        names.append(firewall.PACKAGE)
    if role == "controller":
        names.append(name_server.PACKAGE)
        names += clouds.kind(design.provider).packages
        names += ["mariadb-server"] if design.slurm.accounting else []
        # This is for the training environment, which the local stack makes on the host. It is there without a
        # training, too: otherwise an image would change when the benchmark is turned on or off.
        names += ["python3-venv"] if design.isolation == "vm" and design.batch is None else []
    if nfs_guard.needs_nfs_guard(mounts):
        names.append(firewall.PACKAGE)
    logs_in = design.isolation == "vm" and design.batch is None and design.login_hosts()
    if logs_in and logs_in[0].role == role:
        names += FOR_USERS
    return list(dict.fromkeys(names))


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
    # Imported late to save time: every node's boot runs this, but most need neither module.
    if context.role == "controller":
        from node.bootstrap.vm import cloud_client

        installed += cloud_client.install(context)
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
