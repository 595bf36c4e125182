"""Runs commands on a local cluster's machines: on this host in the head's namespace, or in a container."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from cli.local.site import RunDirectory, user
from cli.provider import TOOL, Command, Files
from infra.errors import UserError
from localcloud.machines import has_hosts_namespace, namespace_command
from localcloud.nspawn import enter, leader
from node.bootstrap.report import was_ready
from node.model import APPS, SHARED
from node.processes import ProcessId

HEAD = "controller"
MACHINE_COMMAND_PATH = "/usr/local/sbin:/usr/sbin:/sbin"
OWN_PATH = f"/opt/slurm-stacks/current/bin:/usr/local/bin:/usr/bin:/bin:{MACHINE_COMMAND_PATH}"
PASSED_ON = ("TERM", "COLORTERM", "COLUMNS", "LINES", "LANG", "LC_ALL", "TZ")
"""Variables of the caller that are passed on, as ssh does; the others belong to another machine."""


def is_up(run: RunDirectory) -> bool:
    """Whether the controller's boot has installed the cluster's own command; a later boot changes nothing."""
    return was_ready(run.boot_report("controller")) if run.containers else run.tool.exists()


def command(run: RunDirectory, argv: Sequence[str]) -> Command:
    """Return the process to start so that `argv` runs on the login machine; an empty `argv` means a shell.

    The cluster's own command runs on the controller, where the queue and its daemon are.
    """
    shell = os.environ.get("SHELL", "/bin/sh")
    if not run.containers:
        env = {
            "SLURM_CONF": str(run.path / "etc" / "slurm.conf"),
            "PATH": f"{run.tool.parent}:{os.environ.get('PATH', '/usr/bin:/bin')}:{MACHINE_COMMAND_PATH}",
        }
        return Command([*_namespace(run, argv), *(argv or [shell])], env)
    pid = controller(run) if argv and argv[0] == TOOL else _first(run, "login") or controller(run)
    name = user()
    environment = {
        "PATH": OWN_PATH,
        "SLURM_CONF": "/etc/slurm/slurm.conf",
        "HOME": f"{SHARED}/{name}",
        "USER": name,
        "LOGNAME": name,
        "SHELL": shell,
    } | {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    prefix = enter(
        pid or 0,
        environment=[f"{name}={value}" for name, value in environment.items()],
        folder=environment["HOME"],
    )
    return Command([*prefix, *(argv or [shell])], {})


def _namespace(run: RunDirectory, argv: Sequence[str]) -> list[str]:
    """Return the command that enters the head's hosts namespace, which has the nodes' names.

    The cluster's own command needs no names, so it runs without.
    """
    ours = bool(argv) and argv[0] == TOOL
    return namespace_command(run.path, HEAD, "--exec") if has_hosts_namespace(run.path) and not ours else []


def login(run: RunDirectory) -> tuple[str, int] | None:
    """Return host name and first process of the machine that users log in to; `None` if none runs."""
    for role in ("login", "controller"):
        if (found := _machine(run, role)) is not None:
            return found
    return None


def files(run: RunDirectory) -> Files:
    """Return a function that converts a path on the login machine to its path on this host."""
    if not run.containers:
        return lambda path: run.shared / path
    name = user()
    machine = login(run)

    def here(path: str) -> Path:
        inside = PurePosixPath("/", SHARED, name, path)
        for folder, lies in ((SHARED, run.shared), (APPS, run.apps)):
            if inside.is_relative_to(folder):
                return lies / inside.relative_to(folder)
        if machine is None:
            raise UserError("no login machine of the cluster runs")
        return Path(f"/proc/{machine[1]}/root", *inside.parts[1:])

    return here


def controller(run: RunDirectory) -> int | None:
    """Return the pid of the controller's first process; `None` if the controller does not run."""
    return _first(run, "controller")


def daemon_socket(run: RunDirectory) -> str:
    """Return the path of the elastic daemon's socket on this host."""
    if not run.containers:
        return str(run.path / "run" / "elastic.sock")
    return f"/proc/{controller(run) or 0}/root/run/slurm-stacks/elastic.sock"


def _first(run: RunDirectory, role: str) -> int | None:
    found = _machine(run, role)
    return None if found is None else found[1]


def _machine(run: RunDirectory, role: str) -> tuple[str, int] | None:
    """Return host name and first process from the local cloud's file, so that its agent need not answer."""
    try:
        records = json.loads((run.cloud / "machines.json").read_text())["machines"]
    except (OSError, ValueError, KeyError):
        return None
    for record in sorted(records, key=lambda r: str(r["node"])):
        process = ProcessId(**record["process"]) if record["process"] else None
        if record["tags"]["role"] == role and record["state"] == "running" and process and process.alive():
            first = leader(process) if run.containers else process.pid
            if first is not None:
                return str(record["node"]), first
    return None
