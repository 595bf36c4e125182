"""What stacks' commands run on the engineer's machine: `python -m infra.<cloud>.operations VERB …`.

Every verb is idempotent, and bounded in time. Results are on standard output and stay the same for the same
cluster; what is waited for is on standard error.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Callable, Mapping
from typing import Any

from infra.clouds import boot, ending
from infra.clouds.cloud import PYTHON, Cloud, Place
from infra.errors import EXIT_INTERRUPTED, UserError
from infra.node.model import ClusterDesign

Verb = Callable[[argparse.Namespace], dict[str, Any]]
Open = Callable[[Place], Cloud]
"""A provider's `Cloud` for a cluster; makes no call."""


def line(module: str, verb: str, design: ClusterDesign, *rest: str) -> str:
    """A command line of a provider's operations, for a resource of its stack.

    Args:
        module: the provider's, as `infra.aws.operations`.
    """
    return f"{PYTHON} -m {module} {shlex.join([verb, '--stack', design.stack, *rest])}"


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def verbs(opened: Open) -> dict[str, Verb]:
    """Those that every cloud has."""

    def sweep(options: argparse.Namespace) -> dict[str, Any]:
        """End the machines that Slurm has launched; nobody launches more, for the head has gone before."""
        place = Place(options.cluster, options.region, options.zone, options.project)
        return {"terminated": ending.sweep(opened(place), say, options.seconds)}

    def wait(options: argparse.Namespace) -> dict[str, Any]:
        """Wait until the head has booted what is published; the wish is JSON on standard input."""
        wish = boot.Wish.parse(sys.stdin.read())
        return boot.Waiter(wish, opened(wish.place), say).facts()

    return {"sweep": sweep, "wait": wait}


def parser() -> tuple[argparse.ArgumentParser, Callable[[str], argparse.ArgumentParser]]:
    """Of those; the second value adds a verb of a provider's own."""
    made = argparse.ArgumentParser()
    kinds = made.add_subparsers(dest="verb", required=True)
    sweeping, waiting = kinds.add_parser("sweep"), kinds.add_parser("wait")
    sweeping.add_argument("--seconds", type=float, default=ending.SECONDS)
    for verb in (sweeping, waiting):
        # For whoever reads the resource: what to do is said by the rest.
        verb.add_argument("--stack", required=True)
    for name in ("region", "cluster"):
        sweeping.add_argument(f"--{name}", required=True)
    for name in ("zone", "project"):
        sweeping.add_argument(f"--{name}")
    return made, kinds.add_parser


def run(known: Mapping[str, Verb], options: argparse.Namespace) -> int:
    """The exit status; a failure is one message."""
    try:
        print(json.dumps(known[options.verb](options), sort_keys=True))
    except UserError as error:
        say(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return 0
