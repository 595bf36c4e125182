"""Runs daemons as systemd units that we write, and that exist until the machine is off.

The units are in /run: after a reboot no daemon runs until the boot's steps have mounted what it needs. The
distribution's own units are masked (`packages`).
"""

from __future__ import annotations

from pathlib import Path

from node.bootstrap.command import CommandError, Runner
from node.bootstrap.services import RESTART_PAUSE_SECONDS, Service
from node.system import files

UNITS = Path("/run/systemd/system")
PREFIX = "slurm-stacks-"
UNIT_START_SECONDS = 60.0
UNIT_STOP_SECONDS = 100.0

# As in Slurm's own units. Jobs go on while slurmd restarts, in cgroups that slurmd makes itself.
LIMITS = "LimitNOFILE=131072\nTasksMax=infinity\n"
OWN_LINES = {
    "slurmd": "Delegate=yes\nKillMode=process\nLimitMEMLOCK=infinity\nLimitSTACK=infinity\n",
    # Programs that slurmctld has started for a node or a job end by themselves.
    "slurmctld": "KillMode=mixed\n",
}
AFTER = {
    # With this it stops before those daemons: it may have to report to Slurm while the machine goes off.
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
{condition}{before}ExecStart={command}
{last}{environment}{user}StandardOutput=append:{log}
StandardError=append:{log}
Restart=always
RestartSec={pause:g}
{limits}"""


class SystemdServices:
    """The service manager of whole machines.

    Args:
        run: Runs commands.
        units: systemd's folder of units that exist until the machine is off.
    """

    def __init__(self, run: Runner, units: Path = UNITS) -> None:
        self._run = run
        self._units = units

    def start(self, service: Service) -> int:
        """Start a service with its present unit, replace a running one, and return its pid.

        Raises:
            CommandError: systemd could not start it. The error has the unit's last log lines, or names the
                condition that does not allow the start.
        """
        unit = f"{PREFIX}{service.name}.service"
        service.log.parent.mkdir(parents=True, exist_ok=True)
        self._units.mkdir(parents=True, exist_ok=True)
        file = self._units / unit
        new = not file.exists()
        # systemd reads a new unit when it is started. Only a changed one needs the slow reload of all units.
        if files.write(file, unit_text(service).encode()) and not new:
            self._run("systemctl", "daemon-reload")
        try:
            self._run("systemctl", "restart", unit, timeout=UNIT_START_SECONDS)
        except CommandError as error:
            error.add_note(self._run("journalctl", "--unit", unit, "--lines=10", "--no-pager", allow=(0, 1)))
            raise
        pid = int(self._run("systemctl", "show", "--property=MainPID", "--value", unit).strip() or 0)
        if service.condition is not None and not pid:
            raise CommandError(f"{service.name} did not start: {service.condition} does not allow it", 1)
        return pid

    def stop(self, name: str) -> None:
        unit = f"{PREFIX}{name}.service"
        if (self._units / unit).exists():
            self._run("systemctl", "stop", unit, timeout=UNIT_STOP_SECONDS)

    def tend(self) -> None:
        """Do nothing, because systemd restarts services."""

    def keep(self) -> None:
        """Do nothing, because systemd restarts services."""


def unit_text(service: Service) -> str:
    """Return the content of the unit's file."""
    return UNIT.format(
        name=service.name,
        after=" ".join(("network-online.target", AFTER.get(service.name, ""))).strip(),
        command=" ".join(quoted(word).replace("$", "$$") for word in service.argv),
        # The program runs as root, whatever the service's user is. Its failure does not stop the service.
        before=f"ExecStartPre=-+{quoted(service.before)}\n" if service.before else "",
        last=f"ExecStop=-{quoted(service.last)}\n" if service.last else "",
        condition=f"ExecCondition={quoted(service.condition)}\n" if service.condition else "",
        environment="".join(f"Environment={quoted(f'{k}={v}')}\n" for k, v in service.env.items()),
        user=f"User={service.user}\n" if service.user else "",
        log=service.log,
        pause=RESTART_PAUSE_SECONDS,
        limits=LIMITS + OWN_LINES.get(service.name, ""),
    )


def quoted(word: str) -> str:
    """Quote a word for a unit's line, so that systemd expands nothing in it (except `$` in a command)."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("\n", "\\n")
    return f'"{escaped}"'
