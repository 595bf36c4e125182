"""The small programs that Slurm calls, and the daemon's service: where they lie and how they start."""

from __future__ import annotations

import shlex
from pathlib import Path

from infra.node.bootstrap.services import Service
from infra.node.model import Folders, Settings
from infra.node.slurm.control import PATH

CLIENT = "usr/local/lib/slurm-stacks/client"
"""Below the machine's root: the environment with what the driver asks its cloud with, if it needs one."""
NAMES = ("resume", "resume-fail", "suspend", "prolog-slurmctld")
EPILOG = "epilog-slurmctld"
EPILOG_SECONDS = 110
"""Longer than a job may take to end (KillWait, a node's way to DOWN); less than PrologEpilogTimeout."""
EPILOG_TEXT = """\
#!/bin/sh
# Written by slurm-stacks. Lasts until the job's nodes have let it go: they have ended it, or are lost.
# slurmctld before 24.11 does not tidy up a job that is queued again and whose node is lost before it has
# ended: its next run has no GPUs, or never begins. Where its epilog still runs, it is tidied up after that.
exec </dev/null
PATH={path} SLURM_CONF={conf}
export PATH SLURM_CONF
looks=0
while [ "$looks" -lt {seconds} ]; do
    # As a rule it is over in a tenth of a second.
    if [ "$looks" -lt 5 ]; then sleep 0.1; else sleep 1; fi
    scontrol show node "$SLURM_JOB_NODELIST" 2>/dev/null | grep -q COMPLETING || exit 0
    looks=$((looks + 1))
done
"""


def write(settings: Settings, settings_file: Path) -> None:
    """The programs that slurm.conf names, in `<code>/bin`.

    Slurm calls them without PATH and SLURM_CONF, so all that they need is written into them.
    """
    folders = Folders(settings)
    code = Path(str(folders.code))
    for name in NAMES:
        _place(
            code / "bin" / name,
            # -I -S: nothing of the user's environment, no site-packages, half the start-up time.
            f"#!{settings.site.python} -IS\n"
            "import sys\n"
            f"sys.path.insert(0, {str(code)!r})\n"
            "from infra.node.elastic.client import main\n"
            f"sys.exit(main({name!r}, {str(folders.daemon_socket)!r}, {str(folders.lib / 'requests')!r}))\n",
        )
    conf = shlex.quote(str(folders.slurm_conf))
    _place(code / "bin" / EPILOG, EPILOG_TEXT.format(path=PATH, conf=conf, seconds=EPILOG_SECONDS))
    write_tool(settings, settings_file)
    _place(
        configure(settings),
        f"#!{settings.site.python} -IS\n"
        "import sys\n"
        f"sys.path.insert(0, {str(code)!r})\n"
        "from infra.node.slurm.configure import main\n"
        f"sys.exit(main({str(settings_file)!r}))\n",
    )
    # Here and not in the clients: they may find the daemon down and must have where to leave their request.
    (Path(str(folders.lib)) / "requests").mkdir(parents=True, exist_ok=True)


def configure(settings: Settings) -> Path:
    """The program that writes slurm.conf: to be run before each start of slurmctld."""
    return Path(str(Folders(settings).code)) / "bin" / "configure"


def write_tool(settings: Settings, settings_file: Path) -> Path:
    """The cluster's own command, `<code>/bin/slurm-stacks`, for every machine on which people log in."""
    code = Path(str(Folders(settings).code))
    return _place(
        code / "bin" / "slurm-stacks",
        f"#!{settings.site.python} -IS\n"
        "import sys\n"
        f"sys.path.insert(0, {str(code)!r})\n"
        "from infra.node.tool import main\n"
        f"sys.exit(main({str(settings_file)!r}, sys.argv[1:]))\n",
    )


def _place(program: Path, text: str) -> Path:
    program.parent.mkdir(exist_ok=True)
    draft = program.with_name(f".{program.name}.new")
    draft.write_text(text)
    draft.chmod(0o755)
    draft.replace(program)
    return program


def daemon_service(settings: Settings, settings_file: Path, user: str | None = None) -> Service:
    """The elastic daemon. It takes its settings from a file, so that a restart reads the newest.

    Args:
        user: who runs it, None for the machine's init's own: the user of slurmctld, whose programs ask it.
    """
    folders = Folders(settings)
    # Where the boot has made one, it has what the driver asks its cloud with.
    client = folders.root / CLIENT / "bin" / "python"
    start = (
        f"import sys; sys.path.insert(0, {str(folders.code)!r}); from infra.node.elastic.daemon import main"
    )
    python = str(client) if Path(str(client)).exists() else settings.site.python
    return Service(
        "elastic",
        (python, "-I", "-c", f"{start}; main({str(settings_file)!r})"),
        Path(str(folders.log)) / "elastic.log",
        {"SLURM_CONF": str(folders.slurm_conf)},
        user,
    )
