"""The small programs that Slurm calls, and the elastic daemon's service.

Slurm's traps (docs/internals/slurm_traps.md): bare-programs, requeued-gpus.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from node.bootstrap.services import Service
from node.design.folders import Folders
from node.design.model import Settings
from node.slurm import environment
from node.system import files

NAMES = ("resume", "resume-fail", "suspend", "prolog-slurmctld")
RECORD = "record-changes"
EPILOG = "epilog-slurmctld"
EPILOG_SECONDS = 110
"""How long the epilog waits: longer than a job takes to end (KillWait, then DOWN), and less than
PrologEpilogTimeout."""
EPILOG_TEXT = """\
#!/bin/sh
# Written by slurm-stacks. Waits until all nodes of the job have released it: they have ended it, or are lost.
# slurmctld before 24.11 does not clean up a job that is requeued if its node is lost before it has ended it:
# the job's next run has no GPUs, or never begins. While this epilog runs, slurmctld does clean up, after it.
exec </dev/null
PATH={path}
looks=0
while [ "$looks" -lt {seconds} ]; do
    # Usually this takes a tenth of a second.
    if [ "$looks" -lt 5 ]; then sleep 0.1; else sleep 1; fi
    # Only the line of the state counts: a node's reason or comment may hold the word as well.
    {slurm} scontrol show node "$SLURM_JOB_NODELIST" 2>/dev/null |
        grep -q '^ *State=[^ ]*COMPLETING' || exit 0
    looks=$((looks + 1))
done
"""


def write(settings: Settings, settings_file: Path) -> None:
    """Write the programs that slurm.conf names, to `<code>/bin`.

    Slurm calls them without PATH and SLURM_CONF, so everything that they need is written into them.
    """
    folders = Folders(settings)
    code = Path(str(folders.code))
    for name in (*NAMES, RECORD):
        call = f"main({name!r}, {str(folders.daemon_socket)!r}, {str(folders.elastic / 'requests')!r})"
        place_python(settings, name, "node.elastic.client", call)
    slurm = shlex.join(environment.words(folders.slurm_conf))
    text = EPILOG_TEXT.format(path=environment.PATH, slurm=slurm, seconds=EPILOG_SECONDS)
    _place(code / "bin" / EPILOG, text)
    write_tool(settings, settings_file)
    if (condition := holds_state(settings)) is not None:
        # Imported late, because process machines do not have it.
        from node.bootstrap.vm import state_guard

        status = str(state_guard.status_file(folders.run))
        place_python(settings, Path(condition).name, "node.bootstrap.vm.state_guard", f"main({status!r})")
    place_python(settings, configure(settings).name, "node.slurm.configure", f"main({str(settings_file)!r})")
    # The folder is made here and not by the clients: they may find the daemon down, and then need it.
    (Path(str(folders.elastic)) / "requests").mkdir(parents=True, exist_ok=True)


def configure(settings: Settings) -> Path:
    """Return the program that writes slurm.conf. It runs before each start of slurmctld."""
    return Path(str(Folders(settings).code)) / "bin" / "configure"


def record_changes(settings: Settings) -> Path:
    """Return the program that records what people have changed in Slurm, before slurmctld is stopped."""
    return Path(str(Folders(settings).code)) / "bin" / RECORD


def holds_state(settings: Settings) -> str | None:
    """Return the program that says whether this machine holds the disk with Slurm's state."""
    if settings.design.state() is None:
        return None
    from node.bootstrap.vm import state_guard

    return str(Folders(settings).code / "bin" / state_guard.PROGRAM)


def write_tool(settings: Settings, settings_file: Path) -> Path:
    """Write the cluster's own command, `<code>/bin/slurm-stacks`, for the machines on which people log in."""
    call = f"main({str(settings_file)!r}, sys.argv[1:])"
    return place_python(settings, "slurm-stacks", "node.command_line", call)


def place_python(settings: Settings, name: str, module: str, call: str) -> Path:
    """Write a program to `<code>/bin` that ends with the status of a call of a module's `main`."""
    code = Path(str(Folders(settings).code))
    return _place(
        code / "bin" / name,
        # -I -S: no user environment, no site-packages, and half the start-up time.
        f"#!{settings.site.python} -IS\n"
        "import atexit, gc, sys\n"
        # These programs import hundreds of classes and live for a tenth of a second. Garbage collection finds
        # nothing in them, and would take a fifth of their time.
        "gc.set_threshold(100_000, 50, 100)\n"
        "atexit.register(gc.freeze)\n"
        f"sys.path.insert(0, {str(code)!r})\n"
        f"from {module} import main\n"
        f"sys.exit({call})\n",
    )


def _place(program: Path, text: str) -> Path:
    program.parent.mkdir(exist_ok=True)
    files.write(program, text.encode(), 0o755)
    return program


def daemon_service(settings: Settings, settings_file: Path, user: str | None = None) -> Service:
    """Return the elastic daemon's service. It reads its settings from a file, so a restart uses the newest.

    Args:
        settings: The design, and what is known of this machine.
        settings_file: Where the settings are.
        user: The user who runs it: the user of slurmctld, whose programs call it. `None` means the default
            user of the machine's init.
    """
    folders = Folders(settings)
    start = f"import sys; sys.path.insert(0, {str(folders.code)!r}); from node.elastic.daemon import main"
    return Service(
        "elastic",
        (settings.site.python, "-I", "-c", f"{start}; main({str(settings_file)!r})"),
        Path(str(folders.log)) / "elastic.log",
        {"SLURM_CONF": str(folders.slurm_conf)},
        user,
        condition=holds_state(settings),
    )
