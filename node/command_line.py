"""The `slurm-stacks` command on the login machine: `slurm-stacks submit | cancel | benchmark | sweep | …`.

`./cluster` and the benchmark component call it, usually over SSH. Its output is JSON, a number, or a log.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import sys
from pathlib import Path

from node import billing
from node.benchmark import Run
from node.bootstrap.vm import environments
from node.bootstrap.vm.users import KEY
from node.cluster_status import SilentError, status
from node.design.folders import Folders
from node.design.published import read_settings
from node.logs import show
from node.logs.find import Cluster
from node.slurm.control import Control, SlurmError
from node.sweep import Sweep

CONTROLLERS = ("status", "cost", "logs")
"""The verbs that need the elastic daemon, or the files of the controller."""


def main(settings_file: str, arguments: list[str], *, here: bool = True) -> int:
    """Run the command and returns its exit status. A failure is one line on standard error.

    Args:
        here: Whether this machine is the controller. From a login machine of its own the user goes there by
            SSH, with the key for the cluster's machines.
    """
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
    cost = verbs.add_parser("cost")
    cost.add_argument("--by", choices=billing.BY)
    cost.add_argument("--since", type=float, help="seconds since 1970")
    cost.add_argument("--until", type=float, help="seconds since 1970")
    options = parser.parse_args(arguments)

    settings = read_settings(Path(settings_file))
    if not here and options.verb in CONTROLLERS:
        return _at_controller(settings.site.controller_address, arguments)
    folders = Folders(settings)
    control = Control(str(folders.slurm_conf))
    try:
        if options.verb == "status":
            print(json.dumps(status(folders)))
            return 0
        if options.verb == "cost":
            from node.billing import bill

            print(json.dumps(bill.of_cluster(settings, options.by, options.since, options.until)))
            return 0
        if options.verb == "environments":
            print(json.dumps(environments.environments(Path(settings.site.apps))))
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


def _at_controller(address: str, arguments: list[str]) -> int:
    """Become the command on the controller.

    Host keys are not checked, as for nodes: the network is the cluster's own, and no secret goes there.
    """
    options = {
        "BatchMode": "yes",
        "IdentityFile": f"~/.ssh/{KEY}",
        "StrictHostKeyChecking": "no",
        "UserKnownHostsFile": "/dev/null",
        "GlobalKnownHostsFile": "/dev/null",
        "LogLevel": "ERROR",
    }
    words = [f"-o{name}={value}" for name, value in options.items()]
    os.execvp("ssh", ["ssh", "-F", "none", *words, "--", address, shlex.join(["slurm-stacks", *arguments])])


def _ignore_interrupts() -> None:
    """Ignore Ctrl-C and a lost terminal: a submit takes a moment only, and must not stop halfway."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
