"""The role `image`: a machine that does those steps of a boot that an image can hold, and becomes one.

It installs packages, drivers, and the kernel for Lustre; it mounts nothing, joins nothing, starts nothing.
What belongs to one machine or one cluster goes again before it ends: keys, names, settings, the code itself.
On a machine that boots from the image each step finds its work done.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from infra.node import words
from infra.node.bootstrap import files, limits, own
from infra.node.bootstrap.command import CommandError, Runner, run
from infra.node.bootstrap.context import Context, SkipStep, Step
from infra.node.bootstrap.execute import run_steps
from infra.node.bootstrap.report import BootReport, file_sink
from infra.node.bootstrap.vm import clouds, drivers, images, machine, packages
from infra.node.bootstrap.vm.images import ImageKind
from infra.node.model import Folders, Settings

STATUS: Mapping[str, int] = {"ready": 0, "failed": 1, "rebooting": 194}
"""Exit statuses by the report's state. 194 is what EC2 Image Builder takes for "start the machine again, then
this step again"."""

SECRETS = (
    # The munge package makes one at its installation; no image may bring a key along.
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
    # The last: what runs here comes from there.
    "opt/slurm-stacks",
)
"""A machine that boots from the image is told anew where its code is."""


def bake(
    settings: Settings,
    settings_file: Path,
    host: str,
    bucket: str,
    *,
    power_off: bool = False,
    runner: Runner = run,
) -> int:
    """Make this machine what the image `host` holds. Returns the exit status, by `STATUS`.

    Args:
        host: `image-<kind>`, the name of its boot report.
        power_off: the machine is nobody's but ours: it restarts itself where it must, and stops at the end.
            One that fails stops as well: its report says why, and its disk is as the failure left it.
    """
    kind = images.named(settings.design, host)
    folders = Folders(settings)
    _, sink, services = machine.begin(settings, host, bucket)
    # In /run: not on the disk that becomes the image.
    local = Path(str(folders.run)) / "boot.json"
    report = BootReport(host, images.ROLE, [file_sink(local), sink])
    # Its packages and mounts are those of the role that it will have.
    context = Context(settings, settings_file, kind.role, host, folders, services, report, runner)
    run_steps(context, steps(kind), restart=None if power_off else _leave_it)
    state = str(report.content["state"])
    if power_off and state != "rebooting":
        context.run("systemctl", "poweroff")
    return STATUS[state]


def steps(kind: ImageKind) -> list[Step]:
    """What an image of a kind holds, in the order of a boot's steps; then what it must not hold."""
    role = frozenset({kind.role})
    return [
        Step("users", limits.USERS, role, own.users),
        Step("packages", limits.PACKAGES, role, packages.install),
        Step("accelerators", limits.ACCELERATORS, role, lambda context: _drivers(context, kind)),
        Step("logs", limits.LOGS, role, _agent),
        Step("clean", 120, role, clean),
    ]


def clean(context: Context) -> str:
    """Remove what belongs to this machine, to this cluster, or to nobody."""
    design = context.settings.design
    if context.role == "controller" and design.slurm.accounting:
        # Its files are whole then, whenever the disk is copied.
        context.run("systemctl", "stop", "mariadb", timeout=60.0, allow=(0, 5))
    context.run("apt-get", "clean", timeout=60.0)
    # It would take the new machine for this one, and give it neither keys nor user data.
    context.run("cloud-init", "clean", "--logs", timeout=60.0)
    gone = _remove(context, (*SECRETS, *STATE))
    # Empty, not missing: systemd then makes one at the next boot, and counts that as the first.
    files.place(context.at("etc/machine-id"), b"", 0o444)
    gone += _remove(context, OWN)
    os.sync()
    return f"removed {words.count(gone, 'file or folder', 'files and folders')} of one machine or one cluster"


def _drivers(context: Context, kind: ImageKind) -> str:
    placed = drivers.place(context, kind.partition) if kind.partition is not None else []
    if not placed:
        raise SkipStep("these machines need none")
    return f"placed {', '.join(placed)}"


def _agent(context: Context) -> str:
    try:
        clouds.of(context.settings).have_agent(context)
    except (OSError, CommandError) as error:
        # As at a boot, which tries again.
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


def _leave_it() -> None:
    """Whoever has started this restarts the machine, by the exit status."""
