"""The commands of stacks' resources on the engineer's machine: `operations.<cloud> VERB …`.

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

from infra.clouds.commands import ClusterRef, WaitRequest
from infra.errors import EXIT_INTERRUPTED, EXIT_REFUSED, UserError
from operations.clouds.boots import Waiter
from operations.clouds.cloud import Cloud
from operations.clouds.termination import TERMINATION_SECONDS, terminate_compute

Verb = Callable[[argparse.Namespace], dict[str, Any]]
Open = Callable[[ClusterRef], Cloud]
"""Gives a provider's `Cloud` for a cluster, without a call."""


SETTINGS = "--provider-settings"
"""The argument that says as whom the cloud is asked (`infra.config.provider_settings`)."""


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
        raise UserError(refusal, EXIT_REFUSED, code="cloud.tool-missing") from None


def place(options: argparse.Namespace) -> ClusterRef:
    """Return the cluster that the arguments of a verb name. Those that a verb does not have are empty."""
    given = vars(options)
    more = (given.get(name) for name in ("zone", "project", "provider_settings"))
    return ClusterRef(given.get("cluster") or "", given.get("region") or "", *more)


def verbs(opened: Open) -> dict[str, Verb]:
    """Return the verbs that every cloud has."""

    def terminate_nodes(options: argparse.Namespace) -> dict[str, Any]:
        """Terminate the machines that Slurm has launched. The controller is gone, so no more are launched."""
        return {"terminated": terminate_compute(opened(place(options)), say, options.seconds)}

    def wait(options: argparse.Namespace) -> dict[str, Any]:
        """Wait until the hosts have booted what is published. The request is JSON on standard input."""
        request = WaitRequest.parse(sys.stdin.read())
        return Waiter(request, opened(request.place), say).facts()

    return {"terminate-nodes": terminate_nodes, "wait": wait}


def parser() -> tuple[argparse.ArgumentParser, Callable[[str], argparse.ArgumentParser]]:
    """Return the parser for those verbs, and a function that adds a provider's own verb."""
    top = argparse.ArgumentParser()
    kinds = top.add_subparsers(dest="verb", required=True)
    terminating, waiting = kinds.add_parser("terminate-nodes"), kinds.add_parser("wait")
    terminating.add_argument("--seconds", type=float, default=TERMINATION_SECONDS)
    for verb in (terminating, waiting):
        # This option is for readers of the resource; no verb uses it.
        verb.add_argument("--stack", required=True)
    for name in ("region", "cluster"):
        terminating.add_argument(f"--{name}", required=True)
    for name in ("--zone", "--project", SETTINGS):
        terminating.add_argument(name)
    return top, kinds.add_parser


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
