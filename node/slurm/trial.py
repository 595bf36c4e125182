"""Tries a slurm.conf before it is in force: a slurmctld of its own starts with it, and ends at once.

No release has an option for that. This slurmctld has a folder, a port and a key of munge of its own, so it
shares no state with the cluster's, and no daemon of the cluster would listen to it. It starts no machine. It
takes about a tenth of a second, because it begins with no job and is killed once it controls.

Slurm's traps (docs/internals/slurm_traps.md): untested-conf.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from node.design.folders import Folders
from node.design.model import Settings
from node.slurm import environment
from node.system import accounts, files, subprocesses
from node.system.waiting import wait_at_most

SLURMCTLD, MUNGED = "/usr/sbin/slurmctld", "/usr/sbin/munged"
SECONDS = 30.0
"""The longest time in which slurmctld must control, on a busy machine."""
MOST_WORDS = 500
"""The most characters of what slurmctld says."""
CONTROLS = "Running as primary controller"
"""What slurmctld of every release logs when it has read everything."""
REPLACED = {
    # No machine starts or ends, and nobody is told of a controller.
    "ResumeProgram": "/bin/true", "ResumeFailProgram": "/bin/true", "SuspendProgram": "/bin/true",
    "PrologSlurmctld": "/bin/true", "EpilogSlurmctld": "/bin/true",
    "SlurmctldPrimaryOnProg": None, "SlurmctldPrimaryOffProg": None,
    # slurmdbd would send the cluster's messages to the trial's port. Without it there are no shares.
    "AccountingStorageType": "accounting_storage/none", "AccountingStorageEnforce": None,
    "AccountingStorageHost": None, "AccountingStoragePort": None, "AccountingStoragePass": None,
    "AccountingStorageExternalHost": None, "AccountingStorageTRES": None,
    "PriorityType": "priority/basic", "JobAcctGatherType": "jobacct_gather/none",
    "PreemptType": "preempt/none", "PreemptMode": None,
    "SlurmctldLogFile": None, "SlurmctldSyslogDebug": None,
}  # fmt: skip
"""Options that the trial has otherwise; `None` means that it does not have them."""

_OF_DATABASE = re.compile(
    r' (QOS|AllowQos|DenyQos|AllowAccounts|DenyAccounts|PreemptMode)=("[^"]*"|\S+)', re.IGNORECASE
)
"""Options of a partition that name what only the database has."""
_LINE = re.compile(r"\b(error|fatal): (.*)")
_NO_STATE = re.compile(r"state file|NOTE: Trying backup|Jobs may be lost")
"""What slurmctld logs because there is no state."""


def fault(settings: Settings, rendered: Mapping[str, str], lib: Path) -> str:
    """Return why slurmctld does not start with files of configuration, in its own words; empty if it does.

    Args:
        rendered: File name -> content, as `conf.render` returns them.
        lib: A folder that other users cannot write to.

    Raises:
        OSError: A program cannot be started, or there is no place for its files.
    """
    folders = Folders(settings)
    owner = None if folders.process else settings.site.user
    with tempfile.TemporaryDirectory(prefix="try-", dir=lib) as name, contextlib.ExitStack() as ends:
        folder = Path(name)
        # slurmctld becomes Slurm's user before it reads its state.
        folder.chmod(0o711)
        (folder / "state").mkdir(0o700)
        if owner is not None and os.geteuid() == 0:
            os.chown(folder / "state", *accounts.ids(owner))
        _write(folder, settings, rendered)
        ends.enter_context(_running(_munged(folder), folder / "munged.out"))
        wait_at_most((folder / "m").exists, SECONDS, 0.01)
        conf = folder / "slurm.conf"
        argv = (SLURMCTLD, "-D", "-c", "-v", "-f", str(conf))
        log = folder / "slurmctld.out"
        slurmctld = ends.enter_context(_running(argv, log, environment.of_ours(conf)))
        wait_at_most(lambda: slurmctld.poll() is not None or CONTROLS in _text(log), SECONDS)
        # An end that is seen has left all of its words.
        ended, output = slurmctld.poll(), _text(log)
        return "" if CONTROLS in output else _words(output.replace(name, str(folders.etc)), ended)


def _text(log: Path) -> str:
    return log.read_text(errors="replace")


def trial_conf(text: str, folder: Path, port: int) -> str:
    """Return the text of a slurm.conf for a slurmctld that shares nothing with the cluster's."""
    own: dict[str, object] = {
        **REPLACED,
        "SlurmctldPort": port,
        "StateSaveLocation": folder / "state",
        "SlurmctldPidFile": folder / "slurmctld.pid",
        # The name is short, because a socket's path may not be longer than the cluster's own.
        "AuthInfo": f"socket={folder / 'm'},cred_expire=30",
    }
    kept = [
        _OF_DATABASE.sub("", line) if line.startswith("PartitionName=") else line
        for line in text.split("\n")
        if line.partition("=")[0] not in own
    ]
    lines = [f"{key}={value}" for key, value in own.items() if value is not None]
    return "\n".join([*kept, *lines, ""])


def _write(folder: Path, settings: Settings, rendered: Mapping[str, str]) -> None:
    """Write the files of the trial, and link those beside slurm.conf that others have made."""
    files.write(folder / "munge.key", secrets.token_bytes(128), 0o600)
    for name, content in rendered.items():
        (folder / name).write_text(content)
    (folder / "slurm.conf").write_text(trial_conf(rendered["slurm.conf"], folder, _free_port()))
    with contextlib.suppress(FileNotFoundError):
        for there in Path(str(Folders(settings).etc)).iterdir():
            if there.name not in rendered:
                (folder / there.name).symlink_to(there)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _munged(folder: Path) -> tuple[str, ...]:
    # The folder is anybody's to enter, which munged refuses without --force.
    return (
        MUNGED, "--foreground", "--force",
        f"--socket={folder}/m", f"--key-file={folder}/munge.key",
        f"--pid-file={folder}/munged.pid", f"--seed-file={folder}/munged.seed",
        f"--log-file={folder}/munged.log",
    )  # fmt: skip


@contextlib.contextmanager
def _running(
    argv: tuple[str, ...], log: Path, env: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program for a while. It is killed with all that it has started, and saves nothing."""
    with log.open("wb") as output:
        child = subprocesses.start(argv, env or {"PATH": environment.PATH}, output)
    try:
        yield child
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(subprocesses.KILL_SECONDS)


def _words(output: str, status: int | None) -> str:
    """Return the errors that slurmctld has ended with.

    Args:
        status: Its exit status; `None` means that it has not ended.
    """
    said = [match[2].strip() for match in map(_LINE.search, output.split("\n")) if match]
    said = [text for text in said if not _NO_STATE.search(text)]
    words = "; ".join(dict.fromkeys(said[-4:]))[:MOST_WORDS]
    if status is None:
        return f"it does not control after {SECONDS:.0f} s" + (f": {words}" if words else "")
    if status < 0:
        return f"it crashes ({signal.Signals(-status).name})" + (f": {words}" if words else "")
    return words or f"it ends with status {status}"


def possible() -> bool:
    """Return whether this machine has the programs that a trial needs. A controller has."""
    return all(shutil.which(program) for program in (SLURMCTLD, MUNGED))
