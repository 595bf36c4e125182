"""The role `image`: a machine runs the steps whose results an image can hold, and becomes an image.

The machine installs packages, drivers, and the kernel for Lustre. It mounts nothing, joins no cluster, and
starts no daemons. Before its end it removes what belongs to one machine or one cluster: keys, names,
settings, and the code itself. On a machine that boots from the image each step finds its work done.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from node.bootstrap import machine_steps
from node.bootstrap.command import CommandError, Runner, run
from node.bootstrap.context import Context, SkipStep, Step
from node.bootstrap.report import BootReport, file_sink
from node.bootstrap.step_runner import run_steps
from node.bootstrap.vm import clouds, drivers, images, machine, packages
from node.bootstrap.vm.images import ImageKind
from node.design import time_limits
from node.design.folders import Folders
from node.design.model import ClusterDesign, Settings
from node.system import files, plurals

STATUS: Mapping[str, int] = {"ready": 0, "failed": 1, "rebooting": 194}
"""The report's state -> the exit status. For EC2 Image Builder, 194 means "restart the machine, then repeat
this step"."""

SECRETS = (
    # The munge package makes a key at its installation. No image may have one.
    "etc/munge/munge.key",
    "etc/ssh/ssh_host_*",
    "root/.ssh/authorized_keys",
    "home/*/.ssh/authorized_keys",
    "var/lib/systemd/random-seed",
    "var/lib/systemd/credential.secret",
)
STATE = (
    "var/lib/apt/lists/*",
    "var/lib/dbus/machine-id",
    "var/lib/dhcp/*",
    "var/log/journal/*",
    "var/log/munge/*",
    "var/tmp/slurm-stacks*",
    "root/.bash_history",
    "home/*/.bash_history",
)
OWN = (
    "etc/systemd/system/multi-user.target.wants/slurm-stacks-boot.service",
    "etc/systemd/system/slurm-stacks-boot.service",
    "var/lib/slurm-stacks",
    # This is the last, because the running code is in it.
    "opt/slurm-stacks",
)
"""A machine that boots from the image gets its own unit and code by its user data."""


def bake(
    settings: Settings,
    settings_file: Path,
    host: str,
    bucket: str,
    *,
    power_off: bool = False,
    runner: Runner = run,
) -> int:
    """Prepare this machine to become an image, and return the exit status (`STATUS`).

    Args:
        host: `image-<kind>`, which is also the name of the boot report.
        power_off: Whether the machine restarts itself if it must, and stops at the end. It also stops after a
            failure. Then the report says why, and the disk stays as it is.
    """
    kind = images.named(settings.design, host)
    folders = Folders(settings)
    _, sink, services = machine.begin(settings, host, bucket)
    # The report is in /run, which is not on the disk that becomes the image.
    local = Path(str(folders.run)) / "boot.json"
    report = BootReport(host, images.ROLE, [file_sink(local), sink])
    # The machine has the packages and mounts of its later role.
    context = Context(settings, settings_file, kind.role, host, folders, services, report, runner)
    run_steps(context, steps(kind, settings.design), restart=None if power_off else _leave_restart)
    state = str(report.content["state"])
    if power_off and state != "rebooting":
        context.run("systemctl", "poweroff")
    return STATUS[state]


def steps(kind: ImageKind, design: ClusterDesign) -> list[Step]:
    """Return the steps whose results an image holds, in the order of a boot, and the step that cleans up."""
    role = frozenset({kind.role})
    longest = time_limits.PACKAGES + (time_limits.SOURCE if design.slurm.source is not None else 0)
    return [
        Step("users", time_limits.USERS, role, machine_steps.users),
        Step("packages", longest, role, packages.install),
        Step("accelerators", time_limits.ACCELERATORS, role, lambda context: _drivers(context, kind)),
        Step("logs", time_limits.LOGS, role, _agent),
        Step("clean", 120, role, clean),
    ]


def clean(context: Context) -> str:
    """Remove files that belong to this machine or this cluster, and temporary files."""
    design = context.settings.design
    if context.role == "controller" and design.slurm.accounting:
        # The database's files are consistent after its stop, whenever the disk is copied.
        context.run("systemctl", "stop", "mariadb", timeout=60.0, allow=(0, 5))
    context.run("apt-get", "clean", timeout=60.0)
    # Otherwise cloud-init would mistake a new machine for this one, and give it neither keys nor user data.
    # Debian's images on Google Cloud have none (127).
    context.run("cloud-init", "clean", "--logs", timeout=60.0, allow=(0, 127))
    gone = _remove(context, (*SECRETS, *STATE))
    # The file is empty, not missing: systemd then makes an id at the next boot and treats it as the first.
    files.write(context.at("etc/machine-id"), b"", 0o444)
    gone += _remove(context, OWN)
    os.sync()
    return (
        f"removed {plurals.count(gone, 'file or folder', 'files and folders')} of one machine or one cluster"
    )


def _drivers(context: Context, kind: ImageKind) -> str:
    placed = drivers.install_unloaded(context, kind.partition) if kind.partition is not None else []
    if not placed:
        raise SkipStep("these machines need none")
    return f"placed {', '.join(placed)}"


def _agent(context: Context) -> str:
    try:
        clouds.of(context.settings).install_agent(context)
    except (OSError, CommandError) as error:
        # The step is skipped as at a boot. A boot from the image tries again.
        raise SkipStep(str(error).splitlines()[0]) from error
    return "the agent is there"


def _remove(context: Context, patterns: Iterable[str]) -> int:
    root, gone = context.at(""), 0
    for pattern in patterns:
        for path in sorted(root.glob(pattern)):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
            gone += 1
    return gone


def _leave_restart() -> None:
    """Do nothing. The program that started this one restarts the machine because of the exit status."""
