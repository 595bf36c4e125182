"""The cluster's own command on its login machine: `slurm-stacks submit | cancel | benchmark | sweep | …`.

`./cluster` and the benchmark component call it over whatever way in there is; its output is JSON or a number.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from pathlib import Path

from infra.node.benchmark import Run
from infra.node.codec import from_json
from infra.node.logs import show
from infra.node.logs.find import Cluster
from infra.node.model import Folders, Settings
from infra.node.slurm.control import Control, SlurmError
from infra.node.status import SilentError, status
from infra.node.sweep import Sweep


def main(settings_file: str, arguments: list[str]) -> int:
    """Returns the exit status; failures are one line on standard error."""
    parser = argparse.ArgumentParser(prog="slurm-stacks")
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb in ("submit", "cancel", "benchmark"):
        command = verbs.add_parser(verb)
        command.add_argument("--run", required=True, help="the run's folder below bench/")
        if verb == "submit":
            command.add_argument("--no-retry", action="store_true", help="not again where its job has failed")
    sweep = verbs.add_parser("sweep")
    sweep.add_argument(
        "action", choices=["submit", "show", "cancel"], help="what it is asked is JSON on stdin"
    )
    verbs.add_parser("status")
    logs = verbs.add_parser("logs")
    logs.add_argument("what", help="controller, a node's name, or a job's number")
    logs.add_argument("--lines", type=int, default=40)
    logs.add_argument("--follow", action="store_true")
    options = parser.parse_args(arguments)

    settings = from_json(Settings, json.loads(Path(settings_file).read_text()))
    folders = Folders(settings)
    control = Control(str(folders.slurm_conf))
    try:
        if options.verb == "status":
            print(json.dumps(status(folders)))
            return 0
        if options.verb == "logs":
            return show.run(Cluster(settings), options.what, lines=options.lines, follow=options.follow)
        if options.verb == "sweep":
            _finish_what_is_begun()
            print(json.dumps(getattr(Sweep(settings, control), options.action)(json.load(sys.stdin))))
            return 0
        run = Run(settings, control, options.run)
        if options.verb == "submit":
            _finish_what_is_begun()
            print(run.submit(sys.stdin.read(), again=not options.no_retry))
        elif options.verb == "cancel":
            print(run.cancel() or "")
        else:
            print(json.dumps(run.show()))
    except (SlurmError, RuntimeError, SilentError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _finish_what_is_begun() -> None:
    """Ctrl-C and a lost terminal are the caller's affair; a submit takes a moment, and is done whole."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
