"""How a command gets onto a local cluster's machines: this host in the head's view, or into a container."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from infra.errors import UserError
from infra.local.cloud.containers import APPS, SHARED
from infra.local.cloud.machines import has_view, view_of
from infra.local.cloud.nspawn import enter, leader
from infra.local.site import RunDirectory, user
from infra.node.processes import ProcessId
from infra.provider import TOOL, Command, Files

HEAD = "controller"
MACHINE_COMMAND_PATH = "/usr/local/sbin:/usr/sbin:/sbin"
OWN_PATH = f"/opt/slurm-stacks/current/bin:/usr/local/bin:/usr/bin:/bin:{MACHINE_COMMAND_PATH}"
PASSED_ON = ("TERM", "COLORTERM", "COLUMNS", "LINES", "LANG", "LC_ALL", "TZ")
"""Of the caller's environment, as ssh does: the rest is of another machine."""


def is_up(run: RunDirectory) -> bool:
    """Whether the controller's machine has come so far that it has the cluster's own command."""
    if not run.containers:
        return run.tool.exists()
    try:
        state = json.loads((run.bucket / "boot" / "controller.json").read_text())["state"]
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return bool(state == "ready")


def command(run: RunDirectory, argv: Sequence[str]) -> Command:
    """The process to start for `argv` (empty: a shell) to run on the login machine.

    The cluster's own command runs where the queue and its daemon are.
    """
    shell = os.environ.get("SHELL", "/bin/sh")
    if not run.containers:
        env = {
            "SLURM_CONF": str(run.path / "etc" / "slurm.conf"),
            "PATH": f"{run.tool.parent}:{os.environ.get('PATH', '/usr/bin:/bin')}:{MACHINE_COMMAND_PATH}",
        }
        return Command([*_view(run, argv), *(argv or [shell])], env)
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


def _view(run: RunDirectory, argv: Sequence[str]) -> list[str]:
    """The head's view of this host, in which nodes' names lead to them; our own tool needs none."""
    ours = bool(argv) and argv[0] == TOOL
    return view_of(run.path, HEAD, "--exec") if has_view(run.path) and not ours else []


def login(run: RunDirectory) -> tuple[str, int] | None:
    """The host name and the first process of the machine that people log in to."""
    for role in ("login", "controller"):
        if (found := _machine(run, role)) is not None:
            return found
    return None


def files(run: RunDirectory) -> Files:
    """Where paths of the login machine lie on this one."""
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
            raise UserError("no machine of the cluster runs that people could log in to")
        return Path(f"/proc/{machine[1]}/root", *inside.parts[1:])

    return here


def controller(run: RunDirectory) -> int | None:
    """The pid of the controller's first process, where it is on."""
    return _first(run, "controller")


def daemon_socket(run: RunDirectory) -> str:
    """The elastic daemon's socket, as this machine sees it."""
    if not run.containers:
        return str(run.path / "run" / "elastic.sock")
    return f"/proc/{controller(run) or 0}/root/run/slurm-stacks/elastic.sock"


def _first(run: RunDirectory, role: str) -> int | None:
    found = _machine(run, role)
    return None if found is None else found[1]


def _machine(run: RunDirectory, role: str) -> tuple[str, int] | None:
    """Host and first process, as the local cloud has written them down: its agent need not answer."""
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
