"""The programs that slurm.conf names on nodes: the health check, the prolog and the epilog of jobs.

Every node has them since its boot, whether slurm.conf names them or not: a stack file may ask for them later,
and a prolog that is missing would make Slurm drain the node. What they do follows from the settings that the
node booted with, and is nothing where these ask for nothing.
"""

from __future__ import annotations

import os
import stat
import sys
import time
from pathlib import Path

from node.design.folders import Folders
from node.design.health import EPILOG, PROLOG, JobScript
from node.design.model import Settings
from node.design.published import read_settings
from node.health.check import Expected, When, expected, faults, in_a_line
from node.health.tools import OWN_FOLDERS, runner
from node.slurm.control import Control, SlurmError
from node.slurm.environment import PATH
from node.system import executables, foreign, subprocesses

HEALTH_CHECK = "node-health"
NAMES = (HEALTH_CHECK, PROLOG, EPILOG)
"""The names of the programs in `<code>/bin`."""
REASON = "slurm-stacks health: "
"""The beginning of the reason of a node that failed. The elastic daemon replaces such nodes."""
PRETENDED = "bin"
"""The folder of the run directory with stand-ins for the tools of devices that process machines pretend."""
SCONTROL_SECONDS = 20.0


def write(settings: Settings, settings_file: Path) -> None:
    """Write the programs to `<code>/bin`."""
    # Imported late: the programs themselves need nothing of it.
    from node.elastic.programs import place_python

    for name in NAMES:
        place_python(settings, name, "node.health.programs", f"main({name!r}, {str(settings_file)!r})")
    if not Folders(settings).process:
        _write_users_prolog(settings, settings_file)


def _write_users_prolog(settings: Settings, settings_file: Path) -> None:
    """Put the look at the stack file's users before what else a prolog does."""
    # Imported late: process machines have no users of their own.
    from node.bootstrap.vm import users_prolog
    from node.elastic.programs import place, place_python

    call = f"main({str(settings_file)!r})"
    place_python(settings, users_prolog.PROGRAM, "node.bootstrap.vm.users_prolog", call)
    call = f"main({PROLOG!r}, {str(settings_file)!r})"
    checks = place_python(settings, f"{PROLOG}-checks", "node.health.programs", call)
    design = settings.design
    asked = design.health is not None or design.slurm.prolog is not None
    text = users_prolog.prolog_text(Folders(settings), str(checks) if asked else "true")
    place(Path(str(Folders(settings).code)) / "bin" / PROLOG, text)


def tool_path(folders: Folders) -> str:
    """Return the PATH on which tools are looked for."""
    folders_before = [str(folders.root / PRETENDED)] if folders.process else []
    return ":".join([*folders_before, "/usr/local/sbin", "/usr/local/bin", PATH, *OWN_FOLDERS])


def look(settings: Settings, node: str, wanted: Expected, when: When) -> list[str]:
    """Return what is wrong with this node's devices."""
    tool = runner({"PATH": tool_path(Folders(settings)), "LC_ALL": "C.UTF-8", "SLURMD_NODENAME": node})
    return faults(wanted, when, tool)


def main(program: str, settings_file: str) -> int:
    """Run one of the programs on the node of SLURMD_NODENAME.

    Returns:
        The exit status. Slurm drains a node whose prolog or epilog ends with another status than 0, and
        queues the job again after a prolog. The health check drains by itself and always returns 0: while it
        returns another status, a slurmd that starts does not register.
    """
    node = os.environ.get("SLURMD_NODENAME", "")
    try:
        settings = read_settings(Path(settings_file))
    except (OSError, ValueError) as error:
        # The node's boot could read the settings. Without them it is not known what to check.
        print(f"{settings_file}: {error}", file=sys.stderr)
        return 0
    wanted = None if program == EPILOG else expected(settings.design, node)
    if wanted is not None:
        when = When.PROLOG if program == PROLOG else When.INTERVAL
        if problems := look(settings, node, wanted, when):
            _drain(settings, node, in_a_line(problems))
            if program == PROLOG:
                return 1
    script = {PROLOG: settings.design.slurm.prolog, EPILOG: settings.design.slurm.epilog}.get(program)
    return _run_script(settings, node, program, script) if script is not None else 0


def _drain(settings: Settings, node: str, text: str) -> None:
    """Drain the node with the cause. A node that is drained already keeps the reason that it has."""
    control = Control(Folders(settings).slurm_conf, SCONTROL_SECONDS)
    try:
        state = control.node(node)
        if state is None or not state.is_drained:
            control.update_node([node], state="DRAIN", reason=REASON + text)
    except (
        SlurmError
    ) as error:  # the next check tries again; Slurm drains the node for a script's status, too
        print(f"{node}: {text}; not drained: {error}", file=sys.stderr)


def _why(file: Path) -> object:
    """Return why a script cannot be started; `None` if its first bytes do not tell."""
    try:
        with file.open("rb") as script:
            first = script.read(executables.FIRST_BYTES)
    except OSError:
        return None
    return executables.fault_here(first, file.name)


def _run_script(settings: Settings, node: str, program: str, script: JobScript) -> int:
    """Run a user's script with Slurm's variables, and write what it prints to a log of the last run.

    Where it fails the node is drained with the cause: Slurm's own reason says no more than `Prolog error`.
    """
    folders = Folders(settings)
    file = Path(str(folders.code)) / script.archived(program)
    log = Path(str(folders.log)) / f"{program}-{node}.log"
    environment = {"PATH": tool_path(folders), "HOME": "/", **os.environ}
    began = time.monotonic()
    with foreign.log(log, anew=True) as output:
        try:
            file.chmod(file.stat().st_mode | stat.S_IXUSR)
            status = subprocesses.run([str(file)], environment, script.timeout, output=output).status
            ended = (
                f"was not done after {script.timeout} s" if status is None else f"ended with status {status}"
            )
        except OSError as error:
            status, ended = 1, f"cannot be started: {_why(file) or error}"
        took = time.monotonic() - began
        job = os.environ.get("SLURM_JOB_ID", "?")
        output.write(f"job {job}: {script.source} {ended}, {took:.1f} s\n".encode())
    if status != 0:
        _drain(settings, node, f"the {program} {script.source} {ended}")
    return 1 if status is None else min(abs(status), 255)
