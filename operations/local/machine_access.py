"""Runs commands on a local cluster's machines: on this host in the head's namespace, or in a container."""

from __future__ import annotations

import os
import pwd
from collections.abc import Sequence

from infra.errors import UserError
from infra.program import folders
from localcloud.machines import has_hosts_namespace, namespace_command
from localcloud.nspawn import enter, leader
from node.bootstrap.report import was_ready
from node.design.model import SHARED
from node.system import foreign
from node.system.processes import ProcessId
from operations.access import TOOL, Command, Files, Inside, StackUp
from operations.local.run_directory import RunDirectory, user

HEAD = "controller"
MACHINE_COMMAND_PATH = "/usr/local/sbin:/usr/sbin:/sbin"
OWN_PATH = f"/opt/slurm-stacks/current/bin:/usr/local/bin:/usr/bin:/bin:{MACHINE_COMMAND_PATH}"
PASSED_ON = ("TERM", "COLORTERM", "COLUMNS", "LINES", "LANG", "LC_ALL", "TZ")
"""Variables of the caller that are passed on, as ssh does; the others belong to another machine."""
ASIDE = "SLURM_STACKS_ASIDE_"
"""How the names begin under which `./cluster` puts variables aside that would change our own Python."""


def run_directory(up: StackUp) -> RunDirectory:
    """Return the run directory of a cluster that may be up.

    Raises:
        UserError: Exit 3. The directory is not ours to read.
    """
    if up.published is None:
        return RunDirectory.of(up.stack)
    login = up.published.cluster.login
    if login is None or login.access is None:
        raise ValueError("the outputs of a cluster without a login machine")
    return RunDirectory(folders.check_run_dir_of(login.access.machine))


def is_up(run: RunDirectory) -> bool:
    """Whether the controller's boot has installed the cluster's own command; a later boot changes nothing."""
    return was_ready(run.boot_report("controller")) if run.containers else run.tool.exists()


def slurm_conf(run: RunDirectory) -> str:
    """Return the path of slurm.conf on the login machine."""
    return "/etc/slurm/slurm.conf" if run.containers else str(run.path / "etc" / "slurm.conf")


def command(run: RunDirectory, argv: Sequence[str], *, controller: bool = False) -> Command:
    """Return the process to start so that `argv` runs on the login machine; an empty `argv` means a shell.

    The cluster's own command runs on the controller, where the queue and its daemon are.

    Args:
        controller: Whether any other command runs there, too.
    """
    shell = os.environ.get("SHELL") or "/bin/sh"
    is_tool = bool(argv) and argv[0] == TOOL
    if not run.containers:
        env = {
            **_missing_of_a_login(),
            "SLURM_CONF": slurm_conf(run),
            "PATH": f"{run.tool.parent}:{os.environ.get('PATH', '/usr/bin:/bin')}:{MACHINE_COMMAND_PATH}",
        }
        # In the head's hosts namespace programs find nodes by name. The cluster's own command needs no names.
        named = has_hosts_namespace(run.path) and not is_tool
        if not (is_tool or controller):
            env |= _put_aside()
        prefix = namespace_command(run.path, HEAD, "--exec") if named else []
        return Command([*prefix, *(argv or [shell])], env)
    machine = _machine(run, HEAD) if is_tool or controller else login(run)
    name = user()
    environment = {
        "PATH": OWN_PATH,
        "SLURM_CONF": slurm_conf(run),
        "HOME": f"{SHARED}/{name}",
        "USER": name,
        "LOGNAME": name,
        "SHELL": shell,
    } | {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    prefix = enter(
        machine[1] if machine else 0,
        environment=[f"{name}={value}" for name, value in environment.items()],
        folder=environment["HOME"],
    )
    return Command([*prefix, *(argv or [shell])], {})


def _missing_of_a_login() -> dict[str, str]:
    """Return what a login would set of this user where the caller has nothing, as in containers and CI.

    Commands and the jobs that they submit have it then, as on a cloud. Some clients of Slurm ask for the jobs
    of `$USER`, and others end without LOGNAME.
    """
    try:
        entry = pwd.getpwuid(os.getuid())
    except KeyError:
        return {}
    usual = {
        "USER": entry.pw_name,
        "LOGNAME": entry.pw_name,
        "HOME": entry.pw_dir,
        "SHELL": entry.pw_shell or "/bin/sh",
    }
    return {name: value for name, value in usual.items() if not os.environ.get(name)}


def _put_aside() -> dict[str, str]:
    """Return the user's variables for Python and uv that `./cluster` has put aside, by their own names."""
    return {name.removeprefix(ASIDE): text for name, text in os.environ.items() if name.startswith(ASIDE)}


def login(run: RunDirectory) -> tuple[str, int] | None:
    """Return host name and first process of the machine that users log in to; `None` if none runs."""
    return _machine(run, "login", HEAD)


def files(run: RunDirectory) -> Files | Inside:
    """Return where the login machine's files are: in folders of this host, or below a root of its own.

    Raises:
        UserError: No login machine runs.
    """
    if not run.containers:
        return lambda path: run.shared / path
    machine = login(run)
    if machine is None:
        raise UserError("no login machine of the cluster runs", code="cluster.no-login-machine")
    environment = [f"PATH={MACHINE_COMMAND_PATH}:/usr/bin:/bin", "LC_ALL=C.UTF-8"]
    return Inside(tuple(enter(machine[1], environment, folder=f"{SHARED}/{user()}")))


def controller(run: RunDirectory) -> int | None:
    """Return the pid of the controller's first process; `None` if the controller does not run."""
    machine = _machine(run, HEAD)
    return None if machine is None else machine[1]


def daemon_socket(run: RunDirectory) -> str:
    """Return the path of the elastic daemon's socket on this host."""
    if not run.containers:
        return str(run.path / "run" / "elastic.sock")
    return f"/proc/{controller(run) or 0}/root/run/slurm-stacks/elastic.sock"


def _machine(run: RunDirectory, *roles: str) -> tuple[str, int] | None:
    """Return host name and first process of a running machine with the first role that any machine has.

    They come from the local cloud's file, so that its agent need not answer.
    """
    try:
        records = foreign.record(run.cloud / "machines.json")["machines"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    for role in roles:
        for record in sorted(records, key=lambda r: str(r["node"])):
            if record["tags"]["role"] != role or record["state"] != "running" or not record["process"]:
                continue
            process = ProcessId(**record["process"])
            first = leader(process) if run.containers else process.pid
            if process.alive() and first is not None:
                return str(record["node"]), first
    return None
