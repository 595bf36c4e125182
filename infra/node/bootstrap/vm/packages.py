"""Which packages a role needs on Ubuntu 24.04, and the kernel that a file system may need first."""

from __future__ import annotations

from infra.node.bootstrap import files
from infra.node.bootstrap.context import Context, Reboot
from infra.node.bootstrap.vm import apt, clouds, mariadb, name_server
from infra.node.model import ClusterDesign

SLURM = {
    "controller": ("slurmctld", "slurm-client"),
    "login": ("slurm-client",),
    "compute": ("slurmd", "slurm-client"),
}
ACCOUNTING = ("slurmdbd", "slurm-wlm-mysql-plugin", "mariadb-server")
MASKED = ("munge.service", "slurmctld.service", "slurmd.service", "slurmdbd.service")
"""What the packages would start with no configuration, or beside ours."""
UPGRADES = ("apt-daily.timer", "apt-daily-upgrade.timer", "unattended-upgrades.service")


def wanted(context: Context) -> list[str]:
    """The packages of this machine, in a steady order."""
    return of_role(context.settings.design, context.role)


def of_role(design: ClusterDesign, role: str) -> list[str]:
    """The packages of a role, in a steady order."""
    mounts = [mount for mount in design.mounts if role in mount.roles]
    kinds = {mount.kind for mount in mounts}
    names = ["munge", "chrony", *SLURM[role]]
    if kinds & {"nfs", "efs", "filestore"}:
        names.append("nfs-common")
    if role == "controller" and any(mount.served_by == "controller" for mount in mounts):
        names.append("nfs-kernel-server")
    if "nvme" in kinds:
        names.append("mdadm")
    if role == "controller":
        names += ["nftables", name_server.PACKAGE]
        names += clouds.kind(design.provider).packages
        names += ACCOUNTING if design.slurm.accounting else []
        # For the training environment, which the local stack makes on its host.
        names += ["python3-venv"] if design.trains and design.machines == "vm" else []
    return list(dict.fromkeys(names))


def install(context: Context) -> str:
    """Raises:
    Reboot: another kernel has been installed, and has to run first.
    """
    apt.mask(context, *MASKED)
    # A node lives for a job: upgrades behind its back cost time and may take its kernel away.
    if context.role == "compute" and (running := apt.mask(context, *UPGRADES)):
        context.run("systemctl", "stop", *running, allow=(0, 5))
    name, source = clouds.of(context.settings).time
    files.place(files.folder(context.at("etc/chrony/sources.d")) / name, source.encode())
    accounting = context.role == "controller" and context.settings.design.slurm.accounting
    if accounting:
        mariadb.configure(context)
    made = apt.install(context, wanted(context))
    if accounting:
        mariadb.leave_to_us(context)
    # Imported where they are used: every node's boot comes by here, and most have a use for neither.
    if context.role == "controller":
        from infra.node.bootstrap.vm import client

        made += client.install(context)
    if any(mount.kind == "fsx_lustre" for mount in context.mounts()):
        from infra.node.bootstrap.vm import lustre

        kernel, more = lustre.install(context, fresh=bool(made))
        made += more
        if kernel is not None:
            raise Reboot(f"installed Linux {kernel}, for which there is a Lustre client")
    return f"installed {', '.join(made)}" if made else "all are there"
