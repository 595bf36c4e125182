"""The commands of stacks' resources on the engineer's machine: `python -m cli.<cloud>.operations VERB …`.

Every verb is idempotent and limited in time. Its result is on standard output and stays the same for the same
cluster; its progress is on standard error.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from cli.clouds import boot, termination
from cli.clouds.cloud import Cloud
from infra.clouds.commands import ClusterRef, WaitRequest
from infra.errors import EXIT_INTERRUPTED, EXIT_REFUSED, UserError

Verb = Callable[[argparse.Namespace], dict[str, Any]]
Open = Callable[[ClusterRef], Cloud]
"""Gives a provider's `Cloud` for a cluster, without a call."""


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def replace_process(line: list[str], refusal: str) -> NoReturn:
    """Replace this process by a cloud's own program, for OpenSSH's ProxyCommand.

    Args:
        refusal: The message for a program that is not installed.

    Raises:
        UserError: Exit 3; the program is not installed.
    """
    try:
        os.execvp(line[0], line)
    except FileNotFoundError:
        raise UserError(refusal, EXIT_REFUSED) from None


def verbs(opened: Open) -> dict[str, Verb]:
    """The verbs that every cloud has."""

    def terminate_nodes(options: argparse.Namespace) -> dict[str, Any]:
        """Terminate the machines that Slurm has launched. The controller is gone, so no more are launched."""
        place = ClusterRef(options.cluster, options.region, options.zone, options.project)
        return {"terminated": termination.terminate_compute(opened(place), say, options.seconds)}

    def wait(options: argparse.Namespace) -> dict[str, Any]:
        """Wait until the hosts have booted what is published. The request is JSON on standard input."""
        request = WaitRequest.parse(sys.stdin.read())
        return boot.Waiter(request, opened(request.place), say).facts()

    return {"terminate-nodes": terminate_nodes, "wait": wait}


def parser() -> tuple[argparse.ArgumentParser, Callable[[str], argparse.ArgumentParser]]:
    """The parser for those verbs, and a function that adds a provider's own verb."""
    made = argparse.ArgumentParser()
    kinds = made.add_subparsers(dest="verb", required=True)
    terminating, waiting = kinds.add_parser("terminate-nodes"), kinds.add_parser("wait")
    terminating.add_argument("--seconds", type=float, default=termination.SECONDS)
    for verb in (terminating, waiting):
        # This option is for readers of the resource; no verb uses it.
        verb.add_argument("--stack", required=True)
    for name in ("region", "cluster"):
        terminating.add_argument(f"--{name}", required=True)
    for name in ("zone", "project"):
        terminating.add_argument(f"--{name}")
    return made, kinds.add_parser


def run(known: Mapping[str, Verb], options: argparse.Namespace) -> int:
    """Run a verb and return the exit status. A failure is one message on standard error."""
    try:
        print(json.dumps(known[options.verb](options), sort_keys=True))
    except UserError as error:
        say(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return 0
