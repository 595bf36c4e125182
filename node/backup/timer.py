"""The timer, as units that exist until the machine is off, as the other ones of the boot."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from node.bootstrap.systemd_services import PREFIX, UNITS
from node.system import files, plurals

if TYPE_CHECKING:
    from node.bootstrap.context import Context
from node.backup.schedule import FIRST_SECONDS, LOOK_MINUTES

NAME = f"{PREFIX}backup"
TIMER = f"""\
# Written by slurm-stacks at each boot.
[Unit]
Description=slurm-stacks: looks whether a backup is due

[Timer]
OnActiveSec={FIRST_SECONDS}
OnUnitInactiveSec={LOOK_MINUTES}min
"""
SERVICE = """\
# Written by slurm-stacks at each boot.
[Unit]
Description=slurm-stacks: a backup, if one is due

[Service]
Type=oneshot
ExecStart={tool} backup --scheduled
Nice=10
IOSchedulingClass=idle
StandardOutput=append:{log}
StandardError=append:{log}
"""


def set_timer(context: Context, units: Path = UNITS) -> str | None:
    """Start the timer, or stop it where the stack file has no schedule, and return a note."""
    timer, service = units / f"{NAME}.timer", units / f"{NAME}.service"
    wanted = context.settings.design.backup
    if wanted is None:
        if timer.exists():
            context.run("systemctl", "stop", timer.name)
            timer.unlink()
            service.unlink(missing_ok=True)
        return None
    units.mkdir(parents=True, exist_ok=True)
    text = SERVICE.format(
        tool=context.folders.code / "bin" / "slurm-stacks", log=context.folders.log / "backup.log"
    )
    changed = [files.write(timer, TIMER.encode()), files.write(service, text.encode())]
    if any(changed):
        context.run("systemctl", "daemon-reload")
    context.run("systemctl", "start", timer.name)
    every = plurals.count(wanted.every_hours, "hour")
    return f"a backup to {wanted.bucket} every {every}"
