"""The small programs that Slurm calls, and the elastic daemon's service.

Slurm's traps (docs/internals/slurm_traps.md): bare-programs, requeued-gpus.
"""

from __future__ import annotations

import os
from pathlib import Path, PurePath

from node.bootstrap.services import Service
from node.design.folders import Folders
from node.design.model import Settings
from node.elastic import client
from node.system import files

NAMES = ("resume", "resume-fail", "suspend", *client.WAITING)
RECORD = "record-changes"
PERL = "/usr/bin/perl"
"""Debian and Ubuntu have it on every machine, because their package manager needs it."""
WAITING_TEXT = r"""
# Written by slurm-stacks. Asks the elastic daemon whether there is anything to wait for, and ends when not.
# Hundreds of these programs wait at once. In Python each takes five times as much time and memory.
# Whatever happens the status is 0, because another one of a prolog requeues the job.
my $job = int($ENV{SLURM_JOB_ID} || 0);
my $nodes = $ENV{SLURM_JOB_NODELIST} // "";
$nodes =~ s/(["\\])/\\$1/g;
my $question = qq({"method": "$method", "params": {"job": $job, "nodes": "$nodes"}}\n);
$SIG{PIPE} = "IGNORE";

# Returns the daemon's line; undef if it is away, and nothing more if it is silent.
sub answer {
    socket(my $daemon, 1, 1, 0) or return;  # AF_UNIX, SOCK_STREAM
    setsockopt($daemon, 1, 21, pack("l!l!", 30, 0));  # SOL_SOCKET, SO_SNDTIMEO: for a queue that is full
    connect($daemon, pack("Sa*", 1, "$socket\0")) or return;
    syswrite($daemon, $question) or return;
    my ($line, $open) = ("", "");
    vec($open, fileno($daemon), 1) = 1;
    while ($line !~ /\n/) {
        select(my $ready = $open, undef, undef, $silence) or exit 0;
        sysread($daemon, $line, 4096, length $line) or return;
    }
    return $line;
}

# The daemon's folder, because the whole path may be too long for a socket.
chdir $folder;
my $failures = 0;
while ($failures < $retries) {
    my $line = answer() // "";
    exit 0 if $line =~ /"over": true/;
    if ($line =~ /"over": false/) { $failures = 0; next }
    $failures++;
    sleep 1;
}
exit 0;
"""


def write(settings: Settings, settings_file: Path) -> None:
    """Write the programs that slurm.conf names, to `<code>/bin`.

    Slurm calls them without PATH and SLURM_CONF, so everything that they need is written into them.
    """
    folders = Folders(settings)
    code = Path(str(folders.code))
    has_perl = os.access(PERL, os.X_OK)
    for name in (*NAMES, RECORD):
        if has_perl and name in client.WAITING:
            place(code / "bin" / name, waiting_text(client.WAITING[name], folders.daemon_socket))
        else:
            call = f"main({name!r}, {str(folders.daemon_socket)!r}, {str(folders.elastic / 'requests')!r})"
            place_python(settings, name, "node.elastic.client", call)
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


def write_tool(settings: Settings, settings_file: Path, *, here: bool = True) -> Path:
    """Write the cluster's own command, `<code>/bin/slurm-stacks`, for the machines on which people log in.

    Args:
        here: Whether the machine is the controller, where the elastic daemon is.
    """
    call = f"main({str(settings_file)!r}, sys.argv[1:], here={here})"
    return place_python(settings, "slurm-stacks", "node.command_line", call)


def place_python(settings: Settings, name: str, module: str, call: str) -> Path:
    """Write a program to `<code>/bin` that ends with the status of a call of a module's `main`."""
    code = Path(str(Folders(settings).code))
    return place(
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


def waiting_text(method: str, socket: PurePath) -> str:
    """Return the text of a program that waits. It does what `client.main` does, for less.

    Args:
        method: What it asks the daemon.
        socket: The daemon's socket.
    """
    values = {
        "method": method,
        "folder": str(socket.parent),
        "socket": socket.name,
        "retries": client.WAIT_RETRIES[method],
        "silence": client.SILENT_SECONDS,
    }
    lines = [f"my ${name} = {_quoted(str(value))};\n" for name, value in values.items()]
    # -T: no environment changes what Perl runs.
    return f"#!{PERL} -T\n{''.join(lines)}{WAITING_TEXT}"


def _quoted(text: str) -> str:
    """Return a text as Perl's string in which nothing is replaced."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def place(program: Path, text: str) -> Path:
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
