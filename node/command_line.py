"""The `slurm-stacks` command on the login machine: `slurm-stacks submit | cancel | benchmark | sweep | …`.

`./cluster` and the benchmark component call it, usually over SSH. Its output is JSON, a number, or a log.
"""

from __future__ import annotations

import argparse
import json
import signal
import socket
import sys
from pathlib import Path
from typing import Any

from node.backup import record
from node.benchmark import Run
from node.bootstrap.report import failure
from node.bootstrap.vm import training
from node.design.folders import Folders
from node.design.published import read_settings
from node.elastic.disks import Disks
from node.logs import show
from node.logs.find import Cluster
from node.logs.remarks import remarks
from node.slurm import packaged
from node.slurm.control import Control, SlurmError
from node.sweep import Sweep
from node.system import foreign, rpc

# The cluster's status from its elastic daemon, or which part of the cluster does not answer.

STATUS_SECONDS = 10.0
PING_SECONDS = 5.0


class SilentError(Exception):
    """There is no status. The text says which part of the cluster does not answer."""


def status(folders: Folders) -> dict[str, Any]:
    """Return the status (`./cluster status --json`) within STATUS_SECONDS and PING_SECONDS.

    Raises:
        SilentError: A part of the cluster does not answer.
    """
    try:
        found: dict[str, Any] = rpc.call(str(folders.daemon_socket), "status", STATUS_SECONDS)
    except rpc.RpcUnavailableError as error:
        why = _boot(folders) or _slurmctld(folders) or _daemon(folders, error)
        raise SilentError(_unsaved(folders) + why) from error
    except rpc.RpcError as error:
        raise SilentError(_unsaved(folders) + _behind(error)) from error
    return {
        **found,
        "slurm": packaged.status(),
        "backup": record.status(folders.settings),
        "remarks": remarks(Cluster(folders.settings)),
    }


def _boot(folders: Folders) -> str | None:
    """Return a sentence on the controller's boot. `None` means that it has neither failed nor is running."""
    path = Path(str(folders.lib)) / ("boot/controller.json" if folders.process else "boot.json")
    if why := failure(path):
        return f"the controller's boot failed at {why}"
    try:
        report = foreign.record(path)
        step = report["steps"][-1]["name"] if report["steps"] else "first"
        return f"the controller still boots: step {step}" if report["state"] == "booting" else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _unsaved(folders: Folders) -> str:
    """Return a clause if Slurm cannot save its state, which may be why nothing answers; empty if it can."""
    if not folders.process and socket.gethostname() != folders.settings.design.controller().name:
        return ""
    why = Disks(folders).status()["unsaved"]
    return "" if why is None else f"Slurm cannot save its state: {why}; "


def _slurmctld(folders: Folders) -> str | None:
    """Return a sentence if slurmctld does not answer."""
    try:
        Control(folders.slurm_conf, PING_SECONDS).run("scontrol", "ping")
    except SlurmError as error:
        return f"slurmctld does not answer ({error})"
    return None


def _daemon(folders: Folders, error: rpc.RpcUnavailableError) -> str:
    return f"the elastic daemon does not answer ({error}); its log: {folders.log}/elastic.log"


def _behind(error: rpc.RpcError) -> str:
    """Return the sentence for an error that the daemon answered, such as a slurmctld that is silent."""
    if error.code in ("SlurmDown", "SlurmError"):
        return f"slurmctld does not answer ({error})"
    return str(error)


def main(settings_file: str, arguments: list[str]) -> int:
    """Run the command and returns its exit status. A failure is one line on standard error."""
    parser = argparse.ArgumentParser(prog="slurm-stacks")
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb in ("submit", "cancel", "benchmark"):
        command = verbs.add_parser(verb)
        command.add_argument("--run", required=True, help="the run's folder below bench/")
        if verb == "submit":
            command.add_argument("--no-retry", action="store_true", help="do not submit a failed run again")
    sweep = verbs.add_parser("sweep")
    actions = ["open", "prepare", "submit", "show", "cancel", "close"]
    sweep.add_argument("action", choices=actions, help="the request is JSON on standard input")
    verbs.add_parser("status")
    verbs.add_parser("environments")
    backup = verbs.add_parser("backup", help="writes it to standard output; the controller's root only")
    backup.add_argument("--bucket", action="store_true", help="write it to the bucket of the stack file")
    backup.add_argument("--scheduled", action="store_true", help="as --bucket, if one is due")
    backup.add_argument("--list", action="store_true", help="list those in the bucket")
    restore = verbs.add_parser("restore", help="reads it from standard input; the controller's root only")
    restore.add_argument("--bucket", nargs="?", const="", metavar="NAME", help="take it from the bucket")
    restore.add_argument("--replace", action="store_true", help="also if the cluster has had jobs")
    restore.add_argument("--cancel", action="store_true", help="give up one that is not in its place yet")
    logs = verbs.add_parser("logs")
    logs.add_argument("what", help="controller, a node's name, or a job's number")
    logs.add_argument("--lines", type=int, default=40)
    logs.add_argument("--follow", action="store_true")
    options = parser.parse_args(arguments)

    settings = read_settings(Path(settings_file))
    folders = Folders(settings)
    control = Control(str(folders.slurm_conf))
    try:
        if options.verb == "status":
            print(json.dumps(status(folders)))
            return 0
        if options.verb == "environments":
            print(json.dumps(training.environments(Path(settings.site.apps))))
            return 0
        if options.verb == "logs":
            return show.run(Cluster(settings), options.what, lines=options.lines, follow=options.follow)
        if options.verb in ("backup", "restore"):
            # Imported late, because few calls need it.
            from node.backup import command as backups

            return backups.main(settings, Path(settings_file), control, options)
        if options.verb == "sweep":
            _ignore_interrupts()
            print(json.dumps(getattr(Sweep(settings, control), options.action)(json.load(sys.stdin))))
            return 0
        run = Run(settings, control, options.run)
        if options.verb == "submit":
            _ignore_interrupts()
            print(run.submit(sys.stdin.read(), again=not options.no_retry))
        elif options.verb == "cancel":
            print(run.cancel() or "")
        else:
            print(json.dumps(run.show()))
    except (SlurmError, RuntimeError, SilentError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _ignore_interrupts() -> None:
    """Ignore Ctrl-C and a lost terminal: a submit takes a moment only, and must not stop halfway."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
