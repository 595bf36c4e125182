"""Daemons as units of systemd's, which are of our own writing and last until the machine is off.

They lie in /run: after a reboot nothing runs until the boot's steps have mounted what it needs. The
distribution's own units are masked (`packages`).
"""

from __future__ import annotations

from pathlib import Path

from infra.node.bootstrap import files
from infra.node.bootstrap.command import CommandError, Runner
from infra.node.bootstrap.services import RESTART_PAUSE_SECONDS, Service

UNITS = Path("/run/systemd/system")
PREFIX = "slurm-stacks-"
START_SECONDS = 60.0
STOP_SECONDS = 100.0

# As in Slurm's own units. slurmd: jobs go on while it starts again, in cgroups that it makes itself.
LIMITS = "LimitNOFILE=131072\nTasksMax=infinity\n"
OWN_LINES = {
    "slurmd": "Delegate=yes\nKillMode=process\nLimitMEMLOCK=infinity\nLimitSTACK=infinity\n",
    # A program that it has started for a node or a job ends by itself.
    "slurmctld": "KillMode=mixed\n",
}
AFTER = {
    # Which stops first then: it has something to tell Slurm while the machine is being switched off.
    "notices": "slurm-stacks-munged.service slurm-stacks-slurmd.service",
}
UNIT = """\
# Written by slurm-stacks at each boot.
[Unit]
Description=slurm-stacks: {name}
After={after}
StartLimitIntervalSec=0

[Service]
Type=exec
{before}ExecStart={command}
{environment}{user}StandardOutput=append:{log}
StandardError=append:{log}
Restart=always
RestartSec={pause:g}
{limits}"""


class SystemdServices:
    """Args:
    units: where systemd looks for what lasts until the machine is off.
    """

    def __init__(self, run: Runner, units: Path = UNITS) -> None:
        self._run = run
        self._units = units

    def start(self, service: Service) -> int:
        """Start it with what is now to be its unit, in place of one that runs.

        Raises:
            CommandError: systemd could not; the unit's last lines are with it.
        """
        unit = f"{PREFIX}{service.name}.service"
        service.log.parent.mkdir(parents=True, exist_ok=True)
        self._units.mkdir(parents=True, exist_ok=True)
        file = self._units / unit
        new = not file.exists()
        # systemd reads a unit that is new when it is asked for it; to read all of them anew takes time.
        if files.place(file, text(service).encode()) and not new:
            self._run("systemctl", "daemon-reload")
        try:
            self._run("systemctl", "restart", unit, timeout=START_SECONDS)
        except CommandError as error:
            error.add_note(self._run("journalctl", "--unit", unit, "--lines=10", "--no-pager", allow=(0, 1)))
            raise
        return int(self._run("systemctl", "show", "--property=MainPID", "--value", unit).strip() or 0)

    def stop(self, name: str) -> None:
        unit = f"{PREFIX}{name}.service"
        if (self._units / unit).exists():
            self._run("systemctl", "stop", unit, timeout=STOP_SECONDS)

    def tend(self) -> None:
        """systemd does."""

    def keep(self) -> None:
        """systemd does."""


def text(service: Service) -> str:
    """The unit's file."""
    return UNIT.format(
        name=service.name,
        after=" ".join(("network-online.target", AFTER.get(service.name, ""))).strip(),
        command=" ".join(quoted(word).replace("$", "$$") for word in service.argv),
        # As root, whoever runs the service; should it fail, the service starts all the same.
        before=f"ExecStartPre=-+{quoted(service.before)}\n" if service.before else "",
        environment="".join(f"Environment={quoted(f'{k}={v}')}\n" for k, v in service.env.items()),
        user=f"User={service.user}\n" if service.user else "",
        log=service.log,
        pause=RESTART_PAUSE_SECONDS,
        limits=LIMITS + OWN_LINES.get(service.name, ""),
    )


def quoted(word: str) -> str:
    """A word of a unit's line: nothing in it is an expansion of systemd's, except `$` in a command."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("\n", "\\n")
    return f'"{escaped}"'
