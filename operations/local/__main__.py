"""The program that the local stack's resources run: `operations.local VERB --stack S`.

Every verb is idempotent. Its result is on standard output, and is the same for the same cluster; its
progress is on standard error.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from infra import host_limits, os_errors
from infra.errors import EXIT_INTERRUPTED, UserError
from infra.program import folders
from infra.program.stack import Stack
from node.system import rpc
from node.system.processes import CALLER_VARIABLE, end_with_parent
from operations.local.benchmark import cancel, environment, stage, tool
from operations.local.cluster import (
    cloud_down,
    cloud_up,
    guard,
    head_down,
    head_up,
    look,
    publish,
    terminate_nodes,
)

VERBS: dict[str, Callable[..., dict[str, Any]]] = {
    "look": look,
    "cloud-up": cloud_up,
    "cloud-down": cloud_down,
    "publish": publish,
    "head-up": head_up,
    "guard": guard,
    "head-down": head_down,
    "terminate-nodes": terminate_nodes,
    "stage": stage,
    "environment": environment,
}
PASSING: dict[str, Callable[[Stack, list[str]], int]] = {"tool": tool, "cancel": cancel}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("verb", choices=[*VERBS, *PASSING])
    parser.add_argument("--stack", required=True)
    parser.add_argument("--isolation", dest="kind", help="cloud-up: process | container")
    parser.add_argument("--cluster", help="the cluster's name; another one that is up is left alone")
    parser.add_argument("--requirements", help="environment: the user's requirements file")
    options, rest = parser.parse_known_args()
    stack = Stack(Path(os.environ.get("SLURM_STACKS_PROJECT", ".")).resolve(), options.stack)
    with folders.umask():
        return _execute(stack, options, rest)


def _execute(stack: Stack, options: argparse.Namespace, rest: list[str]) -> int:
    """Run a verb, and return the exit status."""
    try:
        if options.verb in PASSING:
            return PASSING[options.verb](stack, [r for r in rest if r != "--"])
        names = ("kind", "cluster", "requirements")
        given: dict[str, Any] = {name: value for name in names if (value := getattr(options, name))}
        if options.verb == "stage" and rest:
            given["own"] = rest
        print(json.dumps(VERBS[options.verb](stack, **given)))
    except UserError as error:
        print(_with_limit(error), file=sys.stderr)
        return error.exit_code
    except rpc.RpcUnavailableError as error:
        print(
            f"the local cloud's agent does not answer ({error}); "
            f"run `./cluster up --stack {options.stack}` again",
            file=sys.stderr,
        )
        return 1
    except rpc.RpcError as error:
        print(f"the local cloud refused: {error} ({error.code})", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except OSError as error:
        explained = os_errors.explain(error)
        print(_with_limit(explained), file=sys.stderr)
        return explained.exit_code
    return 0


def _with_limit(error: UserError) -> str:
    """Return an error's text, with the limit of this machine that was reached if its words say so."""
    return "\n".join(filter(None, (str(error), host_limits.named(str(error)))))


def _end_with_caller() -> None:
    """End this process and its children (uv) when the `./cluster up` that started it is killed."""

    def end(number: int, _frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        # Signal the group only if it is our own: under Pulumi's CLI it is the provider's.
        is_leader = os.getpgrp() == os.getpid()
        os.kill(0 if is_leader else os.getpid(), number)

    signal.signal(signal.SIGTERM, end)
    end_with_parent(os.environ.get(CALLER_VARIABLE))


if __name__ == "__main__":
    _end_with_caller()
    sys.exit(main())
