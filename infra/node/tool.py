"""The cluster's own command on its login machine: `slurm-stacks submit | cancel | benchmark | status`.

`./cluster` and the benchmark component call it over whatever way in there is; its output is JSON or a number.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from infra.node import rpc
from infra.node.benchmark import Run
from infra.node.codec import from_json
from infra.node.model import Folders, Settings
from infra.node.slurm.control import Control, SlurmError


def main(settings_file: str, arguments: list[str]) -> int:
    """Returns the exit status; failures are one line on standard error."""
    parser = argparse.ArgumentParser(prog="slurm-stacks")
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb in ("submit", "cancel", "benchmark"):
        verbs.add_parser(verb).add_argument("--run", required=True, help="the run's folder below bench/")
    verbs.add_parser("status")
    options = parser.parse_args(arguments)

    settings = from_json(Settings, json.loads(Path(settings_file).read_text()))
    folders = Folders(settings)
    control = Control(str(folders.slurm_conf))
    try:
        if options.verb == "status":
            print(json.dumps(rpc.call(str(folders.daemon_socket), "status", 60.0)))
            return 0
        run = Run(settings, control, options.run)
        if options.verb == "submit":
            print(run.submit(sys.stdin.read()))
        elif options.verb == "cancel":
            print(run.cancel() or "")
        else:
            print(json.dumps(run.show()))
    except rpc.RpcUnavailableError as error:
        print(
            f"the elastic daemon does not answer ({error}); its log: {folders.log}/elastic.log",
            file=sys.stderr,
        )
        return 1
    except (SlurmError, RuntimeError, rpc.RpcError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0
